"""Plan skeletons: stage degrees, pipeline, replicas and micro-batch, as columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from dovetail.arrays import Bools, Ints, distinct
from dovetail.frameworks import Framework
from dovetail.frameworks.framework import AxisOrder
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.model_limits import nests, stays_on_tiers
from dovetail.plans.partitions import is_free, listed_partitions
from dovetail.plans.pipeline_schedule import MAX_CHUNK_RUNS, SCHEDULE_CODES, Pipeline, PipelineSchedule
from dovetail.plans.plan import Plan
from dovetail.plans.rules import broken
from dovetail.plans.runs import rules_of
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import StageDegrees

#: Rank orders, by `PlanSkeletons.inside`.
AXIS_ORDERS: tuple[AxisOrder, AxisOrder] = ("tp-cp-dp-pp", "tp-cp-pp-dp")
NAMES = {number: schedule.value for schedule, number in SCHEDULE_CODES.items()}


@frozen
class PlanSkeletons:
    """Columns over skeletons; `degrees` are numbers of stage degrees, `profile` of layer profiles."""

    degrees: Ints
    stages: Ints
    replicas: Ints
    micro_batch: Ints
    microbatches: Ints
    #: 1 where stages are inside replicas in the rank order
    inside: Ints
    schedule: Ints
    chunks: Ints
    profile: Ints

    def __len__(self) -> int:
        return len(self.degrees)

    def take(self, which: Ints | Bools) -> PlanSkeletons:
        """Some of them, in this order."""
        return PlanSkeletons(*(getattr(self, field.name)[which] for field in fields(self)))


def plan_skeletons(
    job: Job,
    cluster: Cluster,
    framework: Framework,
    space: Space,
    degrees: Sequence[StageDegrees],
    selected: Bools,
) -> PlanSkeletons:
    """All skeletons of selected stage degrees × the space's stage counts.

    Stage degrees with a micro-batch size have one profile, numbered by `profile`.
    """
    chips, batch = cluster.chips, job.global_batch
    replica_chips = np.array([each.replica_chips for each in degrees], np.int64)
    min_replicas = np.array([each.min_replicas for each in degrees], np.int64)
    sizes = np.array(sorted(set(space.micro_batch)), np.int64)
    columns: list[Ints] = []
    for position, p in enumerate(space.pipeline_parallel):
        if not selected[:, position].any():
            continue
        d = chips // (replica_chips * p)
        fits = selected[:, position] & (chips % (replica_chips * p) == 0) & (d % min_replicas == 0)
        row, size = np.nonzero(fits[:, None] & (batch % np.maximum(sizes * d[:, None], 1) == 0))
        m = batch // (sizes[size] * d[row])
        running: dict[tuple[PipelineSchedule, bool], Bools] = {}
        for schedule, v in _pipelines(job.model.num_layers, framework, space, p):
            if (schedule, v > 1) not in running:
                running[schedule, v > 1] = _runs(job, framework, schedule, p, min(v, 2), m)
            runs = running[schedule, v > 1] & (p * m * v <= MAX_CHUNK_RUNS)
            # the rank order matters where there are several stages, replicas and tiers; stages are inside replicas
            # only where experts are not spread over these
            matters = (d[row] > 1) & (p > 1 and len(cluster.tiers) > 1)
            for inside, order in enumerate(AXIS_ORDERS):
                offered = (order in space.axis_order) & ((inside == 0) | (min_replicas[row] == 1))
                mask = runs & np.where(matters, offered, inside == 0)
                s = row[mask]
                rest = (np.full(len(s), value, np.int64) for value in (inside, SCHEDULE_CODES[schedule], v))
                columns.append(np.stack([s, np.full(len(s), p), d[s], sizes[size[mask]], m[mask], *rest]))
    table = np.concatenate([np.zeros((8, 0), np.int64), *columns], axis=1)
    _, profile = np.unique(table[0] * (2 * batch) + table[3], return_inverse=True)
    return PlanSkeletons(*table[:8], profile=profile.reshape(-1))


def skeleton_choices(space: Space) -> tuple[object, ...]:
    """What skeletons depend on of a space beside its degrees."""
    return space.micro_batch, space.pipeline_schedule, space.virtual_stages, space.axis_order, space.partition


def _pipelines(num_layers: int, framework: Framework, space: Space, p: int) -> list[tuple[PipelineSchedule, int]]:
    """Schedules and chunks for so many stages, with a partition the framework runs."""
    if p == 1:
        return [(PipelineSchedule.ONE_F_ONE_B, 1)]
    pipelines: list[tuple[PipelineSchedule, int]] = []
    for schedule in (s for s in PipelineSchedule if s.value in space.pipeline_schedule):
        chunks = [v for v in space.virtual_stages if v > 1] if schedule is PipelineSchedule.INTERLEAVED else [1]
        pipelines.extend(
            (schedule, v)
            for v in sorted(set(chunks))
            if p * v <= num_layers + 2
            and (
                is_free(schedule, space.partition, p)
                or listed_partitions(num_layers, p, v, schedule, space.partition, framework.uneven_stages)
            )
        )
    return pipelines


#: A plan whose pipeline and shards are filled in to ask rules that read nothing else.
_ANY_PLAN = Plan(
    data_parallel=1,
    expert_tensor_parallel=1,
    zero_group=1,
    num_microbatches=1,
    pipeline_schedule="1f1b",
    layers_per_stage=(),
)


def _runs(job: Job, framework: Framework, schedule: PipelineSchedule, p: int, v: int, m: Ints) -> Bools:
    """Whether a schedule takes so many micro-batches (`Pipeline`, `check_runs`)."""
    counts, back = np.unique(m, return_inverse=True)
    rules, taken = rules_of(framework), list[bool]()
    for n in counts.tolist():
        plan = replace(
            _ANY_PLAN, pipeline_parallel=p, virtual_stages=v, pipeline_schedule=schedule.value, num_microbatches=n
        )
        dual = schedule is PipelineSchedule.DUAL_PIPE and bool(p % 2 or n % 2 or n < 2 * p)
        taken.append(not dual and not broken(rules, "pipeline", plan, job, framework))
    return np.array(taken, np.bool_)[back.reshape(-1)]


def group_sizes(stages: Ints, microbatches: Ints, chunks: Ints) -> Ints:
    """The micro-batches that pass an interleaved chunk before the next one's turn."""
    groups, interleaved = np.ones(len(stages), np.int64), chunks > 1
    pipelines, place = distinct(stages[interleaved], microbatches[interleaved])
    sizes = [Pipeline(PipelineSchedule.INTERLEAVED, p, m, 2).microbatch_group_size for p, m in pipelines]
    groups[interleaved] = np.array(sizes, np.int64)[place]
    return groups


def shardings(
    job: Job,
    framework: Framework,
    space: Space,
    degrees: StageDegrees,
    replicas: int,
    stages: int,
    tiers: Sequence[int],
) -> list[tuple[int, int]]:
    """ZeRO stages and groups that run and differ in effect, for so many replicas and stages."""
    plan = replace(degrees.plan, data_parallel=replicas, pipeline_parallel=stages)
    ranks, rules = replicas * plan.context_parallel, [rule for rule in rules_of(framework) if rule.level == "sharding"]
    groups = [g for g in sorted(set(space.zero_group)) if ranks % g == 0 and g > 1]
    groups = [g for g in groups if nests(plan, replicas, g) and stays_on_tiers(plan, g, tiers)]
    offered: list[tuple[int, int]] = []
    # the first rule, asked once for all groups
    known = framework.zero_stages if stages == 1 else framework.zero_stages_with_pipeline
    for stage in sorted(set(space.zero_stage).intersection(known)):
        for group in (ranks,) if stage == 0 else groups:
            # nobody else has this plan: to make one for every question takes longer than all answers
            object.__setattr__(plan, "zero_stage", stage)
            object.__setattr__(plan, "zero_group", group)
            if not broken(rules, "sharding", plan, job, framework):
                offered.append((stage, group))
    # gradients of a pipeline are whole until its one reduction: stages 1 and 2 are the same
    return [(s, g) for s, g in offered if not (s == 2 and stages > 1 and (1, g) in offered)]
