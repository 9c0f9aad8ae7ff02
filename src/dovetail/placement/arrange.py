"""A plan on a cluster: its degrees as axes on network tiers, and the strategy that cuts operators along them."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.graph import ModelGraph
from dovetail.hardware import Cluster
from dovetail.layout import Strategy
from dovetail.layout.axes import AtomicAxes, atomic_axes
from dovetail.placement.plan import Plan


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The axes of one pipeline stage, and what each of them cuts."""

    axes: AtomicAxes
    strategy: Strategy


def arrange(plan: Plan, graph: ModelGraph, cluster: Cluster) -> Arrangement:
    """How the chips of a stage share the layers of a model."""
    axes = atomic_axes(plan.degrees(_kv_heads(graph)), _stage_tiers(plan, cluster))
    strategy = Strategy(
        axes.mesh,
        sequence_parallel=plan.sequence_parallel,
        context=plan.context_kind,
        # a pipeline accumulates the gradients of its microbatches before it reduces them, sharded or not
        zero_stage=1 if plan.zero_stage == 2 and plan.pipeline_parallel > 1 else plan.zero_stage,
    )
    return Arrangement(axes, strategy)


def _stage_tiers(plan: Plan, cluster: Cluster) -> list[int]:
    """How many chips of one stage every tier holds; with stages inside, copies lie the whole pipeline apart."""
    sizes = [tier.size for tier in cluster.tiers] or [1]
    if not plan.stages_inside:
        return sizes
    copy, p = plan.tensor_parallel * plan.context_parallel, plan.pipeline_parallel
    return [size if size <= copy else size // p if size >= copy * p and size % p == 0 else copy for size in sizes]


def _kv_heads(graph: ModelGraph) -> int:
    """The fewest key heads of any layer: tensor parallelism beyond them cuts query groups."""
    heads = [layer.sizes.get("kv_heads") for layer in graph.layers.values()]
    return min((h for h in heads if isinstance(h, int)), default=2**20)
