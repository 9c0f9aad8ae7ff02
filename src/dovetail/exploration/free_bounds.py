"""Lower bounds of all free mappings on many wafers at once (L0 of free studies): work, memory and store.

Why they hold. A stage runs its operators one after the other on its dies, each die at what its units sustain. However
an operator is sharded, some die has at least its share of the operations and of every operand's bytes, so the operator
takes at least the longest of these shares at the rates of a die. Summed over operators, blocks and micro-batches that
is a stage's time in a step; the busiest stage takes at least their mean, and stages have at most all dies together.
Weights are read from memory at least once a step, since all sequences may be one micro-batch. Messages, fills of a
pipeline, recomputation and the optimizer come on top of all this.

State must be somewhere: on dies, or in a store off the wafer. A parameter whose state is not all on dies has its
gradient sent to the store, or its weight sent back, at least once a step, beside computation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dovetail.arrays import TOLERANCE, Floats
from dovetail.bounds.least_work import least_work
from dovetail.cost.calibration import calibration
from dovetail.cost.operators import ChipUnits, PlacedWork, runs_narrow
from dovetail.cost.units import OPERANDS
from dovetail.exploration.wafers import least_state_bytes, sram_bytes
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.graph import Kind, LayerGraph, Operator, Phase, Tensor, differentiate
from dovetail.graph.tensor import Element
from dovetail.hardware import Cluster
from dovetail.hardware.wafer_design import WaferDesigns
from dovetail.layout import PlacedOperator
from dovetail.models import Job
from dovetail.step.evaluate import units_of
from dovetail.step.facts import facts_of

#: Kinds whose products run inside one kernel.
_FUSED = (Kind.ATTENTION, Kind.LINEAR_ATTENTION, Kind.STATE_SPACE, Kind.INDEXER)


@frozen
class OperatorWork:
    """What an operator asks of all dies together in a step, and which part of their peaks it sustains at most."""

    matrix_flops: float
    vector_flops: float
    moved_bytes: float
    #: products in half precision where the job multiplies in fewer bits
    half: bool
    matrix_efficiency: float
    memory_efficiency: float


@frozen
class StepWork:
    """The work of all operators of a step."""

    operators: tuple[OperatorWork, ...]
    precision: str

    @staticmethod
    def of(job: Job, cluster: Cluster, framework: Framework) -> StepWork:
        """That of a job on chips like those of a cluster: their peaks may differ, but not what they sustain of them."""
        efficiencies = calibration(cluster.chip, job.precision).efficiencies
        units = units_of(job, cluster, facts_of(framework, job), efficiencies)
        graph, asked = job.graph(), list[OperatorWork]()
        for name, count in graph.counts().items():
            asked += _layer_work(job, graph.layers[name], count, units, float(efficiencies.memory))
        return StepWork(tuple(asked), job.precision)

    def seconds(self, designs: WaferDesigns, dies: Floats) -> Floats:
        """The lowest seconds of a step on so many dies of each design."""
        peak, half = designs.peak_flops(OPERANDS[self.precision]), designs.peak_flops("bf16")
        lanes = 2 * designs.vector_cores * designs.vector_lanes * designs.clock_hz
        memory = streaming_bytes_per_s(designs)
        total = np.zeros(np.broadcast_shapes(designs.shape, np.shape(dies)))
        for each in self.operators:
            rate = np.minimum(peak, half) if each.half else peak
            products = each.matrix_flops / (rate * each.matrix_efficiency)
            moved = each.moved_bytes / (memory * each.memory_efficiency)
            total += np.maximum(np.maximum(products, each.vector_flops / lanes), moved)
        return total / dies


def streaming_bytes_per_s(designs: WaferDesigns) -> Floats:
    """As of a chip: a die without off-chip memory streams from its own."""
    shared, core = designs.shared_sram_bytes_per_s, designs.vector_cores * designs.core_sram_bytes_per_s
    on_chip = np.where(np.isfinite(shared) & (shared > 0), shared, core)
    return np.where(designs.hbm_bytes_per_s > 0, designs.hbm_bytes_per_s, on_chip)


def _layer_work(job: Job, layer: LayerGraph, count: int, units: ChipUnits, memory: float) -> Iterator[OperatorWork]:
    """The operators of all layers of a class, with all sequences of a step in one micro-batch."""
    backward = differentiate(layer)
    sizes = layer.resolve(batch=job.global_batch, seq=job.seq_len)
    widths = job.element_bytes()
    for operators, tensors in ((layer.operators, layer.tensors), (backward.graph.operators, backward.graph.tensors)):
        work = PlacedWork([PlacedOperator(each, {}) for each in operators], tensors, sizes, {}, widths)
        for operator in operators:
            yield _operator_work(operator, work, tensors, count, units, memory)


def _operator_work(
    operator: Operator, work: PlacedWork, tensors: Mapping[str, Tensor], count: int, units: ChipUnits, memory: float
) -> OperatorWork:
    matrix, vector = (count * float(part) for part in work.flops[operator.name])
    if operator.kind is Kind.CONTRACTION:
        narrow = runs_narrow(operator, tensors)
        gemm, width = work.gemms[operator.name], work.widths[Element.COMPUTE]
        width = min(width, units.narrow_bytes or width)
        # each operand is read and the result written once at least, whatever blocks fit the die
        moved = count * width * float(gemm.batch * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n))
        own = units.matrix if narrow else units.half
        return OperatorWork(matrix, 0.0, moved, not narrow, float(own.sustained), memory)
    if operator.kind in _FUSED:
        attention, backward = units.attention, operator.phase is not Phase.FORWARD
        reached = float(attention.backward_efficiency if backward else attention.forward_efficiency)
        return OperatorWork(matrix, vector, count * float(work.moved_bytes[operator.name]), True, reached, memory)
    if operator.kind is Kind.LOSS:
        # fused kernels make it while they read the logits
        return OperatorWork(0.0, 0.0, 0.0, False, 1.0, 1.0)
    moved = 0.0 if operator.outputs[0].tensor in work.internal else count * float(work.moved_bytes[operator.name])
    # products outside of these kinds are priced as work of the lanes alone
    traffic = float(units.matrix.memory_bytes_per_s / units.vector.memory_bytes_per_s)
    return OperatorWork(0.0, vector, moved, False, 1.0, memory / traffic)


def least_free_seconds(
    jobs: Sequence[Job],
    framework: Framework,
    designs: WaferDesigns,
    wafers: int,
    works: Sequence[StepWork],
) -> Floats:
    """Lower bounds of all free mappings on a number of each wafer: designs × jobs, in seconds.

    Infinite if dies and stores together cannot hold the state of the weights, if no row of dies is left, or if several
    wafers have no links between them.
    """
    dies = np.broadcast_to(designs.planned_dies, designs.shape)
    usable = (dies >= 1) & ((designs.edge_bytes_per_s > 0) | (wafers == 1))
    all_dies = np.where(usable, dies, 1.0) * wafers
    on_dies = np.where(designs.hbm_bytes > 0, designs.hbm_bytes, sram_bytes(designs)) * all_dies
    stored = np.broadcast_to(designs.store_bytes * wafers, designs.shape)
    columns: list[Floats] = []
    for job, work in zip(jobs, works, strict=True):
        state = framework.state_bytes(job.precision)
        needed = least_state_bytes(job, framework)
        asked = least_work(job, None)
        sent = max(state.weights, state.gradients) * (asked.dense_parameters + asked.expert_parameters)
        off_dies = np.clip(1 - on_dies / needed, 0.0, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            streamed = np.where(off_dies > 0, off_dies * sent / (wafers * designs.store_bytes_per_s), 0.0)
        seconds = np.maximum(work.seconds(designs, all_dies), streamed) * (1 - TOLERANCE)
        columns.append(np.where(usable & (on_dies + stored >= needed), seconds, np.inf))
    return np.stack(columns, axis=-1)
