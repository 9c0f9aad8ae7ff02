"""Compiled list schedules of one group: tasks one after the other, each as early as resources and needs allow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from dovetail.arrays import Ints
from dovetail.schedule.arrays import Group


class Room(NamedTuple):
    """What is free over time: from `times[k]` until the next, `free[k]`; and the current schedule's own arrays."""

    times: Ints
    free: Ints
    starts: Ints
    ends: Ints
    modes: Ints
    order: Ints


@njit(cache=True)
def room_for(group: Group) -> Room:
    """Room for schedules of a group."""
    n = len(group.choices)
    return Room(
        np.empty(3 * n + 2, np.int64),
        np.empty((3 * n + 2, 3), np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.arange(n),
    )


@njit(cache=True)
def serial(group: Group, room: Room, low: Ints, high: Ints, backward: bool) -> int:
    """Schedules the tasks in the room's order, each in that mode of [low, high] which ends first; its makespan.

    The serial schedule generation scheme (Kolisch 1996, European Journal of Operational Research 90). Backward, time
    runs from the end: followers come before what they need, second phases before first ones.
    """
    times, free, order, all_ends = room.times, room.free, room.order, room.ends
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
        best, start, chosen = -1, 0, 0
        for m in range(high[i], low[i] - 1, -1):
            total = cycles[i, m]
            # a mode cannot end before it could with everything to itself
            if best < 0 or ready + total < best:
                one = total - first[i, m] if backward else first[i, m]
                at = _earliest(times, free, size, ready, one, total, uses[i, m, a], uses[i, m, b])
                if best < 0 or at + total < best:
                    best, start, chosen = at + total, at, m
        total = cycles[i, chosen]
        one = total - first[i, chosen] if backward else first[i, chosen]
        if one > 0:
            size = _occupy(times, free, size, start, start + one, uses[i, chosen, a])
        if one < total:
            size = _occupy(times, free, size, start + one, best, uses[i, chosen, b])
        room.starts[i], all_ends[i], room.modes[i] = start, best, chosen
        makespan = max(makespan, best)
    return makespan


@njit(cache=True, forceinline=True)
def _earliest(times: Ints, free: Ints, size: int, ready: int, one: int, total: int, use: Ints, then: Ints) -> int:
    """The earliest moment from which on all phases of a mode fit into what is free."""
    a0, a1, a2 = use[0], use[1], use[2]
    b0, b1, b2 = then[0], then[1], then[2]
    at, k = ready, size - 1
    while times[k] > at:
        k -= 1
    j = k
    while j < size and times[j] < at + total:
        # a stretch in which the mode does not fit moves its start behind it
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


@njit(cache=True, forceinline=True)
def _occupy(times: Ints, free: Ints, size: int, start: int, end: int, use: Ints) -> int:
    """Takes uses out of what is free from a start to an end; returns the new number of stretches."""
    size, low = _cut(times, free, size, start)
    size, high = _cut(times, free, size, end)
    for k in range(low, high):
        for r in range(3):
            free[k, r] -= use[r]
    return size


@njit(cache=True, forceinline=True)
def _cut(times: Ints, free: Ints, size: int, at: int) -> tuple[int, int]:
    """Lets a stretch begin at a moment; returns the number of stretches and the number of this one."""
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


@njit(cache=True)
def by_tail(group: Group, modes: Ints, keys: Ints) -> None:
    """Every task's key: cycles from its start to the end of all that needs it, in the modes given."""
    for i in range(len(group.choices) - 1, -1, -1):
        longest = 0
        for e in range(group.first_follower[i], group.first_follower[i + 1]):
            longest = max(longest, keys[group.followers[e]])
        keys[i] = longest + group.cycles[i, modes[i]]


@njit(cache=True)
def arrange(group: Group, room: Room, keys: Ints, waiting: Ints) -> None:
    """Puts the room's order: of the tasks whose needs are met always that of the largest key."""
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
        room.order[k] = best


@njit(cache=True)
def order_by_end(room: Room) -> None:
    """Puts the room's order: the last to end first, as the other direction of time takes them."""
    order, ends = room.order, room.ends
    for k in range(1, len(order)):
        i, j = order[k], k
        while j > 0 and (ends[order[j - 1]] < ends[i]):
            order[j] = order[j - 1]
            j -= 1
        order[j] = i


@njit(cache=True)
def justify(group: Group, room: Room) -> int:
    """Schedules from the end and again from the start, in the same modes; the makespan.

    Double justification (Valls, Ballestín and Quintanilla 2005, European Journal of Operational Research 165): a
    schedule whose tasks are moved to the right and back to the left is never longer if modes have one phase.
    """
    order_by_end(room)
    serial(group, room, room.modes, room.modes, True)
    order_by_end(room)
    return serial(group, room, room.modes, room.modes, False)
