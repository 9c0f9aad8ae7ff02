"""The best partition of a plan in the setting of a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dovetail.partition.partition_plan import PartitionedPlan, partition_profiled
from dovetail.plans.derive import even_layers
from dovetail.plans.plan import Plan
from dovetail.step.evaluate import ProfiledJob, profiled_job
from dovetail.step.facts import plan_facts
from dovetail.step.layer_tables import Setting
from dovetail.step.offload import with_host

#: Profiled layers by the plan they are of, without what it recomputes and its partition.
Profiled = dict[Plan, ProfiledJob]


def partition_setting(
    setting: Setting,
    plan: Plan,
    known: Profiled,
    *,
    by_block: bool,
    below_s: float = float("inf"),
    poll: Callable[[], None] = lambda: None,
) -> PartitionedPlan | None:
    """The plan with its best partition, and the best policy of every block where blocks choose.

    None where nothing fits, or nothing that fits may take less than `below_s`.
    """
    schedule, stages = plan.pipeline_schedule, plan.pipeline_parallel
    facts = plan_facts(plan, setting.framework, setting.job)
    if setting.at_least:
        facts = facts.at_least(schedule=schedule, stages=stages)
    layers = even_layers(plan.pipeline_parallel * plan.virtual_stages, setting.job.model.num_layers)
    alike = replace(plan, recompute="none", recompute_share=1.0, recompute_by_block=None, layers_per_stage=())
    if alike not in known:
        known[alike] = profiled_job(plan, setting.job, setting.cluster, facts, setting.efficiencies)
    profiled = replace(known[alike], facts=with_host(facts, setting.cluster))
    return partition_profiled(
        replace(plan, layers_per_stage=layers),
        setting.job,
        profiled,
        setting.basis,
        setting.capacity_bytes,
        by_block=by_block,
        below_s=below_s,
        poll=poll,
    )
