"""What more hardware is worth, and how far hardware may change before another plan is best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from dovetail.arrays import TOLERANCE
from dovetail.explanation.changed_hardware import CAPACITY, Knob, knobs, memory_changes_seconds, with_a_node
from dovetail.explanation.crossing import last_before
from dovetail.explanation.neighbourhood import Neighbourhood
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.plans.plan import Plan
from dovetail.search.answer import Answer
from dovetail.search.plan_rows import PlanRows, has_row
from dovetail.search.related_searches import RelatedSearches, best_plan
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import evaluate
from dovetail.step.layer_tables import Setting

#: How much more there is of a thing whose value is asked for.
MORE = 1.1
#: The factors between which we check whether a plan stays best, and how closely.
LOWEST, MOST, CLOSE = 0.5, 2.0, 0.002
#: How many rivals, the fastest ones, are timed on other hardware.
RIVALS = 16

Timed = Callable[[Plan, float], float]


@frozen
class Marginal:
    """What more of one thing is worth."""

    what: str
    change: str
    same_plan_s: float | None
    """the plan as it is; None where it does not cover the chips"""
    same_plan_gain: float | None
    """steps per second more, as a part of the best's"""
    plan: Plan | None
    """the best on that hardware, of the neighbourhood; None where none fits or divides"""
    step_time_s: float | None
    gain: float | None
    proven: bool


@frozen
class StaysBest:
    """The factors of one thing between which no rival is faster, and who is beyond them."""

    what: str
    low: float
    high: float
    low_rival: Plan | None
    """faster below `low`; None: none down to the least factor, or the plan itself no longer fits"""
    high_rival: Plan | None
    low_unfit: bool
    """below `low` the plan no longer fits"""


def marginals(around: Neighbourhood) -> tuple[Marginal, ...]:
    """A tenth more of everything there is, and one more node with the same global batch."""
    answer = around.answer
    values = [_marginal(around, knob) for knob in knobs(answer.cluster)]
    larger = with_a_node(answer.cluster)
    return tuple(values) if larger is None else (*values, _with_more_chips(around, larger))


def _marginal(around: Neighbourhood, knob: Knob) -> Marginal:
    answer = around.answer
    searches, limit = _turned(around, knob, MORE)
    searches.learn([answer.plan], limit)
    same_s = searches.evaluated(answer.plan).step_time_s
    found = searches.best(around.space, around.time_limit_s, limit)
    plan, seconds = answer.plan, same_s
    # a search that ran out of time may not even have reached the plan we have
    if found.evaluation is not None and found.evaluation.step_time_s <= same_s:
        plan, seconds = found.evaluation.plan, found.evaluation.step_time_s
    best_s = answer.step_time_s
    return Marginal(
        what=knob.name,
        change="+10 %",
        same_plan_s=same_s,
        same_plan_gain=best_s / same_s - 1,
        plan=plan,
        step_time_s=seconds,
        gain=best_s / seconds - 1,
        proven=found.proven,
    )


def _turned(around: Neighbourhood, knob: Knob, factor: float) -> tuple[RelatedSearches, float | None]:
    """Searches with so many times as much of one thing, and the limit in bytes they are asked with."""
    answer = around.answer
    changed = knob.turned(answer.cluster, factor)
    limit = answer.limit_on(changed)
    if knob.name == CAPACITY and not memory_changes_seconds(answer.cluster):
        return around.searches, memory_limit(changed.chip, answer.framework, limit)
    return RelatedSearches(answer.job, changed, answer.framework, around.space), limit


def _with_more_chips(around: Neighbourhood, larger: Cluster) -> Marginal:
    """Other degrees divide the new number of chips: all of them are free."""
    answer, best_s = around.answer, around.answer.step_time_s
    job, framework, limit = answer.job, answer.framework, answer.limit_on(larger)
    other = best_plan(job, larger, framework, answer.space, around.time_limit_s, limit)
    found = other.evaluation
    return Marginal(
        what="nodes",
        change=f"+{larger.chips - answer.cluster.chips} chips",
        same_plan_s=None,
        same_plan_gain=None,
        plan=None if found is None else found.plan,
        step_time_s=None if found is None else found.step_time_s,
        gain=None if found is None else best_s / found.step_time_s - 1,
        proven=other.proven,
    )


def stays_best(around: Neighbourhood, rivals: Iterable[Plan]) -> tuple[StaysBest, ...]:
    """For every knob the factors, from a half to double, over which the plan beats all rivals that were tried.

    A plan that was not tried may be faster inside the range. A rival is taken to be faster from one factor on.
    """
    answer, best = around.answer, around.answer.plan
    capacity = next(knob for knob in knobs(answer.cluster) if knob.name == CAPACITY)
    roomy, limit = _turned(around, capacity, MOST)
    # what needs more memory than there is comes to be a rival with more memory alone
    larger = roomy.best(around.space, around.time_limit_s, limit).evaluation
    tried = [*rivals, *(() if larger is None else (larger.plan,))]
    timed = {
        plan: around.searches.evaluated(plan)
        for plan in dict.fromkeys(tried)
        if plan != best and plan.chips == answer.cluster.chips
    }
    kept = [plan for plan, each in timed.items() if each.peak_bytes <= answer.limit_bytes]
    fitting = sorted(kept, key=lambda plan: timed[plan].step_time_s)[:RIVALS]
    peaks = {
        plan: each.peak_bytes
        for plan, each in timed.items()
        if plan not in kept and each.step_time_s < answer.step_time_s * (1 - TOLERANCE)
    }
    ranges = [_memory_range(answer, peaks)]
    for knob in knobs(answer.cluster):
        if knob.name != CAPACITY:
            now_s = {best: answer.step_time_s} | {plan: timed[plan].step_time_s for plan in fitting}
            seconds = _timed(answer, knob, now_s)
            (low, low_rival), (high, high_rival) = (_reach(seconds, best, fitting, end) for end in (LOWEST, MOST))
            ranges.append(StaysBest(knob.name, low, high, low_rival, high_rival, low_unfit=False))
    return tuple(ranges)


def _timed(answer: Answer, knob: Knob, now_s: Mapping[Plan, float]) -> Timed:
    """Seconds of a plan with so many times as much of one thing, each computed once; at the ends all together."""
    known = {(plan, 1.0): seconds for plan, seconds in now_s.items()}
    together = [plan for plan in now_s if has_row(plan, answer.cluster)]
    for end in (LOWEST, MOST) if together else ():
        changed = knob.turned(answer.cluster, end)
        setting = Setting.of(answer.job, changed, answer.framework, offload=answer.plan.offload)
        seconds = PlanRows(together, setting).seconds(np.arange(len(together)))
        known |= {(plan, end): each for plan, each in zip(together, seconds.tolist(), strict=True)}

    def timed(plan: Plan, factor: float) -> float:
        if (plan, factor) not in known:
            changed = knob.turned(answer.cluster, factor)
            evaluation = evaluate(plan, answer.job, changed, answer.framework, energy=False)
            known[plan, factor] = evaluation.step_time_s
        return known[plan, factor]

    return timed


def _memory_range(answer: Answer, peaks: dict[Plan, float]) -> StaysBest:
    """Seconds do not depend on capacity: the plan must fit, and no faster one that needs more may."""
    fullest = answer.memory_factor(answer.best.peak_bytes)
    nearest = min(peaks, key=lambda plan: peaks[plan], default=None)
    high = MOST if nearest is None else min(MOST, answer.memory_factor(peaks[nearest]))
    return StaysBest(CAPACITY, max(LOWEST, fullest), high, None, nearest, low_unfit=fullest > LOWEST)


def _reach(seconds: Timed, best: Plan, rivals: list[Plan], end: float) -> tuple[float, Plan | None]:
    """How far a factor may go towards an end before a rival is faster, and which one."""
    reached, first = end, None
    for rival in rivals:

        def difference(factor: float, rival: Plan = rival) -> float:
            return seconds(rival, factor) - seconds(best, factor) * (1 - TOLERANCE)

        if difference(reached) < 0:
            reached, first = last_before(difference, reached, CLOSE), rival
    return reached, first
