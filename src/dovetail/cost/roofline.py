"""What operators take at least of each unit of a chip: their place under its roofs."""

from __future__ import annotations

from dovetail.arrays import Floats
from dovetail.cost.operators import ChipUnits, PlacedWork, kernel_counts, operator_bytes, runs_narrow
from dovetail.frozen import frozen
from dovetail.graph import Kind, Phase


@frozen
class OperatorRoofs:
    """One operator on one chip: its work, and the seconds it would take if a unit alone limited it."""

    flops: Floats
    moved_bytes: Floats
    matrix_s: Floats
    vector_s: Floats
    memory_s: Floats
    launch_s: Floats


def operator_roofs(work: PlacedWork, chip: ChipUnits) -> dict[str, OperatorRoofs]:
    """Those of every operator, at what the units sustain of their peaks."""
    moved, kernels, roofs = operator_bytes(work, chip), kernel_counts(work), dict[str, OperatorRoofs]()
    for operator in (placed.operator for placed in work.operators):
        matrix, vector = work.flops[operator.name]
        units = chip.matrix if runs_narrow(operator, work.tensors) else chip.half
        rate = units.peak_flops * units.sustained
        if operator.kind is Kind.ATTENTION:
            fused = chip.attention
            forward = operator.phase is Phase.FORWARD
            rate = fused.matrix_flops * (fused.forward_efficiency if forward else fused.backward_efficiency)
        roofs[operator.name] = OperatorRoofs(
            flops=matrix + vector,
            moved_bytes=moved[operator.name],
            matrix_s=matrix / rate,
            vector_s=vector / chip.vector.vector_flops,
            memory_s=moved[operator.name] / chip.vector.memory_bytes_per_s,
            launch_s=kernels[operator.name] * chip.vector.launch_s,
        )
    return roofs
