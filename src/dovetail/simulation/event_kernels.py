"""Compiled: the event loop.

Every task has at most one event ahead of it: the end of its wait, or of its message at the rate this has now. Messages
that share links, directly or through others, with one that begins or ends get new rates; all others keep theirs.
"""
# numba ships no types
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportMissingTypeStubs=false
# pyright: reportArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from dovetail.simulation.fair_share_kernels import fill
from dovetail.simulation.network import Floats, Ints

#: Moments this close, as a part of the time, are one: what should be equal differs by rounding.
SAME = 1e-14


class Queue(NamedTuple):
    """Events in a binary heap, which knows where each task's is."""

    #: tasks, the next first; `size[0]` of them
    task: Ints
    size: Ints
    #: by task: place in the heap (-1: none), when, and what goes first at the same time
    place: Ints
    at: Floats
    rank: Ints


class Flights(NamedTuple):
    """Messages under way: which cross a link, in lists from `first`; a message has a node for each of its links."""

    first: Ints
    following: Ints
    before: Ints
    #: by node: its task; by task: its first node
    task: Ints
    node: Ints
    #: by task: bytes left at the time `since`, and the rate from then on
    left: Floats
    since: Floats
    rate: Floats


@njit(cache=True, inline="always")
def _earlier(queue: Queue, task: int, other: int) -> bool:
    if queue.at[task] != queue.at[other]:
        return queue.at[task] < queue.at[other]
    return queue.rank[task] < queue.rank[other]


@njit(cache=True)
def _settle(queue: Queue, task: int, i: int) -> None:
    """Puts a task where it belongs, from place i upwards or downwards."""
    while i > 0 and _earlier(queue, task, queue.task[(i - 1) // 2]):
        above = (i - 1) // 2
        queue.task[i] = queue.task[above]
        queue.place[queue.task[i]] = i
        i = above
    while 2 * i + 1 < queue.size[0]:
        below = 2 * i + 1
        if below + 1 < queue.size[0] and _earlier(queue, queue.task[below + 1], queue.task[below]):
            below += 1
        if not _earlier(queue, queue.task[below], task):
            break
        queue.task[i] = queue.task[below]
        queue.place[queue.task[i]] = i
        i = below
    queue.task[i] = task
    queue.place[task] = i


@njit(cache=True)
def _expect(queue: Queue, task: int, at: float) -> None:
    """Something happens to a task at this time, and not when it was expected before."""
    queue.at[task] = at
    i = queue.place[task]
    if i < 0:
        i = queue.size[0]
        queue.size[0] += 1
    _settle(queue, task, i)


@njit(cache=True)
def _next(queue: Queue) -> int:
    """Takes the first task off the queue."""
    task = queue.task[0]
    queue.place[task] = -1
    queue.size[0] -= 1
    if queue.size[0] > 0:
        _settle(queue, queue.task[queue.size[0]], 0)
    return task


@njit(cache=True)
def _join(flights: Flights, link: Ints, low: int, high: int, task: int) -> None:
    """A message enters its links."""
    for entry in range(low, high):
        node, head = flights.node[task] + entry - low, flights.first[link[entry]]
        flights.following[node], flights.before[node] = head, -1
        if head >= 0:
            flights.before[head] = node
        flights.first[link[entry]] = node


@njit(cache=True)
def _leave(flights: Flights, link: Ints, low: int, high: int, task: int) -> None:
    """A message leaves its links."""
    for entry in range(low, high):
        node = flights.node[task] + entry - low
        after, ahead = flights.following[node], flights.before[node]
        if ahead >= 0:
            flights.following[ahead] = after
        else:
            flights.first[link[entry]] = after
        if after >= 0:
            flights.before[after] = ahead


@njit(cache=True)
def _reach(
    origin: int, stamp: int, flights: Flights, route: Ints, starts: Ints, link: Ints, link_seen: Ints, task_seen: Ints,
    links: Ints, messages: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Links and messages that share links with those of a link, directly or through others; how many of each."""
    link_seen[origin] = stamp
    links[0] = origin
    num_links, head, num_messages = 1, 0, 0
    while head < num_links:
        node = flights.first[links[head]]
        head += 1
        while node >= 0:
            task = flights.task[node]
            if task_seen[task] != stamp:
                task_seen[task] = stamp
                messages[num_messages] = task
                num_messages += 1
                for entry in range(starts[route[task]], starts[route[task] + 1]):
                    if link_seen[link[entry]] != stamp:
                        link_seen[link[entry]] = stamp
                        links[num_links] = link[entry]
                        num_links += 1
            node = flights.following[node]
    return num_links, num_messages


@njit(cache=True)
def _logged(log: Floats, count: int, at: float, task: int, rate: float) -> Floats:
    if count == log.shape[1]:
        wider = np.empty((3, 2 * count))
        wider[:, :count] = log
        log = wider
    log[0, count], log[1, count], log[2, count] = at, task, rate
    return log


@njit(cache=True)
def play(
    seconds: Floats,
    size: Floats,
    route: Ints,
    successor_starts: Ints,
    successors: Ints,
    waiting: Ints,
    bytes_per_s: Floats,
    starts: Ints,
    link: Ints,
    part: Floats,
    ranks: Ints,
    logs: bool,
) -> tuple[Floats, Floats, int, int, Floats]:
    """Start and end of every task, events, tasks that ended, and changes of rates (time, task, rate).

    Task i is followed by successors[successor_starts[i]:successor_starts[i + 1]] and waits for waiting[i] others,
    which are counted down. Route r has the entries starts[r] to starts[r + 1] of `link` and `part`.
    """
    count, num_links = len(seconds), len(bytes_per_s)
    begin, end = np.full(count, np.nan), np.full(count, np.nan)
    queue = Queue(np.empty(count, np.int64), np.zeros(1, np.int64), np.full(count, -1), np.zeros(count), ranks)
    node = np.zeros(count + 1, np.int64)
    for task in range(count):
        node[task + 1] = node[task] + (starts[route[task] + 1] - starts[route[task]] if size[task] > 0.0 else 0)
    owner = np.empty(node[count], np.int64)
    for task in range(count):
        owner[node[task] : node[task + 1]] = task
    following, before = np.empty(node[count], np.int64), np.empty(node[count], np.int64)
    flights = Flights(
        np.full(num_links, -1), following, before, owner, node, size.copy(), np.zeros(count), np.zeros(count)
    )
    # links whose messages changed now, and scratch for the search of all they touch
    changed, num_changed, is_changed = np.empty(num_links, np.int64), 0, np.zeros(num_links, np.bool_)
    link_seen, task_seen, stamp = np.zeros(num_links, np.int64), np.zeros(count, np.int64), 0
    links, messages = np.empty(num_links, np.int64), np.empty(count, np.int64)
    room, load, rate = np.zeros(num_links), np.zeros(num_links), np.zeros(count)
    log, log_count = np.empty((3, 1024)), 0
    # tasks that can begin; those whose wait is over; those that are over
    ready, num_ready = np.empty(count, np.int64), 0
    waited, num_waited = np.empty(count, np.int64), 0
    over, num_over = np.empty(count, np.int64), 0
    events = ended = 0
    for task in range(count):
        if waiting[task] == 0:
            ready[num_ready] = task
            num_ready += 1
    now = 0.0
    while True:
        while num_ready + num_waited + num_over > 0:
            if num_over > 0:
                num_over -= 1
                task = over[num_over]
                end[task] = now
                ended += 1
                for position in range(successor_starts[task], successor_starts[task + 1]):
                    follower = successors[position]
                    waiting[follower] -= 1
                    if waiting[follower] == 0:
                        ready[num_ready] = follower
                        num_ready += 1
            elif num_ready > 0:
                num_ready -= 1
                task = ready[num_ready]
                begin[task] = now
                if seconds[task] > 0.0:
                    _expect(queue, task, now + seconds[task])
                else:
                    waited[num_waited] = task
                    num_waited += 1
            else:
                num_waited -= 1
                task = waited[num_waited]
                if size[task] <= 0.0:
                    over[num_over] = task
                    num_over += 1
                    continue
                flights.since[task] = now
                low, high = starts[route[task]], starts[route[task] + 1]
                _join(flights, link, low, high, task)
                for entry in range(low, high):
                    if not is_changed[link[entry]]:
                        is_changed[link[entry]] = True
                        changed[num_changed] = link[entry]
                        num_changed += 1
        stamp += 1
        for position in range(num_changed):
            origin = changed[position]
            is_changed[origin] = False
            if link_seen[origin] == stamp or flights.first[origin] < 0:
                continue
            num_reached, num_messages = _reach(
                origin, stamp, flights, route, starts, link, link_seen, task_seen, links, messages
            )
            reached, touched = links[:num_reached], messages[:num_messages]
            room[reached] = bytes_per_s[reached]
            fill(touched, route, reached, starts, link, part, room, load, rate)
            for task in touched:
                if rate[task] == flights.rate[task]:
                    continue
                flights.left[task] -= flights.rate[task] * (now - flights.since[task])
                flights.since[task], flights.rate[task] = now, rate[task]
                _expect(queue, task, now + max(flights.left[task], 0.0) / rate[task])
                events += 1
                if logs:
                    log = _logged(log, log_count, now, task, rate[task])
                    log_count += 1
        num_changed = 0
        if queue.size[0] == 0:
            break
        now = queue.at[queue.task[0]]
        while queue.size[0] > 0 and queue.at[queue.task[0]] <= now * (1.0 + SAME):
            task = _next(queue)
            events += 1
            if flights.rate[task] == 0.0:
                waited[num_waited] = task
                num_waited += 1
                continue
            over[num_over] = task
            num_over += 1
            low, high = starts[route[task]], starts[route[task] + 1]
            _leave(flights, link, low, high, task)
            for entry in range(low, high):
                if not is_changed[link[entry]]:
                    is_changed[link[entry]] = True
                    changed[num_changed] = link[entry]
                    num_changed += 1
            if logs:
                log = _logged(log, log_count, now, task, 0.0)
                log_count += 1
    return begin, end, events, ended, log[:, :log_count]
