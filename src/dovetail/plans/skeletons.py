"""Plan skeletons: stage degrees, pipeline, replicas and micro-batch, as columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from dovetail.arrays import Bools, Ints
from dovetail.frameworks import Framework
from dovetail.frameworks.framework import AxisOrder
from dovetail.hardware import Cluster
from dovetail.layout.axes import joined_by_tier
from dovetail.models import Job
from dovetail.plans.model_limits import nests
from dovetail.plans.overlaps import sharding_allows
from dovetail.plans.partitions import is_free, listed_partitions
from dovetail.plans.pipeline_schedule import MAX_CHUNK_RUNS, SCHEDULE_CODES, Pipeline, PipelineSchedule
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import StageDegrees

#: Rank orders, by `PlanSkeletons.inside`.
AXIS_ORDERS: tuple[AxisOrder, AxisOrder] = ("tp-cp-dp-pp", "tp-cp-pp-dp")
NAMES = {number: schedule.value for schedule, number in SCHEDULE_CODES.items()}


@dataclass(frozen=True, slots=True)
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
        d = chips // (replica_chips * p)
        fits = selected[:, position] & (chips % (replica_chips * p) == 0) & (d % min_replicas == 0)
        row, size = np.nonzero(fits[:, None] & (batch % np.maximum(sizes * d[:, None], 1) == 0))
        m = batch // (sizes[size] * d[row])
        for schedule, v in _pipelines(job.model.num_layers, framework, space, p):
            runs = _runs(framework, p, m, v, schedule)
            # the rank order matters where there are several stages, replicas and tiers, and is open where experts are
            # not spread over replicas
            turns = (d[row] > 1) & (min_replicas[row] == 1) & (p > 1 and len(cluster.tiers) > 1)
            for inside, order in enumerate(AXIS_ORDERS):
                mask = runs & ((turns & (order in space.axis_order)) | (~turns & (inside == 0)))
                s = row[mask]
                rest = (np.full(len(s), value, np.int64) for value in (inside, SCHEDULE_CODES[schedule], v))
                columns.append(np.stack([s, np.full(len(s), p), d[s], sizes[size[mask]], m[mask], *rest]))
    table = np.concatenate([np.zeros((8, 0), np.int64), *columns], axis=1)
    _, profile = np.unique(table[0] * (2 * batch) + table[3], return_inverse=True)
    return PlanSkeletons(*table[:8], profile=profile.reshape(-1))


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


def _runs(framework: Framework, p: int, m: Ints, v: int, schedule: PipelineSchedule) -> Bools:
    """Whether a schedule takes so many micro-batches (`Pipeline`, `check_runs`)."""
    fits = p * m * v <= MAX_CHUNK_RUNS
    if p > 1 and schedule.value not in framework.pipeline_schedules:
        return np.zeros(len(m), np.bool_)
    if schedule is PipelineSchedule.INTERLEAVED:
        counts, back = np.unique(m, return_inverse=True)
        taken = np.array([framework.can_interleave(int(n), p) for n in counts.tolist()], np.bool_)
        return fits & taken[back.reshape(-1)]
    if schedule is PipelineSchedule.DUAL_PIPE:
        return fits & (p % 2 == 0) & (m % 2 == 0) & (m >= 2 * p)
    return fits


def group_sizes(stages: Ints, microbatches: Ints, chunks: Ints) -> Ints:
    """The micro-batches that pass an interleaved chunk before the next one's turn."""
    sizes: dict[tuple[int, int], int] = {}
    groups = np.ones(len(stages), np.int64)
    for i in np.nonzero(chunks > 1)[0].tolist():
        key = (int(stages[i]), int(microbatches[i]))
        if key not in sizes:
            sizes[key] = Pipeline(PipelineSchedule.INTERLEAVED, *key, 2).microbatch_group_size
        groups[i] = sizes[key]
    return groups


def shardings(
    framework: Framework, space: Space, degrees: StageDegrees, replicas: int, stages: int, tiers: Sequence[int]
) -> list[tuple[int, int]]:
    """ZeRO stages and groups that differ in effect, for so many replicas and stages."""
    plan = degrees.plan
    ranks = replicas * plan.context_parallel
    offered = framework.zero_stages if stages == 1 else framework.zero_stages_with_pipeline
    zero_stages = sorted(
        {stage for stage in space.zero_stage if stage in offered and sharding_allows(plan, framework, stage)}
    )
    if stages > 1 and 1 in zero_stages and 2 in zero_stages:
        zero_stages.remove(2)  # gradients of a pipeline are whole until its one reduction
    groups = [ranks] if ranks in space.zero_group else []
    if framework.zero_group:
        groups = [g for g in sorted(set(space.zero_group)) if ranks % g == 0]
    groups = [g for g in groups if g > 1 and nests(plan, replicas, g) and _nests_in_tiers(degrees, g, tiers)]
    return [(stage, g) for stage in zero_stages for g in ((ranks,) if stage == 0 else groups)]


def _nests_in_tiers(degrees: StageDegrees, zero_group: int, tiers: Sequence[int]) -> bool:
    """Whether a group that ends among context-parallel chips leaves them on the tiers they are on."""
    t, end = degrees.plan.tensor_parallel, degrees.replica_chips
    middle = t * zero_group
    if middle >= end:
        return True
    parts = (joined_by_tier(low, high, tiers) for low, high in ((t, middle), (middle, end)))
    return tuple(a * b for a, b in zip(*parts, strict=True)) == joined_by_tier(t, end, tiers)
