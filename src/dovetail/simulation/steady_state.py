"""The steady state of a simulated step: a moment whose state comes back, so that all between repeats.

While an order repeats, what happens next follows from the state of the event loop alone: which tasks have ended, which
run, and how much of each is left. Where the state is the same at two moments, with later micro-batches in the place of
earlier ones, a step with more periods of the order passes through it again and again (Baccelli et al. 1992,
Synchronization and Linearity, chapter 3), as long as the time between.
"""

from __future__ import annotations

import numpy as np

from dovetail.arrays import ROUNDING, Bools, Floats, Ints
from dovetail.frozen import frozen
from dovetail.pipeline.repeating_order import Stretch, period
from dovetail.simulation.step_tasks import StepTasks
from dovetail.simulation.task_graph import Timeline

#: Part of a period near which the widest pause between events is looked for.
NEAR = 0.05
#: A pause is wide where it is so many times what should be equal differs by.
WIDE = 50.0
#: The part of a period by which what repeats has to be longer than it.
MARGIN = 0.05


@frozen
class SteadyState:
    """The state at begin_s is that of period_s before, with later micro-batches."""

    begin_s: float
    period_s: float
    #: how many periods of the order it lasts
    periods: int
    #: of all items, those that began since then, and those that begin later
    within: Bools
    later: Bools


@frozen
class _Candidate:
    """A moment whose state may come back after so long."""

    at_s: float
    period_s: float


def steady_state(tasks: StepTasks, timeline: Timeline, stretch: Stretch) -> SteadyState | None:
    """The shortest steady state within a stretch of every stage's items; None where none shows."""
    items = period(tasks.order.pipeline).items
    begin_s = timeline.start_s[tasks.begin[:, 0]]
    most = int((stretch.end - stretch.first).min()) // items
    for periods in range(1, most):
        moment = _candidate(begin_s, stretch, periods * items)
        moment = None if moment is None else _in_a_pause(moment, timeline)
        if moment is not None and _comes_back(moment, tasks, timeline, stretch, periods * items):
            until_s = moment.at_s + moment.period_s
            within = (begin_s > moment.at_s) & (begin_s < until_s)
            return SteadyState(until_s, moment.period_s, periods, within, begin_s > until_s)
    return None


def _candidate(begin_s: Floats, stretch: Stretch, shift: int) -> _Candidate | None:
    """A moment while all stages begin items as long after those `shift` before, to the last digits; halfway if any."""
    leaving = int(np.argmin(begin_s[stretch.end - 1]))
    last = int(stretch.end[leaving]) - 1
    lasts_s = float(begin_s[last] - begin_s[last - shift])
    low_s, high_s = 0.0, np.inf
    for first, end in zip(stretch.first.tolist(), stretch.end.tolist(), strict=True):
        if end - first <= shift:
            return None
        begins = begin_s[first:end]
        alike = np.abs(begins[shift:] - begins[:-shift] - lasts_s) <= ROUNDING * begins[shift:]
        if not alike.any():
            return None
        final = len(alike) - 1 - int(np.argmax(alike[::-1]))
        unlike = np.nonzero(~alike[:final])[0]
        low_s = max(low_s, float(begins[unlike[-1] + 1 if len(unlike) else 0]))
        high_s = min(high_s, float(begins[final + shift]))
    if high_s - low_s < (1 + MARGIN) * lasts_s:
        return None
    return _Candidate((low_s + high_s - lasts_s) / 2, lasts_s)


def _in_a_pause(moment: _Candidate, timeline: Timeline) -> _Candidate | None:
    """The middle of the widest pause between events near a moment: rounding puts none of them on its other side."""
    near = NEAR * moment.period_s
    low, high = moment.at_s - near, moment.at_s + near
    times = np.concatenate((timeline.start_s, timeline.end_s, np.array([low, high])))
    times = np.sort(times[(times >= low) & (times <= high)])
    pauses = np.diff(times)
    widest = int(np.argmax(pauses))
    if pauses[widest] < WIDE * ROUNDING * (high + moment.period_s):
        return None
    return _Candidate(float(times[widest] + times[widest + 1]) / 2, moment.period_s)


def _comes_back(moment: _Candidate, tasks: StepTasks, timeline: Timeline, stretch: Stretch, shift: int) -> bool:
    """Whether the state at the moment is that of one period later, item by item `shift` items on."""
    at_s, until_s = moment.at_s, moment.at_s + moment.period_s
    start_s, end_s, item = timeline.start_s, timeline.end_s, tasks.labels.item
    items = len(tasks.order.kind)
    follower = _followers(item, stretch.shifted(shift, items))
    follows = follower >= 0
    followed = np.zeros(len(item), bool)
    followed[follower[follows]] = True
    inside = (item >= 0) & stretch.inside(items)[item]
    # what has ended or begun is the same, one period on; outside of what repeats nothing changes or is under way
    before, after = follower[follows], np.nonzero(follows)[0]
    for times in (start_s, end_s):
        early, late = times < at_s, times < until_s
        if (early[after] != late[before]).any() or early[inside & ~follows].any() or not late[inside & ~followed].all():
            return False
        if (early != late)[~inside].any():
            return False
    running = (start_s < at_s) & (end_s > at_s)
    if (running & ~inside).any():
        return False
    return _goes_on(moment, tasks, timeline, follower, running)


def _goes_on(moment: _Candidate, tasks: StepTasks, timeline: Timeline, follower: Ints, running: Bools) -> bool:
    """Whether all that runs at the moment, and what begins before it ends, takes its course one period later.

    What a message still has to send is then the same, since all that shares links with it is.
    """
    at_s, lasts_s = moment.at_s, moment.period_s
    start_s, end_s, item, graph = timeline.start_s, timeline.end_s, tasks.labels.item, tasks.graph
    begun_s = np.where(item >= 0, start_s[tasks.begin[:, 0]][item], start_s)
    ends_s = float(end_s[running].max(initial=at_s))
    course = (end_s > at_s) & (start_s <= ends_s)
    # of items on one side of the moment, tasks on its other side
    course |= (begun_s < at_s) & (end_s > at_s)
    course |= (begun_s > at_s) & (start_s < at_s)
    if (follower[course] < 0).any():
        return False
    here, there = np.nonzero(course)[0], follower[course]
    for column in (graph.seconds, graph.bytes, graph.route):
        if (column[here] != column[there]).any():
            return False
    near = ROUNDING * (ends_s + lasts_s)
    return all(bool((np.abs(times[there] - times[here] - lasts_s) <= near).all()) for times in (start_s, end_s))


def _followers(item: Ints, target: Ints) -> Ints:
    """For every task the same one of the item that `target` names for its item; -1 where there is none."""
    order = np.argsort(item, kind="stable")
    counts = np.bincount(item[item >= 0], minlength=len(target))
    outside = int((item < 0).sum())
    starts = outside + np.cumsum(counts) - counts
    place = np.empty(len(item), np.int64)
    place[order] = np.arange(len(item))
    goal = np.where(item >= 0, target[item], -1)
    (known,) = np.nonzero(goal >= 0)
    within = place[known] - starts[item[known]]
    same = counts[goal[known]] == counts[item[known]]
    follower = np.full(len(item), -1)
    follower[known[same]] = order[starts[goal[known[same]]] + within[same]]
    return follower
