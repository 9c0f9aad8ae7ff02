"""A tile of dies and its atomic axes: the mesh of a layout search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, permutations
from operator import mul

from dovetail.graph import LayerGraph
from dovetail.graph.size import Sizes
from dovetail.hardware import Cluster
from dovetail.layout.encoding import TileAxes
from dovetail.layout.encoding.factor import primes
from dovetail.layout.encoding.rules import divides
from dovetail.plans.arrange import tile_ways


@dataclass(frozen=True)
class LayerTile:
    """Atomic axes of a tile, and which of them shard tokens by sequence and heads by query group."""

    rows: int
    cols: int
    axes: TileAxes
    #: tokens are sharded along these axes as `batch`, along all others as `seq`
    batch_axes: tuple[str, ...] = ()
    #: attention shards query groups along these axes, and nothing shards them along others
    group_axes: tuple[str, ...] = ()

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Each axis and its size, sorted by name as conversions expect."""
        return dict(sorted(self.axes.sizes().items()))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The axes in that order."""
        return tuple(self.sizes)

    def ways(self, cluster: Cluster) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        """How many groups each axis joins along every way of a cluster's network, and their strides."""
        return tile_ways(self.rows, self.cols, self.axes, 1, cluster)


def axis_orders(rows: int, cols: int) -> tuple[TileAxes, ...]:
    """The atomic axes of a tile: the prime factors along its rows and columns in every order."""
    rows_ends, cols_ends = (
        sorted({tuple(accumulate(order, mul, initial=1)) for order in permutations(primes(n))}) for n in (rows, cols)
    )
    return tuple(TileAxes(r, c) for r in rows_ends for c in cols_ends)


def tiles(graph: LayerGraph, sizes: Sizes, rows: int, cols: int) -> Iterator[LayerTile]:
    """Every tile of these dies with different axes, token sharding or query-group sharding.

    Query groups are sharded only by the dies left over once key heads are sharded as far as possible.
    """
    for axes in axis_orders(rows, cols):
        axis_sizes = axes.sizes()
        for batch in _subsets(axis_sizes, lambda n: "batch" in sizes and divides("batch", sizes, n)):
            for group in _subsets(axis_sizes, lambda n: _shards_groups(graph, sizes, n, rows * cols)):
                yield LayerTile(rows, cols, axes, batch, group)


def _shards_groups(graph: LayerGraph, sizes: Sizes, parts: int, dies: int) -> bool:
    heads, group = graph.sizes.get("kv_heads"), graph.sizes.get("group")
    if not isinstance(heads, int) or not isinstance(group, int):
        return False
    beyond = dies // math.gcd(dies, heads)
    return divides("group", sizes, parts) and beyond % parts == 0


def _subsets(sizes: Mapping[str, int], fits: Callable[[int], bool]) -> list[tuple[str, ...]]:
    names = tuple(sizes)
    subsets: list[tuple[str, ...]] = []
    for bits in range(1 << len(names)):
        subset = tuple(name for position, name in enumerate(names) if bits >> position & 1)
        if not subset or fits(math.prod(sizes[name] for name in subset)):
            subsets.append(subset)
    return subsets
