"""How far a search is: the best plans so far, what became of the others, and what a plan has to beat."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dovetail.arrays import TOLERANCE, Floats, Ints
from dovetail.frozen import frozen
from dovetail.plans.plan import Plan
from dovetail.plans.space import listed
from dovetail.search.certificate import Counts, proof

#: Seconds between two reports of a search, at least.
REPORT_EVERY_S = 0.25


@frozen
class TimedPlan:
    """A plan and its step time by the tables."""

    seconds: float
    plan: Plan


@frozen
class SearchProgress:
    """How far a search is, for whoever waits for it."""

    #: the best plan so far; None before one that fits was found
    plan: Plan | None
    step_time_s: float | None
    #: no plan takes less
    lower_bound_s: float
    #: None without a plan
    gap: float | None
    counted: int
    pruned: int
    infeasible: int
    evaluated: int
    #: may be faster, and were not looked at yet
    open: int
    #: what is counted
    counts: str = "plans"


#: Is told how far a search is; where it returns True the search ends with the best plan so far.
Listener = Callable[[SearchProgress], bool | None]


@frozen
class OpenPlans:
    """Sets of plans that a search has not been through: lower bounds, and how many plans."""

    bounds_s: Floats
    plans: Ints

    @classmethod
    def of(cls, bounds_s: Sequence[float], plans: Sequence[int]) -> OpenPlans:
        """The same of lists."""
        return cls(np.array(bounds_s, np.float64), np.array(plans, np.int64))


NOTHING = OpenPlans.of([], [])


@dataclass(slots=True)
class OpenSets:
    """All that is left, where the search is at it; no plan is in two of these."""

    pairs: OpenPlans = NOTHING
    skeletons: OpenPlans = NOTHING
    policies: OpenPlans = NOTHING
    partitions: OpenPlans = NOTHING

    def below(self, limit_s: float) -> tuple[float, int]:
        """The lowest bound of what may take less than this, infinite where nothing may; and how many plans that are."""
        lowest, plans = float("inf"), 0
        for left in (self.pairs, self.skeletons, self.policies, self.partitions):
            below = left.bounds_s < limit_s
            lowest = min(lowest, float(left.bounds_s[below].min(initial=float("inf"))))
            plans += int(left.plans[below].sum())
        return lowest, plans


@dataclass(slots=True)
class Progress:
    """The best plans so far, by what makes them differ, and counts."""

    best: TimedPlan | None = None
    #: best plan of each combination of degrees
    by_degrees: dict[tuple[int, ...], TimedPlan] = field(default_factory=dict[tuple[int, ...], TimedPlan])
    counts: Counts = field(default_factory=Counts)
    #: the lowest bound of what was given up: a partition that is not proven, and all that was left when time ran out
    left_s: float = float("inf")
    #: what the search has not been through
    left: OpenSets = field(default_factory=OpenSets)
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

    def end(self) -> None:
        """Gives up what is left, because time ran out."""
        lowest, self.counts.open = self.left.below(self.limit_s)
        self.left_s, self.left = min(self.left_s, lowest), OpenSets()

    def so_far(self) -> SearchProgress:
        """What can be said now."""
        lowest, plans = self.left.below(self.limit_s)
        best, counts = self.best, replace(self.counts, open=plans)
        proven = proof(best and best.seconds, min(lowest, self.left_s, self.below_s))
        return SearchProgress(
            plan=best and best.plan,
            step_time_s=best and best.seconds,
            lower_bound_s=proven.lower_bound_s or 0.0,
            gap=proven.gap,
            counted=counts.counted,
            pruned=counts.pruned,
            infeasible=counts.infeasible,
            evaluated=counts.evaluated,
            open=counts.open,
        )

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


class Reporter:
    """Tells a listener how far a search is: a few times a second, and once when there is a first plan."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._last_s = -float("inf")
        self._told_of_plan = False

    def is_due(self, progress: Progress) -> bool:
        """Whether there is something to tell."""
        first = progress.best is not None and not self._told_of_plan
        return first or time.monotonic() - self._last_s >= REPORT_EVERY_S

    def report(self, progress: Progress) -> bool:
        """Tells it; returns whether the search shall end."""
        self._told_of_plan = progress.best is not None
        self._last_s = time.monotonic()
        return bool(self._listener(progress.so_far()))


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
