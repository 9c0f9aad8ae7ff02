"""What more hardware is worth, and how far hardware may change before another plan is best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from dovetail.arrays import TOLERANCE
from dovetail.explanation.changed_hardware import CAPACITY, Knob, knobs, with_a_node, with_memory
from dovetail.explanation.neighbours import neighbourhood
from dovetail.hardware import Cluster
from dovetail.plans.plan import Plan
from dovetail.plans.space import Space
from dovetail.search.answer import Answer
from dovetail.search.plan import plan as search
from dovetail.step.evaluate import evaluate

#: How much more there is of a thing whose value is asked for.
MORE = 1.1
#: The factors between which we check whether a plan stays best, and how closely.
LOWEST, MOST, CLOSE = 0.5, 2.0, 0.002
#: How many rivals, the fastest ones, are timed on other hardware.
RIVALS = 16

Timed = Callable[[Plan, float], float]


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


def marginals(answer: Answer, time_limit_s: float | None = None) -> tuple[Marginal, ...]:
    """A tenth more of everything there is, and one more node with the same global batch."""
    around, best = neighbourhood(answer), answer.plan
    values: list[Marginal] = []
    for knob in knobs(answer.cluster):
        changed = knob.turned(answer.cluster, MORE)
        same = evaluate(best, answer.job, changed, answer.framework, energy=False).step_time_s
        values.append(_marginal(answer, knob.name, "+10 %", changed, around, same, time_limit_s))
    larger = with_a_node(answer.cluster)
    if larger is None:
        return tuple(values)
    more = larger.chips - answer.cluster.chips
    # other degrees divide the new number of chips: all of them are free
    values.append(_marginal(answer, "nodes", f"+{more} chips", larger, answer.space, None, time_limit_s))
    return tuple(values)


def _marginal(
    answer: Answer,
    what: str,
    change: str,
    changed: Cluster,
    space: Space,
    same_s: float | None,
    time_limit_s: float | None,
) -> Marginal:
    best_s = answer.step_time_s
    limit = answer.limit_on(changed)
    other = search(
        answer.job, changed, answer.framework, space=space, time_limit_s=time_limit_s, memory_limit_bytes=limit
    )
    seconds = None if other.evaluation is None else other.step_time_s
    plan = None if other.evaluation is None else other.plan
    if same_s is not None and (seconds is None or same_s < seconds):
        # a search that ran out of time may not even have reached the plan we have
        seconds, plan = same_s, answer.plan
    return Marginal(
        what=what,
        change=change,
        same_plan_s=same_s,
        same_plan_gain=None if same_s is None else best_s / same_s - 1,
        plan=plan,
        step_time_s=seconds,
        gain=None if seconds is None else best_s / seconds - 1,
        proven=other.certificate.status != "feasible",
    )


def stays_best(answer: Answer, rivals: Iterable[Plan], time_limit_s: float | None = None) -> tuple[StaysBest, ...]:
    """For every knob the factors, from a half to double, over which the plan beats all rivals that were tried.

    A plan that was not tried may be faster inside the range. A rival is taken to be faster from one factor on.
    """
    job, framework, best = answer.job, answer.framework, answer.plan
    roomy = with_memory(answer.cluster, MOST)
    space, limit = neighbourhood(answer), answer.limit_on(roomy)
    around = search(job, roomy, framework, space=space, time_limit_s=time_limit_s, memory_limit_bytes=limit)
    # what needs more memory than there is comes to be a rival with more memory alone
    larger = [around.plan] if around.evaluation is not None else []
    timed = {
        plan: evaluate(plan, job, answer.cluster, framework, energy=False)
        for plan in dict.fromkeys([*rivals, *larger])
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
            seconds = _timed(answer, knob)
            (low, low_rival), (high, high_rival) = (_reach(seconds, best, fitting, end) for end in (LOWEST, MOST))
            ranges.append(StaysBest(knob.name, low, high, low_rival, high_rival, low_unfit=False))
    return tuple(ranges)


def _timed(answer: Answer, knob: Knob) -> Timed:
    """Seconds of a plan with so many times as much of one thing, each computed once."""

    @cache
    def seconds(plan: Plan, factor: float) -> float:
        changed = knob.turned(answer.cluster, factor)
        return evaluate(plan, answer.job, changed, answer.framework, energy=False).step_time_s

    return seconds


def _memory_range(answer: Answer, peaks: dict[Plan, float]) -> StaysBest:
    """Seconds do not depend on capacity: the plan must fit, and no faster one that needs more may."""
    fullest = answer.memory_factor(answer.best.peak_bytes)
    nearest = min(peaks, key=lambda plan: peaks[plan], default=None)
    high = MOST if nearest is None else min(MOST, answer.memory_factor(peaks[nearest]))
    return StaysBest(CAPACITY, max(LOWEST, fullest), high, None, nearest, low_unfit=fullest > LOWEST)


def _reach(seconds: Timed, best: Plan, rivals: list[Plan], end: float) -> tuple[float, Plan | None]:
    """How far a factor may go towards an end before a rival is faster, and which one."""
    reached, first = end, None

    def beaten(rival: Plan, factor: float) -> bool:
        return seconds(rival, factor) < seconds(best, factor) * (1 - TOLERANCE)

    for rival in rivals:
        if not beaten(rival, reached):
            continue
        inside, outside = 1.0, reached
        while abs(math.log(outside / inside)) > CLOSE:
            middle = math.sqrt(inside * outside)
            inside, outside = (inside, middle) if beaten(rival, middle) else (middle, outside)
        reached, first = inside, rival
    return reached, first
