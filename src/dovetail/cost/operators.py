"""Time of a layer's operators on one chip: each kind by its own model, chains of vector operators fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.cost.contraction import MatrixUnits, gpu_seconds, systolic_seconds
from dovetail.cost.shapes import Array, gemm_of
from dovetail.cost.vector import AttentionUnits, VectorUnits, attention_seconds, vector_seconds
from dovetail.graph import Kind, Operator, Phase, Role, Tensor, Unit, bytes_read, bytes_written, flops
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.graph.size import Size, Sizes, as_array, divided
from dovetail.graph.tensor import Element
from dovetail.layout import PlacedOperator, degree


@dataclass(frozen=True, slots=True)
class ChipUnits:
    """A chip (or an array of chips) as operator models see it, for one precision."""

    matrix: MatrixUnits
    attention: AttentionUnits
    vector: VectorUnits
    systolic: bool


def local_sizes(placed: PlacedOperator, sizes: Sizes, axis_sizes: Mapping[str, Size]) -> dict[str, Size]:
    """The sizes one chip sees: each dim divided by the axes that cut it."""
    local = dict(sizes)
    cut: dict[str, list[str]] = {}
    for axis, dim in placed.cuts.items():
        cut.setdefault(dim, []).append(axis)
    for dim, axes in cut.items():
        if dim in local:
            local[dim] = divided(local[dim], degree(axes, axis_sizes))
    for source, target in placed.operator.regroups:
        # tokens regrouped by expert are cut as the tokens are
        if source in cut and target not in cut:
            local[target] = divided(local[target], degree(cut[source], axis_sizes))
    return local


def operator_seconds(
    operators: Sequence[PlacedOperator],
    tensors: Mapping[str, Tensor],
    sizes: Sizes,
    axis_sizes: Mapping[str, Size],
    chip: ChipUnits,
    widths: Mapping[Element, int],
    expert_imbalance: float = 1.0,
) -> dict[str, Array]:
    """Operator name → seconds on one chip; the fullest expert decides where tokens lie by expert."""
    internal = _internal_tensors([p.operator for p in operators], tensors)
    seconds: dict[str, Array] = {}
    for placed in operators:
        operator = placed.operator
        local = local_sizes(placed, sizes, axis_sizes)
        factor = expert_imbalance if EXPERT_TOKENS in operator.dims else 1.0
        seconds[operator.name] = factor * _seconds(operator, tensors, local, chip, widths, internal)
    return seconds


def _seconds(
    operator: Operator,
    tensors: Mapping[str, Tensor],
    local: Sizes,
    chip: ChipUnits,
    widths: Mapping[Element, int],
    internal: frozenset[str],
) -> Array:
    if operator.kind is Kind.CONTRACTION:
        model = systolic_seconds if chip.systolic else gpu_seconds
        return model(gemm_of(operator, local), chip.matrix, widths[Element.COMPUTE])
    matrix = as_array(flops(operator, local, Unit.MATRIX, causal=True))
    vector = as_array(flops(operator, local, Unit.VECTOR, causal=True))
    moved = _moved_bytes(operator, tensors, local, widths, internal)
    if operator.kind in (Kind.ATTENTION, Kind.LINEAR_ATTENTION, Kind.STATE_SPACE, Kind.INDEXER):
        backward = operator.phase is not Phase.FORWARD
        return attention_seconds(matrix, vector, moved, chip.attention, backward=backward)
    if operator.outputs[0].tensor in internal:
        # runs inside the kernel of its consumer: its lanes work, its launch and traffic are the consumer's
        return vector / chip.vector.vector_flops
    return vector_seconds(vector, moved, chip.vector)


def _moved_bytes(
    operator: Operator,
    tensors: Mapping[str, Tensor],
    local: Sizes,
    widths: Mapping[Element, int],
    internal: frozenset[str],
) -> Array:
    total = as_array(bytes_read(operator, tensors, local, widths)) + as_array(
        bytes_written(operator, tensors, local, widths)
    )
    for operand in (*operator.inputs, *operator.outputs):
        if operand.tensor in internal:
            total = total - as_array(tensors[operand.tensor].bytes(local, widths))
    return np.maximum(total, 0.0)


def _internal_tensors(operators: Sequence[Operator], tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Tensors that never reach memory: made by a vector operator or ahead of a bias, used by one, not saved."""
    users: dict[str, list[Operator]] = {}
    saved: set[str] = set()
    for operator in operators:
        saved.update(operator.saves)
        for operand in operator.inputs:
            users.setdefault(operand.tensor, []).append(operator)
    internal: set[str] = set()
    for operator in operators:
        if operator.kind not in (Kind.ELEMENTWISE, Kind.CONTRACTION):
            continue
        name = operator.outputs[0].tensor
        consumers = users.get(name, [])
        fused = len(consumers) == 1 and consumers[0].kind is Kind.ELEMENTWISE
        epilogue = operator.kind is Kind.CONTRACTION and fused and consumers[0].function == "add"
        if fused and name not in saved and (operator.kind is Kind.ELEMENTWISE or epilogue):
            internal.add(name)
    return frozenset(n for n in internal if tensors[n].role in (Role.ACTIVATION, Role.GRADIENT))
