"""Compiled lower bounds of one group's makespan: paths, work, weighted means of both, and refuted makespans."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.arrays import ROUNDING, Bools, Floats, Ints
from dovetail.compilation import compiled
from dovetail.schedule.arrays import TaskGroup

#: Most levels of use of a resource to try as blocking.
LEVELS = 8
#: Choices of modes sampled while the weights move.
SAMPLED = 4


class Windows(NamedTuple):
    """What a trial makespan leaves every task: cycles before and after it, and its allowed modes."""

    heads: Ints
    tails: Ints
    #: modes are sorted by cycles, so those short enough come first
    allowed: Ints
    #: tasks × modes × resources: the least work among a mode and all shorter ones
    least_work: Ints
    by_tail: Ints


class Weights(NamedTuple):
    """Costs of modes, the cheapest modes, and the longest path through those."""

    #: tasks × modes
    costs: Floats
    choice: Ints
    #: samples × tasks: modes chosen on the way
    sampled_modes: Ints
    #: resources: 1 / capacity
    scales: Floats
    lengths: Ints
    path: Ints
    marked: Bools
    levels: Ints


@compiled
def windows_for(group: TaskGroup) -> Windows:
    """Windows of a group before any makespan is tried."""
    n, most = group.cycles.shape
    least_work = np.empty((n, most, 3), np.int64)
    for i in range(n):
        for r in range(3):
            smallest = group.work[i, 0, r]
            for m in range(group.choices[i]):
                smallest = min(smallest, group.work[i, m, r])
                least_work[i, m, r] = smallest
    return Windows(np.zeros(n, np.int64), np.zeros(n, np.int64), group.choices.copy(), least_work, np.arange(n))


@compiled
def weights_for(group: TaskGroup) -> Weights:
    """Arrays for the weights of a group."""
    n, scales = len(group.choices), np.zeros(3)
    for r in range(3):
        scales[r] = 1.0 / group.capacities[r] if group.capacities[r] else 0.0
    empty = np.zeros(n, np.int64)
    marked, levels = np.zeros(n, np.bool_), np.zeros(2 * n + 2, np.int64)
    return Weights(
        np.zeros(group.cycles.shape),
        empty,
        np.zeros((SAMPLED, n), np.int64),
        scales,
        empty.copy(),
        empty.copy(),
        marked,
        levels,
    )


@compiled
def simple_bound(group: TaskGroup, windows: Windows) -> int:
    """The longest path of shortest modes, and the least work of every resource; sets heads and tails."""
    n, bound = len(group.choices), 0
    _narrow(group, windows)
    for i in range(n):
        bound = max(bound, windows.heads[i] + group.cycles[i, 0] + windows.tails[i])
    for r in range(3):
        work = 0
        for i in range(n):
            work += windows.least_work[i, windows.allowed[i] - 1, r]
        if group.capacities[r] > 0:
            bound = max(bound, -(-work // group.capacities[r]))
    return bound


@compiled
def _narrow(group: TaskGroup, windows: Windows) -> None:
    """Updates heads and tails from the longest paths and the least work before and after each task."""
    n = len(group.choices)
    heads, tails = windows.heads, windows.tails
    for i in range(n):
        for e in range(group.first_need[i], group.first_need[i + 1]):
            j = group.needs[e]
            heads[i] = max(heads[i], heads[j] + group.cycles[j, 0])
        heads[i] = max(heads[i], _work_time(group, windows, group.before[:, i]))
    for i in range(n - 1, -1, -1):
        for e in range(group.first_follower[i], group.first_follower[i + 1]):
            j = group.followers[e]
            tails[i] = max(tails[i], tails[j] + group.cycles[j, 0])
        tails[i] = max(tails[i], _work_time(group, windows, group.before[i]))


@compiled
def _work_time(group: TaskGroup, windows: Windows, members: Bools) -> int:
    """Cycles that the least work of some tasks takes."""
    one, two, three = 0, 0, 0
    for j in range(len(members)):
        if members[j]:
            work = windows.least_work[j, windows.allowed[j] - 1]
            one, two, three = one + work[0], two + work[1], three + work[2]
    capacities = group.capacities
    time = -(-one // capacities[0]) if capacities[0] else 0
    time = max(time, -(-two // capacities[1]) if capacities[1] else 0)
    return max(time, -(-three // capacities[2]) if capacities[2] else 0)


@compiled
def refuted(group: TaskGroup, windows: Windows, weights: Weights, trial: int, rounds: int) -> bool:
    """Whether it is proven that no schedule ends within the trial makespan.

    Destructive bounds (Klein and Scholl 1999, European Journal of Operational Research 112): a task may use the modes
    that its head and tail leave time for, and their least work has to fit.
    """
    n = len(group.choices)
    windows.heads[:] = 0
    windows.tails[:] = 0
    windows.allowed[:] = group.choices
    for _ in range(3):
        _narrow(group, windows)
        changed = False
        for i in range(n):
            while windows.allowed[i] and (
                windows.heads[i] + group.cycles[i, windows.allowed[i] - 1] + windows.tails[i] > trial
            ):
                windows.allowed[i] -= 1
                changed = True
            if windows.allowed[i] == 0:
                return True
        if not changed:
            break
    if _too_much_work(group, windows, trial) or too_wide(group, windows, trial):
        return True
    return rounds > 0 and weighed(group, windows, weights, trial, rounds) > trial


@compiled
def _too_much_work(group: TaskGroup, windows: Windows, trial: int) -> bool:
    """Whether tasks between some head and some tail have more work than fits between them."""
    n, by_tail = len(group.choices), windows.by_tail
    for k in range(1, n):
        i, j = by_tail[k], k
        while j > 0 and windows.tails[by_tail[j - 1]] < windows.tails[i]:
            by_tail[j] = by_tail[j - 1]
            j -= 1
        by_tail[j] = i
    for first in range(n):
        head = windows.heads[first]
        one, two, three = 0, 0, 0
        for k in range(n):
            i = by_tail[k]
            if windows.heads[i] >= head:
                work = windows.least_work[i, windows.allowed[i] - 1]
                one, two, three = one + work[0], two + work[1], three + work[2]
                time = trial - head - windows.tails[i]
                capacities = group.capacities
                if one > time * capacities[0] or two > time * capacities[1] or three > time * capacities[2]:
                    return True
    return False


@compiled
def too_wide(group: TaskGroup, windows: Windows, trial: int) -> bool:
    """Whether cores and cycles, both rounded by dual feasible functions, exceed the area of the trial makespan.

    Fekete and Schepers 2004 (Mathematics of Operations Research 29) for rectangles. Tasks in time are intervals, whose
    graph is perfect: uses that fit at all times are a mixture of sets of tasks that run one after the other.
    """
    n = len(group.choices)
    for r in range(3):
        capacity = group.capacities[r]
        if capacity == 0:
            continue
        for parts in range(1, 4):
            plain, halved = 0.0, 0.0
            for i in range(n):
                smallest, smallest_halved = np.inf, np.inf
                for m in range(windows.allowed[i]):
                    one, two = group.uses[i, m, 0, r], group.uses[i, m, 1, r]
                    length, first = group.cycles[i, m], group.first[i, m]
                    both = min(one, two) if length > first else one
                    total, begin, end = (
                        _part(length, trial, parts),
                        _part(first, trial, parts),
                        _part(length - first, trial, parts),
                    )
                    smallest = min(smallest, max(both * total, one * begin + two * end) / capacity)
                    halves = max(
                        _half(both, capacity) * total, _half(one, capacity) * begin + _half(two, capacity) * end
                    )
                    smallest_halved = min(smallest_halved, halves)
                plain, halved = plain + smallest, halved + smallest_halved
            if max(plain, halved) * (1 - ROUNDING) > 1:
                return True
    return False


@compiled
def _part(cycles: int, trial: int, parts: int) -> float:
    """The share of the trial makespan, rounded to a number of parts; shares sum to at most 1 if all fit."""
    scaled = (parts + 1) * cycles
    return cycles / trial if scaled % trial == 0 else (scaled // trial) / parts


@compiled
def _half(use: int, capacity: int) -> float:
    """1 for more than half of the capacity (no two of these fit together); 1/2 for exactly half."""
    return 1.0 if 2 * use > capacity else 0.5 if 2 * use == capacity else 0.0


@compiled
def weighed(group: TaskGroup, windows: Windows, weights: Weights, target: int, rounds: int) -> float:
    """The best weighted mean of lower bounds found, with each task in its cheapest mode under the weights.

    Every schedule has work ≤ capacity × makespan and paths ≤ makespan, so any mean of them is a bound: the dual of the
    allotment program for malleable tasks (Jansen and Zhang 2006, ACM Transactions on Algorithms 2). Weights move
    towards the longest bound in the chosen modes, by shrinking steps (Brown 1951, fictitious play).
    """
    best, step = 0.0, 1.0
    weights.choice[:] = 0
    for k in range(rounds):
        length = _longest(group, weights)
        most, counted, blocking, level = _heaviest(group, weights)
        if length >= most:
            _mark_path(group, weights)
            value = _mix_path(group, windows, weights, step)
        else:
            value = _mix_work(group, windows, weights, step, counted, blocking, level)
        best = max(best, value)
        if best * (1 - ROUNDING) > target:
            break
        weights.sampled_modes[k * SAMPLED // rounds] = weights.choice
        step = 2.0 / (k + 3)
    return best * (1 - ROUNDING)


@compiled
def _heaviest(group: TaskGroup, weights: Weights) -> tuple[float, int, int, int]:
    """The longest work in the chosen modes: the resource counted, the resource that blocks, and its level."""
    most, counted, blocking, level = -1.0, 0, 0, 0
    capacities = group.capacities
    for s in range(3):
        for k in range(1 if s else 0, _levels(group, weights, s)):
            use_level = weights.levels[k]
            one, two, three = 0.0, 0.0, 0.0
            for i in range(len(group.choices)):
                m = weights.choice[i]
                for phase in range(2):
                    cycles = group.first[i, m] if phase == 0 else group.cycles[i, m] - group.first[i, m]
                    use = group.uses[i, m, phase, s]
                    if cycles == 0 or use < use_level:
                        continue
                    if use > capacities[s] - use_level:
                        one, two, three = one + cycles, two + cycles, three + cycles
                    else:
                        one += cycles * weights.scales[0] * group.uses[i, m, phase, 0]
                        two += cycles * weights.scales[1] * group.uses[i, m, phase, 1]
                        three += cycles * weights.scales[2] * group.uses[i, m, phase, 2]
            heaviest = max(one, two, three)
            if heaviest > most:
                most, counted, blocking, level = (
                    heaviest,
                    0 if one == heaviest else 1 if two == heaviest else 2,
                    s,
                    use_level,
                )
    return most, counted, blocking, level


@compiled
def _levels(group: TaskGroup, weights: Weights, resource: int) -> int:
    """Lists uses of a resource in the chosen modes of at most half its capacity; returns how many there are.

    A level between two of them counts the same as the larger one but blocks less.
    """
    count, levels = 2, weights.levels
    # at the lowest level no mode escapes by using less
    levels[0], levels[1] = 0, 1
    for i in range(len(group.choices)):
        for phase in range(2):
            use = group.uses[i, weights.choice[i], phase, resource]
            if use < 2 or 2 * use > group.capacities[resource]:
                continue
            at = count
            while levels[at - 1] > use:
                at -= 1
            if levels[at - 1] < use:
                for k in range(count, at, -1):
                    levels[k] = levels[k - 1]
                levels[at] = use
                count += 1
    if count <= LEVELS:
        return count if group.capacities[resource] > 1 else 1
    # the largest, and some below it
    for k in range(2, LEVELS):
        levels[k] = levels[1 + (k - 1) * (count - 2) // (LEVELS - 2)]
    return LEVELS


@compiled
def _mix_work(
    group: TaskGroup, windows: Windows, weights: Weights, step: float, counted: int, blocking: int, level: int
) -> float:
    """Moves the costs towards a resource's work and chooses the cheapest modes; returns their sum.

    A mode that leaves less than the level of the blocking resource cannot overlap with others that use that much of it.
    """
    total, scale, limit = 0.0, weights.scales[counted] * step, group.capacities[blocking] - level
    for i in range(len(group.choices)):
        lowest, mode = np.inf, 0
        for m in range(windows.allowed[i]):
            first, cycles = group.first[i, m], group.cycles[i, m]
            use, then = group.uses[i, m, 0, blocking], group.uses[i, m, 1, blocking]
            cost = weights.costs[i, m] * (1 - step)
            if use >= level:
                cost += first * (step if use > limit else scale * group.uses[i, m, 0, counted])
            if cycles > first and then >= level:
                cost += (cycles - first) * (step if then > limit else scale * group.uses[i, m, 1, counted])
            weights.costs[i, m] = cost
            if cost < lowest:
                lowest, mode = cost, m
        total += lowest
        weights.choice[i] = mode
    return total


@compiled
def _mix_path(group: TaskGroup, windows: Windows, weights: Weights, step: float) -> float:
    """Moves the costs towards the marked tasks' cycles and chooses the cheapest modes; returns their sum."""
    total = 0.0
    for i in range(len(group.choices)):
        lowest, mode, weight = np.inf, 0, step if weights.marked[i] else 0.0
        for m in range(windows.allowed[i]):
            cost = weights.costs[i, m] * (1 - step) + weight * group.cycles[i, m]
            weights.costs[i, m] = cost
            if cost < lowest:
                lowest, mode = cost, m
        total += lowest
        weights.choice[i] = mode
    return total


@compiled
def _longest(group: TaskGroup, weights: Weights) -> int:
    """The longest path of the chosen modes; records every task's longest path and predecessor."""
    longest = 0
    for i in range(len(group.choices)):
        start, before = 0, -1
        for e in range(group.first_need[i], group.first_need[i + 1]):
            j = group.needs[e]
            if weights.lengths[j] > start:
                start, before = weights.lengths[j], j
        weights.lengths[i] = start + group.cycles[i, weights.choice[i]]
        weights.path[i] = before
        longest = max(longest, weights.lengths[i])
    return longest


@compiled
def _mark_path(group: TaskGroup, weights: Weights) -> None:
    """Marks the tasks of the longest path."""
    at = 0
    for i in range(len(group.choices)):
        weights.marked[i] = False
        if weights.lengths[i] > weights.lengths[at]:
            at = i
    while at >= 0:
        weights.marked[at] = True
        at = weights.path[at]
