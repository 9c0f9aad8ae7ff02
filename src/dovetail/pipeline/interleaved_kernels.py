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
            there, back = 0.0, 0.0
            for row in range(places):
                there += forward[row, plan]
                back += backward[row, plan]
            step[plan] = num_microbatches * (there + back)
        return step
    order = periodic_order(p, num_microbatches, chunks, group)
    duration, delay = np.empty((2 * places, LANES)), np.empty((2 * p, LANES))
    for low in range(0, n, LANES):
        width = min(LANES, n - low)
        for row in range(places):
            for lane in range(width):
                duration[row, lane] = forward[row, low + lane]
                duration[places + row, lane] = backward[row, low + lane]
        for link in range(p):
            for lane in range(width):
                delay[link, lane] = delay[p + link, lane] = transfer[link, low + lane]
        steps_of_lanes(order, duration, delay, width, step, low)
    return step


# Below, rows of arrays are reached by their number: slices, their sums and what is assigned to them take seconds to
# compile.


@compiled
def steps_of_lanes(
    order: PeriodicOrder, duration: Floats, delay: Floats, width: int, step: Floats, first_plan: int
) -> None:
    """Step times of the first `width` lanes, for the plans from one on; durations and delays are rows × lanes.

    A link's messages that wait are `order.room` rows.
    """
    p = len(order.taken) // 2
    ends, message = np.empty((p, LANES)), np.empty((2 * p * order.room, LANES))
    slack = np.empty(0)
    for stage in range(p):
        for lane in range(width):
            ends[stage, lane] = 0.0
    _run(order, 0, order.first, 0, duration, delay, ends, message, width, slack)
    ran, repeat, parts = 0, False, _state_size(order)
    # two states, one after the other; by lane how far it moved on from the one to the other
    state, slowest, fastest = np.empty((2 * parts, LANES)), np.empty(LANES), np.empty(LANES)
    if order.periods:
        while not repeat and ran < min(TOGETHER, order.periods):
            _run(order, order.first, order.last, ran, duration, delay, ends, message, width, slack)
            ran += 1
            now, earlier = ran % 2 * parts, (ran - 1) % 2 * parts
            _copy_state(order, ran, ends, message, state, now, width)
            if ran > 1:
                repeat = True
                for lane in range(width):
                    slowest[lane], fastest[lane] = _progress(state, now, earlier, parts, lane)
                    repeat = repeat and _repeats(slowest[lane], fastest[lane])
        _run(order, order.last, len(order.operations), ran - 1, duration, delay, ends, message, width, slack)
    for lane in range(width):
        step[first_plan + lane] = _last(ends, lane)
        if ran < order.periods:
            if _repeats(slowest[lane], fastest[lane]):
                step[first_plan + lane] += (order.periods - ran) * fastest[lane]
            else:
                step[first_plan + lane] = step_alone(order, duration, delay, lane)


@compiled
def _repeats(slowest: float, fastest: float) -> bool:
    """Whether all parts of a state have moved on by the same."""
    return fastest - slowest <= SAME * fastest


@compiled
def _last(ends: Floats, lane: int) -> float:
    """The last of the ends of a lane."""
    last = ends[0, lane]
    for stage in range(1, len(ends)):
        last = max(last, ends[stage, lane])
    return last


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
    slack: Floats,
) -> None:
    """Operations of the first lanes; of the period, those of its n-th run, and of the end, those after it.

    `slack`, where there is any, becomes how long before its stage is free an operation's message arrives, in one lane.
    """
    operations, in_period, room, of_one = order.operations, order.in_period, order.room, len(slack) > 0
    mask = room - 1
    for k in range(start, stop):
        stage, row, takes, sends = operations[k, STAGE], operations[k, ROW], operations[k, TAKES], operations[k, SENDS]
        if takes >= 0:
            number = takes * room + ((operations[k, TAKEN] + period * in_period[takes]) & mask)
            if of_one:
                slack[k] = ends[stage, 0] - message[number, 0]
            for lane in range(width):
                end, arrived = ends[stage, lane], message[number, lane]
                ends[stage, lane] = end if end > arrived else arrived
        if sends >= 0:
            number = sends * room + ((operations[k, SENT] + period * in_period[sends]) & mask)
            for lane in range(width):
                end = ends[stage, lane] + duration[row, lane]
                ends[stage, lane] = end
                message[number, lane] = end + delay[sends, lane]
        else:
            for lane in range(width):
                ends[stage, lane] += duration[row, lane]


@compiled
def _state_size(order: PeriodicOrder) -> int:
    """Rows of a state: an end of every stage, and the messages that wait between periods."""
    parts = len(order.taken) // 2
    for link in range(len(order.taken)):
        parts += order.sent[link] - order.taken[link]
    return parts


@compiled
def _copy_state(
    order: PeriodicOrder, period: int, ends: Floats, message: Floats, state: Floats, first_row: int, width: int
) -> None:
    """What later operations see when the n-th period is over: ends of stages, and messages that wait."""
    row, mask = first_row, order.room - 1
    for stage in range(len(ends)):
        for lane in range(width):
            state[row, lane] = ends[stage, lane]
        row += 1
    for link in range(len(order.taken)):
        shift = period * order.in_period[link]
        for number in range(order.taken[link] + shift, order.sent[link] + shift):
            for lane in range(width):
                state[row, lane] = message[link * order.room + (number & mask), lane]
            row += 1


@compiled
def step_alone(order: PeriodicOrder, durations: Floats, delays: Floats, lane: int) -> float:
    """One lane's step, however long its times take to repeat; periods in which they move on evenly are added too."""
    p, parts, count = len(order.taken) // 2, _state_size(order), LONGEST_CYCLE + 1
    duration, delay = np.empty((len(durations), 1)), np.empty((2 * p, 1))
    for row in range(len(durations)):
        duration[row, 0] = durations[row, lane]
    for link in range(2 * p):
        delay[link, 0] = delays[link, lane]
    ends, message = np.empty((p, 1)), np.empty((2 * p * order.room, 1))
    for stage in range(p):
        ends[stage, 0] = 0.0
    # an operation that takes no message has no slack, and none is read
    slack, slack_before = np.empty(len(order.operations)), np.empty(len(order.operations))
    _run(order, 0, order.first, 0, duration, delay, ends, message, 1, slack)
    states = np.empty((count * parts, 1))
    _copy_state(order, 0, ends, message, states, 0, 1)
    left, ran, known, added, repeats = order.periods, 0, 0, 0.0, False
    while left > 0:
        slack, slack_before = slack_before, slack
        _run(order, order.first, order.last, ran, duration, delay, ends, message, 1, slack)
        left, ran, known = left - 1, ran + 1, known + 1
        if repeats:
            continue
        now = known % count * parts
        _copy_state(order, ran, ends, message, states, now, 1)
        for cycle in range(1, min(known, LONGEST_CYCLE) + 1):
            slowest, fastest = _progress(states, now, (known - cycle) % count * parts, parts, 0)
            if _repeats(slowest, fastest):
                added, left, repeats = (left // cycle) * fastest, left % cycle, True
                break
        if known >= 2 and not repeats:
            before = (known - 1) % count * parts
            evenly = _even_periods(
                order, states, now, before, (known - 2) % count * parts, parts, slack, slack_before, left
            )
            if evenly > 0:
                _move_on(order, ran, evenly, states, now, before, ends, message)
                left, known = left - evenly, 0
                _copy_state(order, ran, ends, message, states, 0, 1)
    _run(order, order.last, len(order.operations), ran - 1, duration, delay, ends, message, 1, slack)
    return _last(ends, 0) + added


@compiled
def _progress(state: Floats, now: int, earlier: int, parts: int, lane: int) -> tuple[float, float]:
    """By how much the parts of a lane's state have moved on between two, the least and the most."""
    slowest, fastest = np.inf, -np.inf
    for part in range(parts):
        moved = state[now + part, lane] - state[earlier + part, lane]
        slowest, fastest = min(slowest, moved), max(fastest, moved)
    return slowest, fastest


@compiled
def _even_periods(
    order: PeriodicOrder,
    states: Floats,
    now: int,
    before: int,
    earlier: int,
    parts: int,
    slack: Floats,
    slack_before: Floats,
    left: int,
) -> int:
    """For how many periods every part of the state goes on moving by what it moved in each of the last two.

    It does as long as every operation waits for the same as in them: until a slack that shrinks is used up.
    """
    _, fastest = _progress(states, now, before, parts, 0)
    for part in range(parts):
        if abs(states[now + part, 0] - 2 * states[before + part, 0] + states[earlier + part, 0]) > SAME * fastest:
            return 0
    for k in range(order.first, order.last):
        if order.operations[k, TAKES] < 0:
            continue
        change = slack[k] - slack_before[k]
        if abs(change) <= SAME * fastest:
            continue
        if slack[k] * slack_before[k] <= 0:
            return 0
        if slack[k] * change < 0:
            left = min(left, int(-slack[k] / change))
    return left


@compiled
def _move_on(
    order: PeriodicOrder,
    period: int,
    periods: int,
    states: Floats,
    now: int,
    before: int,
    ends: Floats,
    message: Floats,
) -> None:
    """Adds to the state after the n-th period what it moves in so many more."""
    part, mask = 0, order.room - 1
    for stage in range(len(ends)):
        ends[stage, 0] += periods * (states[now + part, 0] - states[before + part, 0])
        part += 1
    for link in range(len(order.taken)):
        shift = period * order.in_period[link]
        for number in range(order.taken[link] + shift, order.sent[link] + shift):
            moved = states[now + part, 0] - states[before + part, 0]
            message[link * order.room + (number & mask), 0] += periods * moved
            part += 1
