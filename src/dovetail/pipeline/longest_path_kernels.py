"""Compiled longest paths: stage by stage through an order, many plans side by side."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.compilation import compiled
from dovetail.plans.pipeline_schedule import GPIPE, INTERLEAVED, ONE_F_ONE_B, ZB_H1

#: Plans that go through an order together: enough for vector instructions, few enough for the nearest cache.
LANES = 32


@compiled
def one_f_one_b(forward: Floats, backward: Floats, transfer: Floats, num_microbatches: int) -> Floats:
    """Step times of 1F1B; forward and backward are stages × plans, transfer is links × plans.

    With unit times stage i would do its forward j at tick 2j + i and its backward j at tick 2p − 1 − i + 2j. That
    is the order of 1F1B, and whatever the times, an item needs nothing from a later tick: at each tick the items
    are found by the stage's parity, and only the latest two ends of every stage are stored.
    """
    p, n = forward.shape
    m = num_microbatches
    step = np.empty(n)
    # Row i + 1 is stage i; the outer rows stand for what the ends of the pipeline need not wait for.
    forward_end, backward_end = np.empty((p + 2, LANES)), np.empty((p + 2, LANES))
    link = np.zeros((p + 1, LANES))
    for low in range(0, n, LANES):
        width = min(LANES, n - low)
        forward_end[:] = 0.0
        backward_end[:] = 0.0
        for i in range(p - 1):
            for lane in range(width):
                link[i + 1, lane] = transfer[i, low + lane]
        for tick in range(2 * (m + p) - 2):
            first = max(0, tick - 2 * (m - 1))
            first += (tick - first) % 2
            for i in range(first, min(p - 1, tick) + 1, 2):
                for lane in range(width):
                    start = max(forward_end[i + 1, lane], backward_end[i + 1, lane])
                    start = max(start, forward_end[i, lane] + link[i, lane])
                    forward_end[i + 1, lane] = start + forward[i, low + lane]
            first = max(0, 2 * p - 1 - tick)
            first += (tick + 1 - first) % 2
            for i in range(first, min(p - 1, 2 * p - 1 - tick + 2 * (m - 1)) + 1, 2):
                for lane in range(width):
                    start = max(forward_end[i + 1, lane], backward_end[i + 1, lane])
                    start = max(start, backward_end[i + 2, lane] + link[i + 1, lane])
                    backward_end[i + 1, lane] = start + backward[i, low + lane]
        for lane in range(width):
            step[low + lane] = backward_end[1, lane]  # stage 0 drains last
    return step


@compiled
def fill_and_drain(forward: Floats, backward: Floats, transfer: Floats, num_microbatches: int) -> Floats:
    """The longest of 1F1B's paths that fill the pipeline, stay at one stage, and drain it; inputs as above."""
    p, n = forward.shape
    step = np.empty(n)
    rows = np.empty((5, p))
    for plan in range(n):
        for i in range(p):
            rows[0, i], rows[1, i] = forward[i, plan], backward[i, plan]
            rows[2, i] = transfer[i, plan] if i < p - 1 else 0.0
        step[plan] = fill_and_drain_step(rows[0], rows[1], rows[2], p, num_microbatches, rows[3], rows[4])
    return step


@compiled
def fill_and_drain_step(
    forward: Floats, backward: Floats, transfer: Floats, p: int, num_microbatches: int, fill: Floats, drain: Floats
) -> float:
    """One plan's: seconds of every stage and link; `fill` and `drain` are scratch of the same length.

    Without transfers no path is longer, and this is the step time (docs/explanation/pipeline.md). With transfers it is
    a lower bound: round trips between stages may take longer than staying; only those to the last stage count.
    """
    m = num_microbatches
    there, back, slowest, slowest_back, link = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(p):
        # The warm-up forwards pass a flow shop of equal jobs; the drain is the same, backwards in time.
        further = min(m, p - i) - 1
        there += link + forward[i]
        back += link + backward[i]
        slowest = max(slowest, forward[i])
        slowest_back = max(slowest_back, backward[i])
        fill[i] = there + further * slowest
        drain[i] = back + further * slowest_back
        link = transfer[i]
    # when a stage can begin its first backward, how long the step lasts after its last forward, and a round trip from
    # it to the last stage
    begin, rest, trip, step = 0.0, 0.0, 0.0, 0.0
    for i in range(p - 1, -1, -1):
        if i < p - 1:
            begin += transfer[i] + backward[i + 1]
            rest += transfer[i] + forward[i + 1]
            trip += 2 * transfer[i]
        begin = max(begin, fill[i])
        rest = max(rest, drain[i])
        whole = forward[i] + backward[i]
        trip += whole
        step = max(step, through(begin, rest, fill[i], drain[i], trip, whole, m, p - i))
    return step


@compiled
def gpipe_step(forward: Floats, backward: Floats, transfer: Floats, p: int, num_microbatches: int) -> float:
    """One plan's step under GPipe.

    Each half is a permutation flow shop of equal jobs, and every backward comes after the last stage's forwards.
    """
    there, back, slowest, slowest_back, links = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(p):
        there += forward[i]
        back += backward[i]
        slowest = max(slowest, forward[i])
        slowest_back = max(slowest_back, backward[i])
        links += transfer[i] if i < p - 1 else 0.0
    return there + back + (num_microbatches - 1) * (slowest + slowest_back) + 2 * links


@compiled
def gpipe(forward: Floats, backward: Floats, transfer: Floats, num_microbatches: int) -> Floats:
    """Step times of GPipe; inputs as above."""
    p, n = forward.shape
    step = np.empty(n)
    for plan in range(n):
        step[plan] = gpipe_step(forward[:, plan], backward[:, plan], transfer[:, plan], p, num_microbatches)
    return step


@compiled
def least_step(
    schedule: int,
    p: int,
    num_microbatches: int,
    chunks: int,
    forward: Floats,
    backward: Floats,
    transfer: Floats,
    fill: Floats,
    drain: Floats,
) -> float:
    """One plan's step under any schedule: exact for GPipe and for 1F1B without transfers, a bound for the others.

    Seconds are by place along the model; a transfer delays its receiver. That of the first link stands for all links
    where a pipeline is interleaved.
    """
    m = num_microbatches
    if schedule == ONE_F_ONE_B:
        return fill_and_drain_step(forward, backward, transfer, p, m, fill, drain)
    if schedule == GPIPE:
        return gpipe_step(forward, backward, transfer, p, m)
    longest, before = 0.0, 0.0
    for k in range(p):
        if schedule == INTERLEAVED:
            # its first forward waits for the chunks before it, and after its last backward those chunks follow
            work = 0.0
            for chunk in range(chunks):
                work += forward[k + chunk * p] + backward[k + chunk * p]
            longest = max(longest, before + m * work)
            before += forward[k] + backward[k] + 2 * transfer[0]
        elif schedule == ZB_H1:
            # weight gradients fill the time in which the last input gradients travel back
            longest = max(longest, before + m * (forward[k] + backward[k]))
            before += forward[k] + transfer[0]
        else:
            # either direction brings half of the micro-batches
            other = forward[p - 1 - k] + backward[p - 1 - k]
            longest = max(longest, m / 2 * (forward[k] + backward[k] + other))
    return longest


@compiled(inline="always")
def through(
    begin: float,
    rest: float,
    fill: float,
    drain: float,
    trip: float,
    whole: float,
    num_microbatches: int,
    in_flight: int,
) -> float:
    """The longest way from a stage's first backward to its last forward, with what comes before and after."""
    if num_microbatches <= in_flight:  # its last forward comes before its first backward
        return max(begin + drain, fill + rest)
    between = num_microbatches - in_flight
    rounds, single = between // in_flight, between % in_flight
    gain = max(0.0, trip - in_flight * whole)  # of a round trip over staying for as many micro-batches
    if single > 0:
        return begin + between * whole + rounds * gain + rest
    stayed = begin + between * whole + max(0, rounds - 1) * gain + rest
    # A last trip ends at a backward, from where it only goes on to the drain.
    return max(stayed, begin + rounds * trip + drain) if rounds > 0 else stayed


@compiled
def topological_order(starts: Ints, need: Ints) -> Ints:
    """Operations in an order in which each comes after what it needs; shorter than all of them if they deadlock.

    Stage i has the operations starts[i] to starts[i + 1], to be done in this sequence; operation k also needs
    those of need[k], where -1 is none.
    """
    stages, count = len(starts) - 1, 0
    order, done = np.empty(len(need), np.int64), np.zeros(len(need), np.bool_)
    following = starts[:-1].copy()
    moving = True
    while moving:
        moving = False
        for i in range(stages):
            while following[i] < starts[i + 1]:
                k = following[i]
                if (need[k, 0] >= 0 and not done[need[k, 0]]) or (need[k, 1] >= 0 and not done[need[k, 1]]):
                    break
                done[k] = True
                order[count] = k
                count += 1
                following[i] += 1
                moving = True
    return order[:count]


@compiled
def longest_path(
    stage: Ints, need: Ints, link: Ints, row: Ints, num_stages: int, duration: Floats, transfer: Floats
) -> tuple[Floats, Floats]:
    """Step times, and the ends of the first plan's operations, of operations in topological order.

    Operation k runs on stage[k] for duration[row[k]] seconds, after the stage's operation before it and after the
    operations need[k] whose results come over link[k]. Index 0 of need and of link is nothing: operation k is
    number k + 1. Durations are rows × plans, transfers links × plans.
    """
    count, n = len(stage), duration.shape[1]
    step = np.zeros(n)
    first_ends = np.empty(count)
    lanes = min(LANES, n)
    last = np.empty((num_stages, lanes))
    end = np.zeros((count + 1, lanes))
    for low in range(0, n, LANES):
        width = min(LANES, n - low)
        last[:] = 0.0
        for k in range(count):
            s, r = stage[k], row[k]
            for side in range(2):
                a, over = need[k, side], link[k, side]
                if side == 0 or a != need[k, 0]:
                    for lane in range(width):
                        last[s, lane] = max(last[s, lane], end[a, lane] + transfer[over, low + lane])
            for lane in range(width):
                last[s, lane] += duration[r, low + lane]
                end[k + 1, lane] = last[s, lane]
        if low == 0:
            for k in range(count):
                first_ends[k] = end[k + 1, 0]
        for s in range(num_stages):
            for lane in range(width):
                step[low + lane] = max(step[low + lane], last[s, lane])
    return step, first_ends
