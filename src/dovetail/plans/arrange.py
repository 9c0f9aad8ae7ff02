"""A plan on a cluster: its degrees as axes on network tiers, and the strategy that shards operators along them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.graph import ModelGraph
from dovetail.hardware import Cluster
from dovetail.hardware.network import ways
from dovetail.layout import Mesh, Strategy
from dovetail.layout.axes import AtomicAxes, Degrees, atomic_axes, joined_by_tier
from dovetail.layout.encoding import FreeStrategy, MeshAxis, TileLayouts
from dovetail.layout.encoding.shards import TileAxes, axis_name
from dovetail.layout.rectangles import rectangles
from dovetail.plans.plan import Plan
from dovetail.plans.zero_stage import effective_zero_stage

#: The axis between stages, where those inside a stage are named by what they serve.
PIPELINE = "pipeline"


@frozen
class Arrangement:
    """The axes of one pipeline stage, and what each of them shards."""

    axes: AtomicAxes
    strategy: Strategy
    #: by axis (and PIPELINE): how many groups it joins along every way of the network, and their stride
    joins: Mapping[str, tuple[int, ...]]
    strides: Mapping[str, tuple[int, ...]]


def arrange(plan: Plan, graph: ModelGraph, cluster: Cluster, rule: str = "megatron") -> Arrangement:
    """How the chips of a stage share the layers of a model, by the `rule` of a framework's tensor parallelism."""
    if plan.layouts is not None:
        return _arrange_tile(plan.layouts, plan.zero_stage, plan.pipeline_parallel, cluster)
    axes = _axes(plan.degrees(_kv_heads(graph)), tuple(_stage_tiers(plan, cluster)))
    strategy = Strategy(
        axes.mesh,
        rule,
        sequence_parallel=plan.sequence_parallel,
        context=plan.context_kind,
        zero_stage=effective_zero_stage(plan.zero_stage, plan.pipeline_parallel),
    )
    joins, strides = _along_ways(plan, cluster, axes)
    return Arrangement(axes, strategy, joins, strides)


@lru_cache(maxsize=4096)
def _axes(degrees: Degrees, tier_sizes: tuple[int, ...]) -> AtomicAxes:
    """`atomic_axes`, which plans that differ in other fields share."""
    return atomic_axes(degrees, tier_sizes)


def _arrange_tile(layouts: TileLayouts, zero_stage: int, stages: int, cluster: Cluster) -> Arrangement:
    """Layouts on the tile of a stage: each of its atomic axes runs along the rows or columns of a grid of dies.

    Without a grid the chips of a stage are one row, and groups are on tiers as they nest.
    """
    axes = layouts.axes()
    sizes = axes.sizes()
    # for the breakdown: what goes between operators counts as tensor-parallel
    mesh = Mesh(tensor=tuple(sizes))
    joins, strides = tile_ways(layouts.rows, layouts.cols, axes, stages, cluster)
    atomic = AtomicAxes(mesh, sizes, {axis: joins[axis] for axis in sizes})
    return Arrangement(atomic, FreeStrategy.on(layouts, zero_stage), joins, strides)


def tile_ways(
    rows: int, cols: int, axes: TileAxes, stages: int, cluster: Cluster
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Of a tile's atomic axes and the pipeline: groups along every way of the network, and their stride."""
    tiers, along = cluster.tiers, ways(cluster.tiers)
    joins: dict[str, tuple[int, ...]] = {}
    strides: dict[str, tuple[int, ...]] = {}
    if not any(tier.routed for tier in tiers):
        if rows > 1:
            raise InputError("plan: layouts.tile", f"has {rows} rows", "a cluster without a grid has 1")
        ends = [tier.size for tier in tiers] or [1]
        for low, high in pairwise(axes.cols):
            joins[axis_name(MeshAxis.COLS, low)] = joined_by_tier(low, high, ends)
        joins[PIPELINE] = joined_by_tier(cols, cols * stages, ends)
        return joins, {axis: (1,) * len(ends) for axis in joins}
    if not (tiers[0].routed and len(tiers[0].shape) == 2):
        raise InputError("plan: layouts", f"do not fit the network of {cluster.name}", "take a wafer or a cluster")
    for number, axis in enumerate(MeshAxis):
        for low, high in pairwise(axes.ends(axis)):
            joins[axis_name(axis, low)] = tuple(high // low if way == number else 1 for way in range(len(along)))
            strides[axis_name(axis, low)] = tuple(low if way == number else 1 for way in range(len(along)))
    grid = tiers[0].shape
    if rows > grid[0] or cols > grid[1]:
        raise InputError(
            "plan: layouts.tile", f"is {rows} × {cols} on {grid[0]} × {grid[1]} dies", "use a smaller tile"
        )
    slots = (grid[0] // rows, grid[1] // cols)
    # a snake that fills the slots of a column first, then columns, then wafers
    lines = min(-(-stages // slots[0]), slots[1])
    beyond = -(-stages // math.prod(slots))
    filled = (min(stages, slots[0]), lines)
    joins[PIPELINE] = (*filled, *[beyond if way == 2 else 1 for way in range(2, len(along))])
    strides[PIPELINE] = (rows, cols, *[1] * (len(along) - 2))
    return joins, strides


def _along_ways(
    plan: Plan, cluster: Cluster, axes: AtomicAxes
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Groups by way of the network: in tiers as they nest, on routed grids as rectangles inside rectangles."""
    tiers = cluster.tiers
    by_tier = dict(axes.by_tier)
    sizes = [tier.size for tier in tiers] or [1]
    inside, whole = plan.tensor_parallel * plan.context_parallel, plan.chips // plan.pipeline_parallel
    low = inside if plan.stages_inside else whole
    by_tier[PIPELINE] = joined_by_tier(low, low * plan.pipeline_parallel, sizes)
    if not any(tier.routed for tier in tiers):
        return by_tier, {axis: (1,) * len(sizes) for axis in by_tier}
    order = _from_inside(axes, inside if plan.stages_inside else None)
    joins: dict[str, list[int]] = {axis: [] for axis in order}
    strides: dict[str, list[int]] = {axis: [] for axis in order}
    for number, tier in enumerate(tiers):
        here = tuple(by_tier[axis][number] for axis in order)
        parts = rectangles(here, tier.shape) if tier.routed else tuple((n,) for n in here)
        spacing = [1] * len(parts[0])
        for axis, part in zip(order, parts, strict=True):
            joins[axis] += part
            strides[axis] += spacing if tier.routed else [1]
            spacing = [stride * factor for stride, factor in zip(spacing, part, strict=True)]
    return {axis: tuple(n) for axis, n in joins.items()}, {axis: tuple(n) for axis, n in strides.items()}


def stage_hops(arrangement: Arrangement, cluster: Cluster) -> int | None:
    """How many links of a routed grid are between a chip and its peer of the next stage; None in other networks.

    Stages follow each other in a snake, so that neighbours in the pipeline are neighbours on the grid.
    """
    along = zip(ways(cluster.tiers), arrangement.joins[PIPELINE], arrangement.strides[PIPELINE], strict=True)
    hops = [stride for way, n, stride in along if way.axis is not None and n > 1]
    # tiles of layouts also turn the corners of their snake
    longest = max if isinstance(arrangement.strategy, FreeStrategy) else min
    return longest(hops) if hops else None


def _from_inside(axes: AtomicAxes, replica_chips: int | None) -> list[str]:
    """Axes from the innermost outwards, the pipeline behind those of one replica, or behind all."""
    order: list[str] = []
    low = 1
    for axis, size in axes.sizes.items():
        if low == replica_chips:
            order.append(PIPELINE)
        order.append(axis)
        low *= size
    return order if PIPELINE in order else [*order, PIPELINE]


def _stage_tiers(plan: Plan, cluster: Cluster) -> list[int]:
    """How many chips of one stage every tier holds; with stages inside, replicas have the stride of a pipeline."""
    sizes = [tier.size for tier in cluster.tiers] or [1]
    if not plan.stages_inside:
        return sizes
    replica_chips, p = plan.tensor_parallel * plan.context_parallel, plan.pipeline_parallel
    return [
        size if size <= replica_chips else size // p if size >= replica_chips * p and size % p == 0 else replica_chips
        for size in sizes
    ]


def _kv_heads(graph: ModelGraph) -> int:
    """The fewest key heads of any layer: tensor parallelism beyond them shards query groups."""
    heads = [layer.sizes.get("kv_heads") for layer in graph.layers.values()]
    return min((h for h in heads if isinstance(h, int)), default=2**20)
