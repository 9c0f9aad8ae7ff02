"""Time of a layer's operators on one chip: each kind by its own model, chains of vector operators fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from dovetail.arrays import Floats, summed
from dovetail.cost.attention import AttentionUnits, attention_seconds, attention_work, scan_seconds
from dovetail.cost.contraction import MatrixUnits, gpu_seconds, off_chip_bytes, systolic_seconds
from dovetail.cost.experts import fullest_load
from dovetail.cost.shapes import Gemm, gemm_of, stacked
from dovetail.cost.vector import VectorUnits, vector_seconds
from dovetail.frozen import frozen
from dovetail.graph import Kind, Operator, Phase, Role, Tensor, Unit, bytes_read, bytes_written, flops
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.graph.size import SettledSizes, Size, Sizes, as_array, divided, product
from dovetail.graph.tensor import Element
from dovetail.layout import PlacedOperator, degree


@frozen
class Cores:
    """How many cores of each kind a chip has, and what a cycle is."""

    tensor_cores: Floats
    vector_cores: Floats
    clock_hz: Floats


#: Whether a layer's operators run side by side on parts of the cores: as a list schedule has it, or as none beats.
#: Asymptotic: the latter, for micro-batches so large that nobody schedules them.
Sharing = Literal["none", "scheduled", "least", "asymptotic"]


@frozen
class ChipUnits:
    """A chip (or an array of chips) as operator models see it, for one precision."""

    matrix: MatrixUnits
    #: for products that stay in half precision where a job multiplies in fewer bits
    half: MatrixUnits
    attention: AttentionUnits
    vector: VectorUnits
    systolic: bool
    cores: Cores
    sharing: Sharing = "none"
    #: bytes of an operand's element in the job's narrow format; None where there is none
    narrow_bytes: float | None = None
    #: bytes that change hands per element of an operand that is cast for a product; 0 where none is
    cast_bytes: float = 0.0
    #: bytes the loss moves per logit, forward and backward together; None: what its operator reads and writes
    loss_bytes: float | None = None


@dataclass(frozen=True)
class PlacedWork:
    """Operators under a layout and the sizes they have there: numbers, or arrays over cases."""

    operators: Sequence[PlacedOperator]
    tensors: Mapping[str, Tensor]
    sizes: Sizes
    axis_sizes: Mapping[str, Size]
    widths: Mapping[Element, int]
    expert_imbalance: float | None = 1.0
    """tokens of the fullest chip's experts over the mean; None: not stated"""

    @cached_property
    def local(self) -> Mapping[str, Sizes]:
        """Operator name → the sizes one chip sees; operators that are sharded alike see the same."""
        known: dict[tuple[object, ...], SettledSizes] = {}
        local: dict[str, SettledSizes] = {}
        for placed in self.operators:
            sharded = (tuple(placed.shards.items()), placed.operator.regroups)
            if sharded not in known:
                known[sharded] = SettledSizes(local_sizes(placed, self.sizes, self.axis_sizes))
            local[placed.operator.name] = known[sharded]
        return local

    @cached_property
    def internal(self) -> frozenset[str]:
        """Tensors that never reach memory."""
        return _internal_tensors([p.operator for p in self.operators], self.tensors)

    @cached_property
    def gemms(self) -> dict[str, Gemm]:
        """Operator name → the matrix product it is on one chip, of those that are one."""
        return {
            p.operator.name: gemm_of(p.operator, self.local[p.operator.name])
            for p in self.operators
            if p.operator.kind is Kind.CONTRACTION
        }

    @cached_property
    def flops(self) -> dict[str, tuple[Floats, Floats]]:
        """Operator name → operations of the matrix units and of the vector lanes on one chip."""
        return {
            p.operator.name: (
                as_array(flops(p.operator, self.local[p.operator.name], Unit.MATRIX, causal=True)),
                as_array(flops(p.operator, self.local[p.operator.name], Unit.VECTOR, causal=True)),
            )
            for p in self.operators
        }

    @cached_property
    def moved_bytes(self) -> dict[str, Floats]:
        """Operator name → bytes from and to memory when every operand that reaches it is touched once."""
        return {
            p.operator.name: _moved_bytes(
                p.operator, self.tensors, self.local[p.operator.name], self.widths, self.internal
            )
            for p in self.operators
            if p.operator.kind is not Kind.CONTRACTION
        }


def local_sizes(placed: PlacedOperator, sizes: Sizes, axis_sizes: Mapping[str, Size]) -> dict[str, Size]:
    """The sizes one chip sees: each dim divided by the axes that shard it."""
    local = dict(sizes)
    sharded_by: dict[str, list[str]] = {}
    for axis, dim in placed.shards.items():
        sharded_by.setdefault(dim, []).append(axis)
    for dim, axes in sharded_by.items():
        if dim in local:
            local[dim] = divided(local[dim], degree(axes, axis_sizes))
    for source, target in placed.operator.regroups:
        # tokens regrouped by expert are sharded as the tokens are
        if source in sharded_by and target not in sharded_by:
            local[target] = divided(local[target], degree(sharded_by[source], axis_sizes))
    return local


def operator_seconds(work: PlacedWork, chip: ChipUnits) -> dict[str, Floats]:
    """Operator name → seconds on one chip; the fullest chip decides where tokens lie by expert."""
    products = _product_seconds(work, chip)
    seconds: dict[str, Floats] = {}
    cast: set[str] = set()
    for operator in (placed.operator for placed in work.operators):
        if operator.name in products:
            alone = products[operator.name]
        else:
            alone = _seconds(operator, work, chip)
        if chip.cast_bytes and runs_narrow(operator, work.tensors):
            alone = alone + _cast_seconds(operator, work.tensors, work.local[operator.name], chip, cast)
        if quantized(operator, work.tensors):
            alone = alone + vector_seconds(np.zeros(()), dequantized_bytes(operator, work), chip.vector)
        seconds[operator.name] = _load(operator, work) * alone
    return seconds


def _load(operator: Operator, work: PlacedWork) -> Floats | float:
    """Tokens of the fullest chip over the mean where tokens lie by expert, else 1."""
    if EXPERT_TOKENS not in operator.dims:
        return 1.0
    own = as_array(work.local[operator.name]["experts"])
    return fullest_load(as_array(work.sizes["experts"]), own, work.expert_imbalance)


def kernel_counts(work: PlacedWork) -> dict[str, Floats]:
    """Operator name → kernels it launches; none where it runs inside the kernel of its consumer.

    Experts have as many tokens as happen to reach them, so their products are launched one by one (Transformer
    Engine, GroupedLinear; one matrix product per expert on several streams).
    """
    internal, locals_of = work.internal, work.local
    counts: dict[str, Floats] = {}
    for operator in (placed.operator for placed in work.operators):
        counts[operator.name] = np.asarray(float(operator.outputs[0].tensor not in internal))
        if operator.kind is Kind.CONTRACTION and EXPERT_TOKENS in operator.dims:
            counts[operator.name] = gemm_of(operator, locals_of[operator.name]).batch
        if quantized(operator, work.tensors):
            counts[operator.name] = counts[operator.name] + 1
    return counts


def operator_bytes(work: PlacedWork, chip: ChipUnits) -> dict[str, Floats]:
    """Operator name → bytes it moves from and to memory; none where it runs inside the kernel of its consumer."""
    internal, tensors = work.internal, work.tensors
    moved: dict[str, Floats] = {}
    for operator in (placed.operator for placed in work.operators):
        if operator.kind is Kind.CONTRACTION:
            narrow = chip.narrow_bytes if runs_narrow(operator, tensors) else None
            width = narrow or work.widths[Element.COMPUTE]
            moved[operator.name] = off_chip_bytes(work.gemms[operator.name], chip.matrix.buffer_bytes, width)
            if quantized(operator, tensors):
                moved[operator.name] = moved[operator.name] + dequantized_bytes(operator, work)
        elif operator.outputs[0].tensor in internal:
            moved[operator.name] = np.zeros(())
        else:
            times = PERMUTATIONS if operator.kind in (Kind.DISPATCH, Kind.COMBINE) else 1
            moved[operator.name] = times * work.moved_bytes[operator.name]
    return moved


def _product_seconds(work: PlacedWork, chip: ChipUnits) -> dict[str, Floats]:
    """Seconds of all matrix products, those of one precision in one call."""
    model = systolic_seconds if chip.systolic else gpu_seconds
    seconds: dict[str, Floats] = {}
    for narrow, units in ((True, chip.matrix), (False, chip.half)):
        products = (p.operator for p in work.operators if p.operator.kind is Kind.CONTRACTION)
        group = [o for o in products if runs_narrow(o, work.tensors) is narrow]
        if not group:
            continue
        gemm = stacked([work.gemms[o.name] for o in group], units.dims)
        width = chip.narrow_bytes if narrow and chip.narrow_bytes else work.widths[Element.COMPUTE]
        took = model(gemm, units, width)
        if not chip.systolic:
            # experts' tokens are filled up to whole tiles
            regular = np.array([EXPERT_TOKENS not in o.dims for o in group])
            unaligned = _unaligned_seconds(gemm, chip)
            took = np.maximum(took, np.where(regular.reshape(-1, *[1] * (np.ndim(unaligned) - 1)), unaligned, 0.0))
        seconds |= {o.name: took[position] for position, o in enumerate(group)}
    return seconds


def _seconds(operator: Operator, work: PlacedWork, chip: ChipUnits) -> Floats:
    """Seconds of an operator that is no product."""
    local, moved = work.local[operator.name], work.moved_bytes[operator.name]
    matrix, vector = work.flops[operator.name]
    backward = operator.phase is not Phase.FORWARD
    if operator.kind is Kind.ATTENTION:
        work_done = attention_work(operator, local, work.flops[operator.name], moved)
        return attention_seconds(work_done, chip.attention, backward=backward)
    if operator.kind in (Kind.LINEAR_ATTENTION, Kind.STATE_SPACE, Kind.INDEXER):
        return scan_seconds(matrix, vector, moved, chip.attention, backward=backward)
    if operator.kind is Kind.LOSS and chip.loss_bytes is not None:
        logits = as_array(product(local, operator.work[0].dims))
        return logits * chip.loss_bytes / 2 / chip.matrix.memory_bytes_per_s + chip.vector.launch_s
    if operator.kind in (Kind.DISPATCH, Kind.COMBINE):
        moved = PERMUTATIONS * moved
    if operator.outputs[0].tensor in work.internal:
        # runs inside the kernel of its consumer: its lanes work, its launch and traffic are the consumer's
        return vector / chip.vector.vector_flops
    return vector_seconds(vector, moved, chip.vector)


#: Tokens are sorted by chip before they travel, by expert after, and back (Megatron Core, token_dispatcher.py).
PERMUTATIONS = 2

#: Batches of products whose rows are no multiple of 16 bytes cannot be loaded by matrix units: they run on vector
#: lanes, at this part of their rate. From pairs of BLOOM's trial runs that differ in head_dim alone (150 against 128).
UNALIGNED_RATE = 0.54
ALIGNMENT = 8


def _unaligned_seconds(gemm: Gemm, chip: ChipUnits) -> Floats:
    """Seconds of batched products with sizes the matrix units cannot take; 0 where they can."""
    aligned = (gemm.m % ALIGNMENT == 0) & (gemm.n % ALIGNMENT == 0) & (gemm.k % ALIGNMENT == 0)
    return np.where((gemm.batch > 1) & ~aligned, gemm.flops / (UNALIGNED_RATE * chip.vector.vector_flops), 0.0)


def runs_narrow(operator: Operator, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a product is among those a job of fewer bits casts: those with weights, but for router and logits.

    Transformer Engine's fp8 recipes cast the linear layers of the blocks (its user guide, "Using FP8"); Megatron
    keeps router and output layer in higher precision.
    """
    if operator.kind is not Kind.CONTRACTION:
        return False
    weights = operator.phase is Phase.WEIGHT_GRADIENT or any(
        tensors[operand.tensor].role is Role.WEIGHT for operand in operator.inputs
    )
    return weights and operator.name.partition(".")[0] not in ("router", "logits")


def _cast_seconds(
    operator: Operator, tensors: Mapping[str, Tensor], local: Sizes, chip: ChipUnits, cast: set[str]
) -> Floats:
    """Casting the operands that no product before needed, which are added to `cast`; weight gradients find theirs."""
    if operator.phase is Phase.WEIGHT_GRADIENT:
        return np.zeros(())
    one = dict.fromkeys(Element, 1)
    streams = [o.tensor for o in operator.inputs if tensors[o.tensor].role is not Role.WEIGHT and o.tensor not in cast]
    cast.update(streams)
    elements = summed(as_array(tensors[name].bytes(local, one)) for name in streams)
    return elements * chip.cast_bytes / chip.vector.memory_bytes_per_s


def quantized(operator: Operator, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a product multiplies a weight of 4 bits, which is written out in the job's elements first."""
    return any(tensors[operand.tensor].element is Element.NF4 for operand in operator.inputs)


def dequantized_bytes(operator: Operator, work: PlacedWork) -> Floats:
    """Bytes that move to write the 4-bit weights of a product out: they are read, and copies are written."""
    local, wide = work.local[operator.name], work.widths[Element.COMPUTE]
    weights = [t for o in operator.inputs if (t := work.tensors[o.tensor]).element is Element.NF4]
    return summed(as_array(t.bytes(local, work.widths)) + wide * as_array(t.points(local)) for t in weights)


def _moved_bytes(
    operator: Operator,
    tensors: Mapping[str, Tensor],
    local: Sizes,
    widths: Mapping[Element, int],
    internal: frozenset[str],
) -> Floats:
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
