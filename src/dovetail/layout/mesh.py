"""The mesh: ordered atomic axes, each on one network tier; parallelism degrees are lists of axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.frozen import frozen
from dovetail.graph.size import Size, product


@frozen
class Mesh:
    """Which axes each kind of parallelism uses, innermost first; an axis may serve several kinds.

    Sizes are given when a layout is evaluated, not here: what must be exchanged depends on which axes
    exist, how much on their sizes, so one derivation serves arrays of degrees.
    """

    data: tuple[str, ...] = ()
    tensor: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    #: subsets of the axes above along which experts are distributed, and along which an expert is sharded
    expert: tuple[str, ...] = ()
    expert_tensor: tuple[str, ...] = ()
    #: subset of data and context axes over which weights and optimizer state are sharded (ZeRO, FSDP)
    zero: tuple[str, ...] = ()
    #: tensor axes (with Ulysses, context axes too) that shard query groups, beyond the number of key heads
    group: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        axes = self.axes
        assert len(set(axes)) == len(axes), "an axis is one of tensor, context and data"
        assert not set(self.expert) & set(self.expert_tensor), "an axis distributes experts or shards each of them"
        assert set(self.expert) | set(self.expert_tensor) <= set(axes), "experts lie on axes of the mesh"
        assert set(self.zero) <= {*self.data, *self.context}, "weights are sharded where they are replicated"
        assert set(self.group) <= {*self.tensor, *self.context}, "query groups are sharded along tensor or context axes"

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis once: tensor, then context, then data."""
        return (*self.tensor, *self.context, *self.data)


def degree(axes: Iterable[str], sizes: Mapping[str, Size]) -> Size:
    """How many chips a group along these axes has."""
    return product(sizes, axes)
