"""Compiled list schedules of one group: tasks in turn, each as early as resources and dependencies allow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.arrays import Ints
from dovetail.compilation import compiled
from dovetail.schedule.arrays import TaskGroup


class ListState(NamedTuple):
    """Free resources over time (`free[k]` from `times[k]` to the next), and the current schedule."""

    times: Ints
    free: Ints
    starts: Ints
    ends: Ints
    modes: Ints
    order: Ints


@compiled
def list_state(group: TaskGroup) -> ListState:
    """Arrays for list schedules of a group."""
    n = len(group.choices)
    return ListState(
        np.empty(3 * n + 2, np.int64),
        np.empty((3 * n + 2, 3), np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.arange(n),
    )


@compiled
def serial(group: TaskGroup, state: ListState, low: Ints, high: Ints, backward: bool) -> int:
    """Schedules the tasks in the state's order, each in the mode of [low, high] that ends first; returns the makespan.

    The serial schedule generation scheme (Kolisch 1996, European Journal of Operational Research 90). Backward, time
    runs from the end: followers come before what they need, second phases before first ones.
    """
    times, free, order, all_ends = state.times, state.free, state.order, state.ends
    cycles, first, uses = group.cycles, group.first, group.uses
    first_need, needs = (group.first_follower, group.followers) if backward else (group.first_need, group.needs)
    a, b = (1, 0) if backward else (0, 1)
    times[0] = 0
    for r in range(3):
        free[0, r] = group.capacities[r]
    size, makespan = 1, 0
    for k in range(len(order)):
        i = order[k]
        ready = 0
        for e in range(first_need[i], first_need[i + 1]):
            ready = max(ready, int(all_ends[needs[e]]))
        best, start, mode = -1, 0, 0
        for m in range(high[i], low[i] - 1, -1):
            total = cycles[i, m]
            # a mode ends no earlier than it would alone
            if best < 0 or ready + total < best:
                one = total - first[i, m] if backward else first[i, m]
                at = _earliest(times, free, size, ready, one, total, uses[i, m, a], uses[i, m, b])
                if best < 0 or at + total < best:
                    best, start, mode = at + total, at, m
        total = cycles[i, mode]
        one = total - first[i, mode] if backward else first[i, mode]
        if one > 0:
            size = _occupy(times, free, size, start, start + one, uses[i, mode, a])
        if one < total:
            size = _occupy(times, free, size, start + one, best, uses[i, mode, b])
        state.starts[i], all_ends[i], state.modes[i] = start, best, mode
        makespan = max(makespan, best)
    return makespan


@compiled(forceinline=True)
def _earliest(times: Ints, free: Ints, size: int, ready: int, one: int, total: int, use: Ints, then: Ints) -> int:
    """The earliest start at which all phases of a mode fit the free resources."""
    a0, a1, a2 = use[0], use[1], use[2]
    b0, b1, b2 = then[0], then[1], then[2]
    at, k = ready, size - 1
    while times[k] > at:
        k -= 1
    j = k
    while j < size and times[j] < at + total:
        # a stretch in which the mode does not fit moves its start past it
        end = times[j + 1] if j + 1 < size else at + total
        f0, f1, f2 = free[j, 0], free[j, 1], free[j, 2]
        if times[j] < at + one and (a0 > f0 or a1 > f1 or a2 > f2):
            at = end
        elif end > at + one and one < total and (b0 > f0 or b1 > f1 or b2 > f2):
            at = end - one
        else:
            j += 1
            continue
        while k + 1 < size and times[k + 1] <= at:
            k += 1
        j = k
    return at


@compiled(forceinline=True)
def _occupy(times: Ints, free: Ints, size: int, start: int, end: int, use: Ints) -> int:
    """Subtracts uses from the free resources between start and end; returns the new number of stretches."""
    size, low = _split_at(times, free, size, start)
    size, high = _split_at(times, free, size, end)
    for k in range(low, high):
        for r in range(3):
            free[k, r] -= use[r]
    return size


@compiled(forceinline=True)
def _split_at(times: Ints, free: Ints, size: int, at: int) -> tuple[int, int]:
    """Splits a stretch at a time; returns the number of stretches and the index of the new one."""
    k = size - 1
    while times[k] > at:
        k -= 1
    if times[k] == at:
        return size, k
    for j in range(size, k + 1, -1):
        times[j] = times[j - 1]
        free[j, 0], free[j, 1], free[j, 2] = free[j - 1, 0], free[j - 1, 1], free[j - 1, 2]
    times[k + 1] = at
    free[k + 1, 0], free[k + 1, 1], free[k + 1, 2] = free[k, 0], free[k, 1], free[k, 2]
    return size + 1, k + 1


@compiled
def by_tail(group: TaskGroup, modes: Ints, keys: Ints) -> None:
    """Every task's key: cycles from its start to the end of everything that depends on it, in the given modes."""
    for i in range(len(group.choices) - 1, -1, -1):
        longest = 0
        for e in range(group.first_follower[i], group.first_follower[i + 1]):
            longest = max(longest, keys[group.followers[e]])
        keys[i] = longest + group.cycles[i, modes[i]]


@compiled
def arrange(group: TaskGroup, state: ListState, keys: Ints, waiting: Ints) -> None:
    """Sets the state's order: among the tasks whose needs are met, the largest key first."""
    n = len(group.choices)
    for i in range(n):
        waiting[i] = group.first_need[i + 1] - group.first_need[i]
    for k in range(n):
        best = -1
        for i in range(n):
            if waiting[i] == 0 and (best < 0 or keys[i] > keys[best]):
                best = i
        waiting[best] = -1
        for e in range(group.first_follower[best], group.first_follower[best + 1]):
            waiting[group.followers[e]] -= 1
        state.order[k] = best


@compiled
def order_by_end(state: ListState) -> None:
    """Sets the state's order: the last to end first, for scheduling in the other direction of time."""
    order, ends = state.order, state.ends
    for k in range(1, len(order)):
        i, j = order[k], k
        while j > 0 and (ends[order[j - 1]] < ends[i]):
            order[j] = order[j - 1]
            j -= 1
        order[j] = i


@compiled
def justify(group: TaskGroup, state: ListState) -> int:
    """Schedules from the end and then from the start, in the same modes; returns the makespan.

    Double justification (Valls, Ballestín and Quintanilla 2005, European Journal of Operational Research 165): a
    schedule whose tasks are moved to the right and back to the left is never longer if modes have one phase.
    """
    order_by_end(state)
    serial(group, state, state.modes, state.modes, True)
    order_by_end(state)
    return serial(group, state, state.modes, state.modes, False)
