"""Given plans of one job evaluated together, as rows of the tables of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.bounds.batch import Batch, Candidates
from dovetail.hardware import Cluster
from dovetail.plans.arrange import arrange
from dovetail.plans.pipeline_schedule import SCHEDULE_CODES, PipelineSchedule
from dovetail.plans.plan import Plan
from dovetail.plans.skeletons import AXIS_ORDERS, PlanSkeletons
from dovetail.plans.stage_degrees import StageDegrees
from dovetail.step.layer_tables import Setting
from dovetail.step.plan_tables import Tables
from dovetail.step.state_tables import StateSharding


def has_row(plan: Plan, cluster: Cluster) -> bool:
    """Whether tables have a plan: degrees and one recompute policy say all of it, and nothing is dead."""
    special = (plan.layouts, plan.wafer, plan.recompute_by_block)
    return all(part is None for part in special) and not cluster.defects


class PlanRows:
    """Bytes of all plans, and of their seconds a lower bound; exact seconds of those that are asked for.

    Groups of the plans nest and degrees divide what they shard.
    """

    def __init__(self, plans: Sequence[Plan], setting: Setting, tables: Tables | None = None) -> None:
        tables = tables or _tables(plans, setting)
        numbers: dict[Plan, int] = {each.plan: number for number, each in enumerate(tables.degrees)}
        of_stage = [numbers[stage_plan(plan)] for plan in plans]
        policies = tables.policies
        inside = [_stages_inside(plan, setting.cluster) for plan in plans]
        self._batch = Batch(tables, _skeletons(plans, of_stage, inside))
        keys = [
            StateSharding(number, p.data_parallel, p.pipeline_parallel, AXIS_ORDERS[order], p.zero_stage, p.zero_group)
            for p, number, order in zip(plans, of_stage, inside, strict=True)
        ]
        policy = [policies.index((plan.recompute, plan.recompute_share)) for plan in plans]
        self._candidates = Candidates(np.arange(len(plans)), np.array(policy, np.int64), tables.states.rows(keys))
        partitions = [
            [tables.partitions.row(plan.layers_per_stage, plan.pipeline_parallel, plan.pipeline_schedule)]
            for plan in plans
        ]
        self._evaluated = self._batch.evaluate(self._candidates, partitions)
        #: where each plan is among the evaluated
        self._place = np.argsort(self._evaluated.candidate)
        self.peak_bytes: Floats = self._evaluated.peak_bytes[self._place]
        self.least_s: Floats = self._evaluated.seconds[self._place]

    @classmethod
    def side_by_side(cls, plans: Sequence[Plan], settings: Sequence[Setting]) -> list[PlanRows]:
        """The plans on each of several clusters that differ in their rates alone."""
        first = _tables(plans, settings[0])
        others = [Tables(setting, first.degrees, first.policies) for setting in settings[1:]]
        first.join(others)
        made = (first, *others)
        return [cls(plans, setting, tables) for setting, tables in zip(settings, made, strict=True)]

    def seconds(self, which: Ints) -> Floats:
        """Exact seconds of a step of some plans."""
        evaluated, places = self._evaluated, self._place[which]
        seconds = evaluated.seconds[places]
        bounded = ~evaluated.exact[places]
        if bounded.any():
            rows = places[bounded]
            pipelines = self._batch.pipeline_seconds(self._candidates, evaluated, rows)
            seconds[bounded] = pipelines + evaluated.rest_s[rows]
        return seconds


def _tables(plans: Sequence[Plan], setting: Setting) -> Tables:
    """Tables of all that the plans need."""
    rule, distinct = setting.framework.tensor_rule, dict.fromkeys(stage_plan(plan) for plan in plans)
    degrees = [StageDegrees(plan, arrange(plan, setting.graph, setting.cluster, rule)) for plan in distinct]
    return Tables(setting, degrees, list(dict.fromkeys((plan.recompute, plan.recompute_share) for plan in plans)))


def stage_plan(plan: Plan) -> Plan:
    """The degrees of a stage, with only the replicas its experts need (`stage_degrees`)."""
    experts = plan.expert_parallel * plan.expert_tensor_parallel
    return replace(
        plan,
        data_parallel=max(1, experts // (plan.tensor_parallel * plan.context_parallel)),
        pipeline_parallel=1,
        virtual_stages=1,
        zero_stage=0,
        zero_group=1,
        micro_batch=1,
        num_microbatches=1,
        pipeline_schedule="1f1b",
        recompute="none",
        recompute_share=1.0,
        layers_per_stage=(),
        axis_order=AXIS_ORDERS[0],
    )


def _stages_inside(plan: Plan, cluster: Cluster) -> int:
    """The rank order by number, where there is something to order."""
    several = plan.pipeline_parallel > 1 and plan.data_parallel > 1 and len(cluster.tiers) > 1
    return AXIS_ORDERS.index(plan.axis_order) if several else 0


def _skeletons(plans: Sequence[Plan], of_stage: Sequence[int], inside: Sequence[int]) -> PlanSkeletons:
    profiles: dict[tuple[int, int], int] = {}
    rows = [
        (
            number,
            plan.pipeline_parallel,
            plan.data_parallel,
            plan.micro_batch,
            plan.num_microbatches,
            order,
            SCHEDULE_CODES[PipelineSchedule(plan.pipeline_schedule)],
            plan.virtual_stages,
            profiles.setdefault((number, plan.micro_batch), len(profiles)),
        )
        for plan, number, order in zip(plans, of_stage, inside, strict=True)
    ]
    return PlanSkeletons(*np.array(rows, np.int64).reshape(-1, 9).T)
