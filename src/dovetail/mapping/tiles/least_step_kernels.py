"""The lower bound of a pipeline of tiles, compiled: called for every skeleton of thousands of wafers."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.compilation import compiled
from dovetail.pipeline.compiled_formulas import chunk_runs_in_flight
from dovetail.plans.pipeline_schedule import ONE_F_ONE_B

#: Bisection steps: far more precise than our tolerance for ties.
HALVINGS = 60

#: Where the bisection may end, relative.
PRECISION = 1e-11


@compiled
def _interpolated(at: float, knots: Floats, values: Floats) -> float:
    """A piecewise linear function, constant beyond its ends."""
    if at >= knots[-1]:
        return float(values[-1])
    low, high = 0, len(knots) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if knots[middle] <= at:
            low = middle
        else:
            high = middle
    if knots[high] <= knots[low]:
        return float(min(values[low], values[high]))
    part = (at - knots[low]) / (knots[high] - knots[low])
    return float(values[low] + part * (values[high] - values[low]))


@compiled
def _stage_seconds(
    numbers: Ints,
    main: int,
    saved: Floats,
    seconds: Floats,
    state: Floats,
    capacity: float,
    in_flight: int,
    lines: Floats,
) -> float:
    """Fewest seconds of a micro-batch on a stage with so many blocks of every class; infinite if they do not fit.

    Blocks of the main class share the memory that is left; others save least and yet take the time of saving all.
    `lines` bound the main class with a price on memory: the price, the micro-batches in flight it is for, and the
    lowest seconds plus priced bytes of a block.
    """
    left, others = capacity, 0.0
    for c in range(len(numbers)):
        if numbers[c] > 0 and c != main:
            left -= numbers[c] * (state[c] + in_flight * saved[c, 0])
            others += numbers[c] * seconds[c, -1]
    if numbers[main] == 0:
        return others if left >= 0 else np.inf
    each = (left / numbers[main] - state[main]) / in_flight
    if each < saved[main, 0]:
        return np.inf
    total = numbers[main] * _interpolated(each, saved[main], seconds[main])
    for j in range(len(lines)):
        if lines[j, 1] <= in_flight:
            total = max(total, numbers[main] * lines[j, 2] - lines[j, 0] * left)
    return others + total


@compiled
def _holds(
    step_s: float,
    order: Ints,
    main: int,
    pipeline: tuple[int, int],
    saved: Floats,
    seconds: Floats,
    forward: Floats,
    state: Floats,
    working: float,
    ends_s: Floats,
    ends_bytes: Floats,
    capacity: float,
    lines: Floats,
) -> bool:
    """Whether the stages can run all blocks within a step, each taking as many as it can, in order.

    A stage runs all micro-batches, after the first one's forward has passed the stages before it. What follows its last
    work is not counted, since weight gradients can fill it (ZB-H1). Taking as many blocks as possible is optimal: a
    block more on a stage delays later stages by one forward, but costs a stage that runs it all micro-batches.
    """
    stages, microbatches = pipeline
    taken, before_s = 0, 0.0
    numbers = np.zeros(len(state), np.int64)
    for stage in range(stages):
        numbers[:] = 0
        fixed_s, room = 0.0, capacity
        if stage == 0:
            fixed_s += ends_s[0]
            room -= ends_bytes[0]
        if stage == stages - 1:
            fixed_s += ends_s[1]
            room -= ends_bytes[1]
        limit = (step_s - before_s) / microbatches - fixed_s
        if room < 0 or (fixed_s > 0 and limit < 0):
            return False
        in_flight = chunk_runs_in_flight(ONE_F_ONE_B, stages, microbatches, 1, 1, stage)
        added_s = 0.0
        while taken < len(order):
            numbers[order[taken]] += 1
            if _stage_seconds(numbers, main, saved, seconds, state, room - working, in_flight, lines) > limit:
                break
            added_s += forward[order[taken]]
            taken += 1
        before_s += added_s
    return taken == len(order)


@compiled
def pipeline_least_s(
    order: Ints,
    main: int,
    pipeline: tuple[int, int],
    saved: Floats,
    seconds: Floats,
    forward: Floats,
    state: Floats,
    working: float,
    ends_s: Floats,
    ends_bytes: Floats,
    capacity: float,
    lines: Floats,
    low: float,
    enough_s: float,
) -> float:
    """A lower bound of a step; infinite if the blocks do not fit; from `enough_s` on it need not be exact.

    `pipeline` is stages and micro-batches; tables have a row per class of blocks; `low` is a bound known before.
    """
    if low >= enough_s:
        return low
    high = ends_s[0] + ends_s[1]
    for c in order:
        high += seconds[c, 0] + forward[c]
    for j in range(len(lines)):
        high += len(order) * lines[j, 2]
    high = max(2 * pipeline[1] * high, 2 * low)
    if not _holds(
        high, order, main, pipeline, saved, seconds, forward, state, working, ends_s, ends_bytes, capacity, lines
    ):
        return np.inf
    for _ in range(HALVINGS):
        if low >= enough_s or high - low <= PRECISION * high:
            break
        middle = (low + high) / 2
        if _holds(
            middle, order, main, pipeline, saved, seconds, forward, state, working, ends_s, ends_bytes, capacity, lines
        ):
            high = middle
        else:
            low = middle
    return low


@compiled
def pipelines_least_s(
    order: Ints,
    main: int,
    columns: Ints,
    saved: Floats,
    seconds: Floats,
    forward: Floats,
    state: Floats,
    working: Floats,
    ends_s: Floats,
    ends_bytes: Floats,
    capacity: float,
    even_s: Floats,
    enough_s: Floats,
) -> Floats:
    """The same for many pipelines: columns are stages, micro-batches and the numbers of dies, batch and staging."""
    least, lines = np.empty(len(columns)), np.zeros((0, 3))
    for i in range(len(columns)):
        stages, microbatches, d, b, staged = columns[i]
        least[i] = pipeline_least_s(
            order,
            main,
            (stages, microbatches),
            saved[:, d, b],
            seconds[:, d, b],
            forward[:, d, b],
            state[staged, :, d],
            float(working[staged, d, b]),
            ends_s[d, b],
            ends_bytes[staged, :, d],
            capacity,
            lines,
            even_s[i],
            enough_s[i],
        )
    return least
