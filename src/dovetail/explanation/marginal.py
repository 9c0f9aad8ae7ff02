"""What more hardware is worth, and how far hardware may change before another plan is best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

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
from dovetail.step.evaluate import step_seconds
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
    every = knobs(answer.cluster)
    searches = _turned(around, [(knob, MORE) for knob in every])
    values = [_marginal(around, knob, *each) for knob, each in zip(every, searches, strict=True)]
    larger = with_a_node(answer.cluster)
    return tuple(values) if larger is None else (*values, _with_more_chips(around, larger))


def _marginal(around: Neighbourhood, knob: Knob, searches: RelatedSearches, limit: float | None) -> Marginal:
    answer = around.answer
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


def _turned(around: Neighbourhood, things: Sequence[tuple[Knob, float]]) -> list[tuple[RelatedSearches, float | None]]:
    """Searches with so many times as much of each thing, and the limits in bytes they are asked with."""
    answer = around.answer
    clusters = [knob.turned(answer.cluster, factor) for knob, factor in things]
    stay = [knob.name == CAPACITY and not memory_changes_seconds(answer.cluster) for knob, _ in things]
    changed = [cluster for cluster, stays in zip(clusters, stay, strict=True) if not stays]
    others = iter(around.searches.on_each(changed, around.space))
    turned: list[tuple[RelatedSearches, float | None]] = []
    for cluster, stays in zip(clusters, stay, strict=True):
        limit = answer.limit_on(cluster)
        if stays:
            turned.append((around.searches, memory_limit(cluster.chip, answer.framework, limit)))
        else:
            turned.append((next(others), limit))
    return turned


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
    ((roomy, limit),) = _turned(around, [(capacity, MOST)])
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
    now_s = {best: answer.step_time_s} | {plan: timed[plan].step_time_s for plan in fitting}
    known = _at_ends(answer, list(now_s))
    known |= {(knob.name, plan, 1.0): each for knob in knobs(answer.cluster) for plan, each in now_s.items()}
    for knob in knobs(answer.cluster):
        if knob.name != CAPACITY:
            seconds = _timed(answer, knob, known)
            (low, low_rival), (high, high_rival) = (_reach(seconds, best, fitting, end) for end in (LOWEST, MOST))
            ranges.append(StaysBest(knob.name, low, high, low_rival, high_rival, low_unfit=False))
    return tuple(ranges)


def _at_ends(answer: Answer, plans: Sequence[Plan]) -> dict[tuple[str, Plan, float], float]:
    """Seconds of plans that have rows, with half and with double of each thing."""
    together = [plan for plan in plans if has_row(plan, answer.cluster)]
    ends = [(knob, end) for knob in knobs(answer.cluster) if knob.name != CAPACITY for end in (LOWEST, MOST)]
    if not together:
        return {}
    settings = [
        Setting.of(answer.job, knob.turned(answer.cluster, end), answer.framework, offload=answer.plan.offload)
        for knob, end in ends
    ]
    known: dict[tuple[str, Plan, float], float] = {}
    for (knob, end), rows in zip(ends, PlanRows.side_by_side(together, settings), strict=True):
        seconds = rows.seconds(np.arange(len(together)))
        known |= {(knob.name, plan, end): each for plan, each in zip(together, seconds.tolist(), strict=True)}
    return known


def _timed(answer: Answer, knob: Knob, known: dict[tuple[str, Plan, float], float]) -> Timed:
    """Seconds of a plan with so many times as much of one thing, each computed once."""

    def timed(plan: Plan, factor: float) -> float:
        key = (knob.name, plan, factor)
        if key not in known:
            changed = knob.turned(answer.cluster, factor)
            known[key] = step_seconds(plan, answer.job, changed, answer.framework)
        return known[key]

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
