"""Two plans of one job on one cluster: what differs, and what each single change of the one towards the other gains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dovetail.errors import InputError
from dovetail.explanation.changed_plan import changed_plan, is_even
from dovetail.frozen import frozen
from dovetail.plans.declaration import declared
from dovetail.plans.fields import PlanFields
from dovetail.plans.overlaps import settled
from dovetail.plans.plan import Plan
from dovetail.plans.plan_file import Task
from dovetail.plans.runs import check_runs
from dovetail.plans.write import plan_part
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation
from dovetail.step.ties import RatioInterval, ratio_interval

#: Fields that make no sense one by one.
TOGETHER = (
    ("virtual_stages", "pipeline_schedule"),
    ("context_parallel", "context_kind"),
    ("expert_parallel", "expert_tensor_parallel"),
    ("recompute", "recompute_share", "recompute_by_block"),
)
#: Fields that follow from others, and are changed with them.
_FOLLOWING = ("data_parallel", "num_microbatches")


@frozen
class Difference:
    """One change of the first plan, and what it comes to."""

    fields: tuple[str, ...]
    ours: tuple[Any, ...]
    other: tuple[Any, ...]
    #: None where the change cannot be made alone
    step_time_s: float | None = None
    #: part of the step that it saves; negative where it costs
    gain: float | None = None
    #: whether the changed plan fits the chips' memory
    fits: bool | None = None
    #: why it cannot be made alone
    obstacle: str = ""

    @property
    def distinguishable(self) -> bool | None:
        """Whether a measurement would show the gain or loss, by the errors of predicted ratios."""
        return None if self.gain is None else ratio_interval(1 - self.gain).distinguishable


@frozen
class Comparison:
    """Both plans and all that differs, the largest gain first."""

    ours: Evaluation
    other: Evaluation
    differences: tuple[Difference, ...]

    @property
    def gain(self) -> float:
        """Part of our step that the other plan saves."""
        return 1 - self.other.step_time_s / self.ours.step_time_s

    @property
    def ratio(self) -> RatioInterval:
        """Where the other plan's measured step over ours would be."""
        return ratio_interval(1 - self.gain)


def compare(ours: Task, other: Task) -> Comparison:
    """What differs between two plans; both must be for the same job, cluster and framework."""
    for name, one, two in (
        ("job", ours.job, other.job),
        ("cluster", (ours.cluster.chip, ours.cluster.tiers), (other.cluster.chip, other.cluster.tiers)),
        ("cluster.framework", ours.framework, other.framework),
    ):
        if one != two:
            raise InputError(name, "is not the same in both plan files", "compare plans of one job on one cluster")
    before = _evaluated(ours, ours.plan)
    differences = [_difference(ours, fields, other.plan, before) for fields in _differing(ours, other)]
    differences.sort(key=lambda each: (each.gain is None, not each.fits, -(each.gain or 0.0), each.fields))
    return Comparison(before, _evaluated(other, other.plan), tuple(differences))


def _evaluated(task: Task, plan: Plan) -> Evaluation:
    return evaluate(plan, task.job, task.cluster, task.framework)


def _differing(first: Task, second: Task) -> list[tuple[str, ...]]:
    """Fields, or groups of them, in which two plans differ but for what follows from others."""
    ours, other = first.plan, second.plan
    # a switch that one of them leaves to the framework may be what the other says
    run, other_run = (settled(task.plan, task.framework, task.job) for task in (first, second))
    grouped = {name: group for group in TOGETHER for name in group}
    names = dict.fromkeys(grouped.get(name, (name,)) for name in declared(PlanFields) if name not in _FOLLOWING)
    return [
        group
        for group in names
        if _values(ours, group) != _values(other, group)
        and _values(run, group) != _values(other_run, group)
        and not _follows(ours, other, group)
    ]


def _values(plan: Plan, group: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(getattr(plan, name) for name in group)


def _follows(ours: Plan, other: Plan, group: tuple[str, ...]) -> bool:
    """Whether a difference follows from others: both shard over all replicas, or both are partitioned evenly, ..."""
    match group:
        case ("zero_group",):
            return all(plan.zero_group == plan.data_parallel * plan.context_parallel for plan in (ours, other))
        case ("layers_per_stage",):
            # a partition into another number of parts comes with that number
            parts = {len(plan.layers_per_stage) for plan in (ours, other)}
            return len(parts) > 1 or all(is_even(plan) for plan in (ours, other))
        case ("sequence_parallel",):
            return other.tensor_parallel == 1
        case ("expert_parallel", "expert_tensor_parallel"):
            inner = all(plan.expert_tensor_parallel == plan.tensor_parallel for plan in (ours, other))
            return inner and ours.expert_parallel == other.expert_parallel
        case _:
            return False


def _difference(task: Task, fields: tuple[str, ...], other: Plan, before: Evaluation) -> Difference:
    ours = task.plan
    difference = Difference(fields, _values(ours, fields), _values(other, fields))
    try:
        plan = _changed(task, fields, other)
        check_runs(plan, task.job, task.cluster, task.framework)
    except InputError as error:
        return replace(difference, obstacle=f"{error.where.removeprefix('plan: ')}: {error.what}")
    after = _evaluated(task, plan)
    gain = 1 - after.step_time_s / before.step_time_s
    return replace(difference, step_time_s=after.step_time_s, gain=gain, fits=after.fits)


def _changed(task: Task, fields: tuple[str, ...], other: Plan) -> Plan:
    """Our plan with some fields of the other; a partition into as many parts comes with their number."""
    written = plan_part(other)
    values: dict[str, Any] = dict.fromkeys(fields) | {name: value for name, value in written.items() if name in fields}
    if {"pipeline_parallel", "virtual_stages"} & set(fields):
        degrees = plan_part(task.plan) | values
        if len(other.layers_per_stage) == degrees["pipeline_parallel"] * degrees["virtual_stages"]:
            values["layers_per_stage"] = list(other.layers_per_stage)
    return changed_plan(task, values)
