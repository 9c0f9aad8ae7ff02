"""How far a search is: the best plans so far, what became of the others, and what a plan has to beat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from dovetail.arrays import TOLERANCE
from dovetail.plans.plan import Plan
from dovetail.plans.space import listed
from dovetail.search.certificate import Counts


@dataclass(frozen=True, slots=True)
class TimedPlan:
    """A plan and its step time by the tables."""

    seconds: float
    plan: Plan


@dataclass(slots=True)
class Progress:
    """The best plans so far, by what makes them differ, and counts."""

    best: TimedPlan | None = None
    #: best plan of each combination of degrees
    by_degrees: dict[tuple[int, ...], TimedPlan] = field(default_factory=dict[tuple[int, ...], TimedPlan])
    counts: Counts = field(default_factory=Counts)
    #: the lowest bound of what was left open when time ran out
    left_s: float = float("inf")
    #: only plans below this are of interest
    below_s: float = float("inf")
    #: how many plans are asked for
    top: int = 1
    #: these, where it is more than one, the best first, each with its best partition
    leading: list[TimedPlan] = field(default_factory=list[TimedPlan])

    @property
    def limit_s(self) -> float:
        """What a plan has to stay below to matter."""
        if self.top > 1:
            last = self.leading[-1].seconds if len(self.leading) == self.top else float("inf")
            return min(self.below_s, last * (1 - TOLERANCE))
        return self.below_s if self.best is None else min(self.below_s, self.best.seconds * (1 - TOLERANCE))

    def offer(self, seconds: float, plan: Plan) -> None:
        """Takes a plan that fits, if it is better than those like it."""
        timed = TimedPlan(seconds, plan)
        if self.top > 1:
            self._lead(timed)
        key = (plan.tensor_parallel, plan.context_parallel, plan.pipeline_parallel, plan.expert_parallel)
        if key not in self.by_degrees or _better(timed, self.by_degrees[key]):
            self.by_degrees[key] = timed
        if self.best is None or _better(timed, self.best):
            self.best = timed

    def _lead(self, timed: TimedPlan) -> None:
        skeleton = _without_partition(timed.plan)
        alike = next((other for other in self.leading if _without_partition(other.plan) == skeleton), None)
        if alike is not None and not _better(timed, alike):
            return
        others = [other for other in self.leading if other is not alike]
        self.leading = sorted([*others, timed], key=lambda each: (each.seconds, simplicity(each.plan)))[: self.top]


def _without_partition(plan: Plan) -> Plan:
    """A plan without its partition and the policies of single blocks."""
    return replace(plan, layers_per_stage=(), recompute_by_block=None)


def _better(new: TimedPlan, old: TimedPlan) -> bool:
    if abs(new.seconds - old.seconds) > TOLERANCE * old.seconds:
        return new.seconds < old.seconds
    return simplicity(new.plan) < simplicity(old.plan)


def simplicity(plan: Plan) -> tuple[object, ...]:
    """How plans of equal time are ordered: less of everything first, in this order."""
    return (
        plan.pipeline_parallel,
        plan.virtual_stages,
        plan.tensor_parallel,
        plan.context_parallel,
        plan.expert_parallel,
        plan.zero_stage,
        str(plan.recompute),
        plan.recompute_share,
        plan.micro_batch,
        -plan.zero_group,
        plan.axis_order,
        plan.expert_tensor_parallel,
        plan.context_kind,
        plan.sequence_parallel,
        plan.pipeline_schedule,
        plan.layers_per_stage,
        str(plan.recompute_by_block),
        *_others(plan),
    )


def _others(plan: Plan) -> Iterator[object]:
    """Fields that are searched as a plain product: what is left at its default is simplest."""
    for name, each in listed().items():
        if each.about.searched == "product":
            yield getattr(plan, name) != each.default
            yield str(getattr(plan, name))
