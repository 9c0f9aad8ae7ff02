"""Compiled step times of interleaved pipelines: periods are run until times repeat, and the others added."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats
from dovetail.compilation import compiled
from dovetail.pipeline.interleaved_order import (
    ROW,
    SENDS,
    SENT,
    STAGE,
    TAKEN,
    TAKES,
    PeriodicOrder,
    periodic_order,
)

#: Plans that go through an order together: whole vector registers, and rows that stay in the nearest cache.
LANES = 32
#: How far, relative, the seconds by which the parts of a pipeline move on in a period may differ and count as equal:
#: what rounding makes of them. However many periods are added, the step is off by no more.
SAME = 3e-13
#: Periods that plans go through together; those whose times do not repeat by then go on one by one.
TOGETHER = 3
#: Periods over which times may repeat together.
LONGEST_CYCLE = 16


@compiled
def interleaved(
    forward: Floats, backward: Floats, transfer: Floats, num_microbatches: int, chunks: int, group: int
) -> Floats:
    """Step times; forward and backward are places × plans, transfer is links × plans."""
    places, n = forward.shape
    p = places // chunks
    step = np.empty(n)
    if p == 1:  # nothing to wait for
        for plan in range(n):
            step[plan] = num_microbatches * (forward[:, plan].sum() + backward[:, plan].sum())
        return step
    order = periodic_order(p, num_microbatches, chunks, group)
    duration, delay = np.zeros((2 * places, LANES)), np.zeros((2 * p, LANES))
    for low in range(0, n, LANES):
        width = min(LANES, n - low)
        for row in range(places):
            for lane in range(width):
                duration[row, lane] = forward[row, low + lane]
                duration[places + row, lane] = backward[row, low + lane]
        for link in range(p):
            for lane in range(width):
                delay[link, lane] = delay[p + link, lane] = transfer[link, low + lane]
        step[low : low + width] = steps_of_lanes(order, duration, delay, width)
    return step


@compiled
def steps_of_lanes(order: PeriodicOrder, duration: Floats, delay: Floats, width: int) -> Floats:
    """Step times of the first `width` lanes; durations are rows × lanes, delays links × lanes."""
    p = len(delay) // 2
    ends, message = np.zeros((p, LANES)), np.zeros((2 * p, order.room, LANES))
    _run(order, 0, order.first, 0, duration, delay, ends, message, width)
    ran, repeat, progress = 0, False, np.zeros((2, LANES))
    if order.periods:
        state = np.empty((2, p + (order.sent - order.taken).sum(), LANES))
        while not repeat and ran < min(TOGETHER, order.periods):
            _run(order, order.first, order.last, ran, duration, delay, ends, message, width)
            ran += 1
            _copy_state(order, ran, ends, message, state[ran % 2])
            if ran > 1:
                repeat = True
                for lane in range(width):
                    progress[:, lane] = _progress(state[ran % 2, :, lane], state[(ran - 1) % 2, :, lane])
                    repeat = repeat and _repeats(progress[0, lane], progress[1, lane])
        _run(order, order.last, len(order.operations), ran - 1, duration, delay, ends, message, width)
    step = np.zeros(width)
    for lane in range(width):
        step[lane] = ends[:, lane].max()
        if ran < order.periods:
            if _repeats(progress[0, lane], progress[1, lane]):
                step[lane] += (order.periods - ran) * progress[1, lane]
            else:
                step[lane] = step_alone(order, duration[:, lane].copy(), delay[:, lane].copy())
    return step


@compiled
def _repeats(slowest: float, fastest: float) -> bool:
    """Whether all parts of a state have moved on by the same."""
    return fastest - slowest <= SAME * fastest


@compiled
def _run(
    order: PeriodicOrder,
    start: int,
    stop: int,
    period: int,
    duration: Floats,
    delay: Floats,
    ends: Floats,
    message: Floats,
    width: int,
) -> None:
    """Operations of the first lanes; of the period, those of its n-th run, and of the end, those after it."""
    operations, in_period, mask = order.operations, order.in_period, order.room - 1
    for k in range(start, stop):
        stage, row, takes, sends = operations[k, STAGE], operations[k, ROW], operations[k, TAKES], operations[k, SENDS]
        if takes >= 0:
            number = (operations[k, TAKEN] + period * in_period[takes]) & mask
            for lane in range(width):
                end, arrived = ends[stage, lane], message[takes, number, lane]
                ends[stage, lane] = end if end > arrived else arrived
        if sends >= 0:
            number = (operations[k, SENT] + period * in_period[sends]) & mask
            for lane in range(width):
                end = ends[stage, lane] + duration[row, lane]
                ends[stage, lane] = end
                message[sends, number, lane] = end + delay[sends, lane]
        else:
            for lane in range(width):
                ends[stage, lane] += duration[row, lane]


@compiled
def _copy_state(order: PeriodicOrder, period: int, ends: Floats, message: Floats, state: Floats) -> None:
    """What later operations see when the n-th period is over: ends of stages, and messages that wait."""
    p, mask = len(ends), order.room - 1
    state[:p] = ends
    row = p
    for link in range(2 * p):
        shift = period * order.in_period[link]
        for number in range(order.taken[link] + shift, order.sent[link] + shift):
            state[row] = message[link, number & mask]
            row += 1


@compiled
def step_alone(order: PeriodicOrder, duration: Floats, delay: Floats) -> float:
    """One plan's step, however long its times take to repeat; periods in which they move on evenly are added too."""
    p = len(delay) // 2
    ends, message = np.zeros(p), np.zeros((2 * p, order.room))
    slack, slack_before = np.zeros(len(order.operations)), np.zeros(len(order.operations))
    _run_alone(order, 0, order.first, 0, duration, delay, ends, message, slack)
    states = np.empty((LONGEST_CYCLE + 1, p + (order.sent - order.taken).sum()))
    _copy_state(order, 0, ends, message, states[0])
    left, ran, known, added, repeats = order.periods, 0, 0, 0.0, False
    while left > 0:
        slack, slack_before = slack_before, slack
        _run_alone(order, order.first, order.last, ran, duration, delay, ends, message, slack)
        left, ran, known = left - 1, ran + 1, known + 1
        if repeats:
            continue
        now = states[known % len(states)]
        _copy_state(order, ran, ends, message, now)
        for cycle in range(1, min(known, LONGEST_CYCLE) + 1):
            slowest, fastest = _progress(now, states[(known - cycle) % len(states)])
            if _repeats(slowest, fastest):
                added, left, repeats = (left // cycle) * fastest, left % cycle, True
                break
        if known >= 2 and not repeats:
            before = states[(known - 1) % len(states)]
            evenly = _even_periods(order, now, before, states[(known - 2) % len(states)], slack, slack_before, left)
            if evenly > 0:
                _move_on(order, ran, evenly, now - before, ends, message)
                left, known = left - evenly, 0
                _copy_state(order, ran, ends, message, states[0])
    _run_alone(order, order.last, len(order.operations), ran - 1, duration, delay, ends, message, slack)
    return ends.max() + added


@compiled
def _run_alone(
    order: PeriodicOrder,
    start: int,
    stop: int,
    period: int,
    duration: Floats,
    delay: Floats,
    ends: Floats,
    message: Floats,
    slack: Floats,
) -> None:
    """As `_run`, for one plan; `slack` is how long before its stage is free an operation's message arrives."""
    operations, mask = order.operations, order.room - 1
    for k in range(start, stop):
        stage, takes, sends = operations[k, STAGE], operations[k, TAKES], operations[k, SENDS]
        if takes >= 0:
            arrived = message[takes, (operations[k, TAKEN] + period * order.in_period[takes]) & mask]
            slack[k] = ends[stage] - arrived
            ends[stage] = max(ends[stage], arrived)
        ends[stage] += duration[operations[k, ROW]]
        if sends >= 0:
            message[sends, (operations[k, SENT] + period * order.in_period[sends]) & mask] = ends[stage] + delay[sends]


@compiled
def _progress(now: Floats, earlier: Floats) -> tuple[float, float]:
    """By how much the parts of a state have moved on, the least and the most."""
    slowest, fastest = np.inf, -np.inf
    for part in range(len(now)):
        moved = now[part] - earlier[part]
        slowest, fastest = min(slowest, moved), max(fastest, moved)
    return slowest, fastest


@compiled
def _even_periods(
    order: PeriodicOrder,
    now: Floats,
    before: Floats,
    earlier: Floats,
    slack: Floats,
    slack_before: Floats,
    left: int,
) -> int:
    """For how many periods every part of the state goes on moving by what it moved in each of the last two.

    It does as long as every operation waits for the same as in them: until a slack that shrinks is used up.
    """
    _, fastest = _progress(now, before)
    for part in range(len(now)):
        if abs(now[part] - 2 * before[part] + earlier[part]) > SAME * fastest:
            return 0
    for k in range(order.first, order.last):
        change = slack[k] - slack_before[k]
        if order.operations[k, TAKES] < 0 or abs(change) <= SAME * fastest:
            continue
        if slack[k] * slack_before[k] <= 0:
            return 0
        if slack[k] * change < 0:
            left = min(left, int(-slack[k] / change))
    return left


@compiled
def _move_on(order: PeriodicOrder, period: int, periods: int, moved: Floats, ends: Floats, message: Floats) -> None:
    """Adds to the state after the n-th period what it moves in so many more."""
    p, mask = len(ends), order.room - 1
    ends += periods * moved[:p]
    row = p
    for link in range(2 * p):
        shift = period * order.in_period[link]
        for number in range(order.taken[link] + shift, order.sent[link] + shift):
            message[link, number & mask] += periods * moved[row]
            row += 1
