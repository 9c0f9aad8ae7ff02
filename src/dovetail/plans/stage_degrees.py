"""Stage degrees: every way the chips of a stage can share a layer, whatever the pipeline and replicas."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.graph import ModelGraph
from dovetail.hardware import Cluster
from dovetail.layout.strategy import ContextKind, Strategy
from dovetail.models import Job
from dovetail.plans.arrange import Arrangement, arrange
from dovetail.plans.model_limits import DimShard, dim_shards, nests
from dovetail.plans.plan import Plan
from dovetail.plans.rules import broken
from dovetail.plans.runs import rules_of
from dovetail.plans.space import Space


@frozen
class StageDegrees:
    """Degrees inside a stage, as a plan with only the replicas its experts need."""

    plan: Plan
    arranged: Arrangement

    @property
    def replica_chips(self) -> int:
        """Chips of one replica of a stage."""
        return self.plan.tensor_parallel * self.plan.context_parallel

    @property
    def min_replicas(self) -> int:
        """Replicas its experts are spread over: the number of replicas is a multiple of it."""
        return self.plan.data_parallel


def stage_degrees(job: Job, cluster: Cluster, framework: Framework, space: Space) -> list[StageDegrees]:
    """All stage degrees that the model and the framework allow."""
    graph = job.graph()
    shards_of: dict[Strategy, tuple[DimShard, ...]] = {}
    suitable: list[StageDegrees] = []
    rules = rules_of(framework)
    for plan in degree_plans(graph, cluster.chips, space):
        if (
            cluster.chips % plan.chips
            or not nests(plan, plan.data_parallel, 1)
            or broken(rules, "degrees", plan, job, framework)
        ):
            continue
        try:
            arranged = arrange(plan, graph, cluster, framework.tensor_rule)
        except InputError:
            continue  # groups that share key heads do not nest with those that share experts
        if arranged.strategy not in shards_of:
            shards_of[arranged.strategy] = dim_shards(graph, job.seq_len, arranged.strategy)
        sizes = arranged.axes.sizes
        if all(shard.size % prod(sizes[axis] for axis in shard.axes) == 0 for shard in shards_of[arranged.strategy]):
            suitable.append(StageDegrees(plan, arranged))
    return suitable


def degree_plans(graph: ModelGraph, chips: int, space: Space) -> Iterator[Plan]:
    """Plans of one stage with only the replicas their experts need.

    They carry the fields that no step of the search knows by name, each value of them with all the rest.
    """
    has_experts = any("experts" in layer.sizes for layer in graph.layers.values())
    for t, c in product(space.tensor_parallel, space.context_parallel):
        if chips % (t * c):
            continue
        kinds: tuple[ContextKind, ...] = space.context_kind if c > 1 else ("all_gather",)
        along_sequence = space.sequence_parallel if t > 1 else (False,)
        experts = list(_experts(space, t)) if has_experts else [(1, t)]
        for kind, sequence, (e, inner), others in product(kinds, along_sequence, experts, space.product()):
            yield Plan(
                data_parallel=max(1, e * inner // (t * c)),
                tensor_parallel=t,
                context_parallel=c,
                context_kind=kind,
                expert_parallel=e,
                expert_tensor_parallel=inner,
                zero_group=1,
                sequence_parallel=sequence,
                num_microbatches=1,
                pipeline_schedule="1f1b",
                layers_per_stage=(),
                **others,
            )


def _experts(space: Space, t: int) -> Iterator[tuple[int, int]]:
    inner = sorted({n for n in space.expert_tensor_parallel if t % n == 0})
    yield from product(space.expert_parallel, inner)
