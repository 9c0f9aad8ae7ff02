"""Compiled: the event loop.

Every task has at most one event ahead of it: the end of its wait, or of its message at the rate this has now. Messages
that share links, directly or through others, with one that begins or ends get new rates; all others keep theirs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.arrays import Bools, Floats, Ints
from dovetail.compilation import compiled
from dovetail.simulation.fair_share_kernels import fill

#: Times this close, relative to the time, are one: what should be equal differs by rounding.
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


class Tasks(NamedTuple):
    """What there is to do: task i is followed by successors[successor_starts[i]:successor_starts[i + 1]]."""

    seconds: Floats
    size: Floats
    route: Ints
    successor_starts: Ints
    successors: Ints
    #: how many others each still waits for
    waiting: Ints
    begin: Floats
    end: Floats
    #: how many have been: ends of its wait and of its message, changes of the rate of this
    events: Ints


class Links(NamedTuple):
    """The network: route r has the entries starts[r] to starts[r + 1] of `link` and `part`."""

    bytes_per_s: Floats
    starts: Ints
    link: Ints
    part: Floats


class Pile(NamedTuple):
    """A stack of numbers, `size[0]` of them."""

    number: Ints
    size: Ints


class Now(NamedTuple):
    """What happens at one time: tasks that can begin, have waited, are over; links whose messages change."""

    ready: Pile
    waited: Pile
    over: Pile
    changed: Pile
    is_changed: Bools


class Reached(NamedTuple):
    """Scratch of the search for all that new rates touch; what was seen in this search bears its stamp."""

    link_seen: Ints
    task_seen: Ints
    links: Ints
    messages: Ints
    free: Floats
    load: Floats
    rate: Floats


@compiled
def _earlier(queue: Queue, task: int, other: int) -> bool:
    if queue.at[task] != queue.at[other]:
        return queue.at[task] < queue.at[other]
    return queue.rank[task] < queue.rank[other]


@compiled
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


@compiled
def _expect(queue: Queue, task: int, at: float) -> None:
    """Something happens to a task at this time, and not when it was expected before."""
    queue.at[task] = at
    i = queue.place[task]
    if i < 0:
        i = queue.size[0]
        queue.size[0] += 1
    _settle(queue, task, i)


@compiled
def _next(queue: Queue) -> int:
    """Takes the first task off the queue."""
    task = queue.task[0]
    queue.place[task] = -1
    queue.size[0] -= 1
    if queue.size[0] > 0:
        _settle(queue, int(queue.task[queue.size[0]]), 0)
    return task


@compiled
def _put(pile: Pile, number: int) -> None:
    pile.number[pile.size[0]] = number
    pile.size[0] += 1


@compiled
def _pull(pile: Pile) -> int:
    pile.size[0] -= 1
    return int(pile.number[pile.size[0]])


@compiled
def _change(now: Now, links: Links, route: int) -> None:
    """The links of a route have other messages from now on."""
    for entry in range(links.starts[route], links.starts[route + 1]):
        if not now.is_changed[links.link[entry]]:
            now.is_changed[links.link[entry]] = True
            _put(now.changed, links.link[entry])


@compiled
def _join(flights: Flights, links: Links, route: int, task: int) -> None:
    """A message enters its links."""
    low = links.starts[route]
    for entry in range(low, links.starts[route + 1]):
        link = links.link[entry]
        node, head = flights.node[task] + entry - low, flights.first[link]
        flights.following[node], flights.before[node] = head, -1
        if head >= 0:
            flights.before[head] = node
        flights.first[link] = node


@compiled
def _leave(flights: Flights, links: Links, route: int, task: int) -> None:
    """A message leaves its links."""
    low = links.starts[route]
    for entry in range(low, links.starts[route + 1]):
        node = flights.node[task] + entry - low
        after, ahead = flights.following[node], flights.before[node]
        if ahead >= 0:
            flights.following[ahead] = after
        else:
            flights.first[links.link[entry]] = after
        if after >= 0:
            flights.before[after] = ahead


@compiled
def _proceed(at: float, tasks: Tasks, links: Links, queue: Queue, flights: Flights, now: Now) -> int:
    """Everything that follows at once from what happens at this time; how many tasks end."""
    ended = 0
    while now.ready.size[0] + now.waited.size[0] + now.over.size[0] > 0:
        if now.over.size[0] > 0:
            task = _pull(now.over)
            tasks.end[task] = at
            ended += 1
            for position in range(tasks.successor_starts[task], tasks.successor_starts[task + 1]):
                follower = tasks.successors[position]
                tasks.waiting[follower] -= 1
                if tasks.waiting[follower] == 0:
                    _put(now.ready, follower)
        elif now.ready.size[0] > 0:
            task = _pull(now.ready)
            tasks.begin[task] = at
            if tasks.seconds[task] > 0.0:
                _expect(queue, task, at + tasks.seconds[task])
            else:
                _put(now.waited, task)
        else:
            task = _pull(now.waited)
            if tasks.size[task] > 0.0:
                flights.since[task] = at
                _join(flights, links, tasks.route[task], task)
                _change(now, links, tasks.route[task])
            else:
                _put(now.over, task)
    return ended


@compiled
def _reach(origin: int, stamp: int, flights: Flights, route: Ints, links: Links, reached: Reached) -> tuple[int, int]:
    """Links and messages that share links with those of a link, directly or through others; how many of each."""
    reached.link_seen[origin] = stamp
    reached.links[0] = origin
    num_links, head, num_messages = 1, 0, 0
    while head < num_links:
        node = flights.first[reached.links[head]]
        head += 1
        while node >= 0:
            task = flights.task[node]
            if reached.task_seen[task] != stamp:
                reached.task_seen[task] = stamp
                reached.messages[num_messages] = task
                num_messages += 1
                for entry in range(links.starts[route[task]], links.starts[route[task] + 1]):
                    link = links.link[entry]
                    if reached.link_seen[link] != stamp:
                        reached.link_seen[link] = stamp
                        reached.links[num_links] = link
                        num_links += 1
            node = flights.following[node]
    return num_links, num_messages


@compiled
def _share(
    at: float, stamp: int, tasks: Tasks, links: Links, queue: Queue, flights: Flights, now: Now, reached: Reached,
    log: Floats, logged: int,
) -> tuple[Floats, int]:  # fmt: skip
    """New rates where messages began or ended; the log with those that changed."""
    for position in range(now.changed.size[0]):
        origin = now.changed.number[position]
        now.is_changed[origin] = False
        if reached.link_seen[origin] == stamp or flights.first[origin] < 0:
            continue
        num_links, num_messages = _reach(origin, stamp, flights, tasks.route, links, reached)
        shared, touched = reached.links[:num_links], reached.messages[:num_messages]
        reached.free[shared] = links.bytes_per_s[shared]
        fill(
            touched, tasks.route, shared, links.starts, links.link, links.part, reached.free, reached.load, reached.rate
        )
        for task in touched:
            rate = float(reached.rate[task])
            if rate == flights.rate[task]:
                continue
            flights.left[task] -= flights.rate[task] * (at - flights.since[task])
            flights.since[task], flights.rate[task] = at, rate
            _expect(queue, task, at + max(float(flights.left[task]), 0.0) / rate)
            tasks.events[task] += 1
            log, logged = _logged(log, logged, at, task, rate)
    now.changed.size[0] = 0
    return log, logged


@compiled
def _logged(log: Floats, count: int, at: float, task: int, rate: float) -> tuple[Floats, int]:
    """The log with one more change; one of no width stays empty."""
    if log.shape[1] == 0:
        return log, count
    if count == log.shape[1]:
        wider = np.empty((3, 2 * count))
        wider[:, :count] = log
        log = wider
    log[0, count], log[1, count], log[2, count] = at, task, rate
    return log, count + 1


@compiled
def _flights(tasks: Tasks, links: Links) -> Flights:
    """No message yet, and a node for each link of every one there will be."""
    count = len(tasks.seconds)
    node = np.zeros(count + 1, np.int64)
    for task in range(count):
        route = tasks.route[task]
        length = links.starts[route + 1] - links.starts[route] if tasks.size[task] > 0.0 else 0
        node[task + 1] = node[task] + length
    owner = np.empty(node[count], np.int64)
    for task in range(count):
        owner[node[task] : node[task + 1]] = task
    following, before = np.empty(node[count], np.int64), np.empty(node[count], np.int64)
    first = np.full(len(links.bytes_per_s), -1)
    return Flights(first, following, before, owner, node, tasks.size.copy(), np.zeros(count), np.zeros(count))


@compiled
def _pile(most: int) -> Pile:
    return Pile(np.empty(most, np.int64), np.zeros(1, np.int64))


@compiled
def play(tasks: Tasks, links: Links, ranks: Ints, log: Floats) -> tuple[int, Floats]:
    """Plays all tasks, whose start, end and events are written; how many ended, and the log.

    The log has a row each for the times, tasks and rates of changes; one of no width stays empty.
    """
    count, num_links = len(tasks.seconds), len(links.bytes_per_s)
    queue = Queue(np.empty(count, np.int64), np.zeros(1, np.int64), np.full(count, -1), np.zeros(count), ranks)
    flights = _flights(tasks, links)
    now = Now(_pile(count), _pile(count), _pile(count), _pile(num_links), np.zeros(num_links, np.bool_))
    reached = Reached(
        np.zeros(num_links, np.int64), np.zeros(count, np.int64), np.empty(num_links, np.int64),
        np.empty(count, np.int64), np.zeros(num_links), np.zeros(num_links), np.zeros(count),
    )  # fmt: skip
    ended = logged = stamp = 0
    for task in range(count):
        if tasks.waiting[task] == 0:
            _put(now.ready, task)
    at = 0.0
    while True:
        ended += _proceed(at, tasks, links, queue, flights, now)
        stamp += 1
        log, logged = _share(at, stamp, tasks, links, queue, flights, now, reached, log, logged)
        if queue.size[0] == 0:
            break
        at = float(queue.at[queue.task[0]])
        while queue.size[0] > 0 and queue.at[queue.task[0]] <= at * (1.0 + SAME):
            task = _next(queue)
            tasks.events[task] += 1
            if flights.rate[task] == 0.0:
                _put(now.waited, task)
                continue
            _put(now.over, task)
            _leave(flights, links, tasks.route[task], task)
            _change(now, links, tasks.route[task])
            log, logged = _logged(log, logged, at, task, 0.0)
    return ended, log[:, :logged]
