"""The plan that rows of the tables describe."""

from __future__ import annotations

from dataclasses import replace

from dovetail.plans.plan import Plan
from dovetail.plans.skeletons import AXIS_ORDERS, NAMES, PlanSkeletons
from dovetail.plans.stage_degrees import StageDegrees
from dovetail.step.layer_tables import RecomputePolicy
from dovetail.step.state_tables import StateSharding


def plan_of(
    degrees: StageDegrees,
    skeletons: PlanSkeletons,
    row: int,
    policy: RecomputePolicy,
    state: StateSharding,
    layers: tuple[int, ...],
) -> Plan:
    """The plan that rows of the tables describe."""
    choice, share = policy
    return replace(
        degrees.plan,
        data_parallel=int(skeletons.replicas[row]),
        pipeline_parallel=int(skeletons.stages[row]),
        virtual_stages=int(skeletons.chunks[row]),
        zero_stage=state.zero_stage,
        zero_group=state.zero_group,
        micro_batch=int(skeletons.micro_batch[row]),
        num_microbatches=int(skeletons.microbatches[row]),
        pipeline_schedule=NAMES[int(skeletons.schedule[row])],
        recompute=choice,
        recompute_share=share,
        layers_per_stage=layers,
        axis_order=AXIS_ORDERS[int(skeletons.inside[row])],
    )
