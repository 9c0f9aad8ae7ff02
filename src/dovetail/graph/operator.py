"""Operators over named dims: an einsum with extras, so that one rule answers every sharding question."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from typing import TypeAlias

from dovetail.frozen import frozen
from dovetail.graph.mask import Mask

Attribute: TypeAlias = "int | float | str | bool"


def _no_attributes() -> dict[str, Attribute]:
    return {}


class Kind(StrEnum):
    """What an operator does; a cost model and a differentiation rule exist per kind."""

    CONTRACTION = "contraction"
    ATTENTION = "attention"
    LINEAR_ATTENTION = "linear_attention"
    STATE_SPACE = "state_space"
    INDEXER = "indexer"
    CONVOLUTION = "convolution"
    ELEMENTWISE = "elementwise"
    NORMALISATION = "normalisation"
    SOFTMAX = "softmax"
    EMBEDDING = "embedding"
    ROUTING = "routing"
    DISPATCH = "dispatch"
    COMBINE = "combine"
    MOVEMENT = "movement"
    LOSS = "loss"
    OPTIMIZER = "optimizer"


class Phase(StrEnum):
    """When an operator runs; zero-bubble schedules need the two gradients separately."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"
    OPTIMIZER = "optimizer"


class Unit(StrEnum):
    """Which part of a core does the work."""

    MATRIX = "matrix"
    VECTOR = "vector"


@frozen
class Work:
    """Floating-point operations: so many per point of the box these dims span."""

    dims: tuple[str, ...]
    flops_per_point: int
    unit: Unit


@frozen
class Exchange:
    """What shards exchange when `dim` is sharded: `values` numbers per point of `dims`."""

    dim: str
    dims: tuple[str, ...]
    values: int = 1
    #: handed to the next shard in order (a scan's state, a halo) instead of combined by all
    passed_on: bool = False


@frozen
class Operand:
    """A tensor as an operator sees it: the operator's dim for each of the tensor's dims."""

    tensor: str
    indices: tuple[str, ...]


@frozen
class DimSplit:
    """What sharding one dim of an operator means."""

    dim: str
    #: tensors sharded with the dim; the others are needed whole by every shard
    sharded: tuple[str, ...]
    replicated: tuple[str, ...]
    #: outputs that become partial sums
    partial: tuple[str, ...]
    #: statistics the shards exchange
    exchanges: tuple[Exchange, ...]


@frozen
class Operator:
    """One step of a layer: operands over named dims, work, and what its backward saves."""

    name: str
    kind: Kind
    #: which member of the kind: "gelu", "rms", "cross_entropy"; gradients end in ".grad"
    function: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    work: tuple[Work, ...] = ()
    #: forward tensors its backward reads, except weights
    saves: tuple[str, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    #: dims that must stay whole on a chip
    indivisible: tuple[str, ...] = ()
    #: an input dim and the output dim it becomes: a split of the one is a split of the other
    regroups: tuple[tuple[str, str], ...] = ()
    mask: Mask | None = None
    phase: Phase = Phase.FORWARD
    #: operators with the same non-empty label run as one kernel
    fusion: str = ""
    attributes: Mapping[str, Attribute] = field(default_factory=_no_attributes)
    #: the iteration space: every dim that indexes an operand, in order of appearance
    dims: tuple[str, ...] = field(init=False, repr=False, compare=False)
    #: `split` of every dim asked for so far: layouts ask again and again
    _splits: dict[str, DimSplit | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", union(o.indices for o in (*self.inputs, *self.outputs)))
        object.__setattr__(self, "_splits", {})

    def split(self, dim: str) -> DimSplit | None:
        """The one sharding rule (None: this dim cannot be split).

        Indexing inputs and output: no communication. Reduced: a partial output, unless the
        operator is nonlinear over the dim and states an exchange. Absent from an operand: replicated.
        """
        if dim not in self._splits:
            self._splits[dim] = self._split(dim)
        return self._splits[dim]

    def _split(self, dim: str) -> DimSplit | None:
        if dim in self.indivisible or dim not in self.dims:
            return None
        same = {dim} | {b for a, b in self.regroups if a == dim} | {a for a, b in self.regroups if b == dim}
        exchanges = tuple(e for e in self.exchanges if e.dim == dim)
        operands = (*self.inputs, *self.outputs)
        sharded = tuple(o.tensor for o in operands if same & set(o.indices))
        replicated = tuple(o.tensor for o in self.inputs if not same & set(o.indices))
        lacking = tuple(o.tensor for o in self.outputs if not same & set(o.indices))
        completed = any(not e.passed_on for e in exchanges)
        return DimSplit(dim, sharded, replicated, () if completed else lacking, exchanges)


def union(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """All names once, in order of first appearance."""
    return tuple(dict.fromkeys(name for group in groups for name in group))


def matrix_work(*boxes: tuple[str, ...]) -> tuple[Work, ...]:
    """A multiply and an add per point of each box."""
    return tuple(Work(box, 2, Unit.MATRIX) for box in boxes)


def vector_work(dims: tuple[str, ...], flops_per_point: int) -> tuple[Work, ...]:
    """Elementwise work over a box; none where it only moves data."""
    return (Work(dims, flops_per_point, Unit.VECTOR),) if flops_per_point else ()
