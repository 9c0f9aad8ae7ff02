"""What is simulated: tasks, what each waits for, how long it takes and what it sends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.frozen import frozen
from dovetail.simulation.network import Network


@frozen
class TaskGraph:
    """Tasks as arrays. A task begins when all it needs have ended, waits its seconds, then sends its bytes, and ends.

    Whatever runs one after another on a chip (kernels of a stream, messages of a copy engine) needs each other in this
    order. So nothing is left to choose while time passes, and links are all that tasks compete for.
    """

    seconds: Floats
    #: of the message over the link of its route that carries most; 0 where nothing is sent
    bytes: Floats
    #: -1 where nothing is sent
    route: Ints
    #: edges: task `after[e]` needs task `before[e]`
    before: Ints
    after: Ints
    network: Network

    def __post_init__(self) -> None:
        sends = self.bytes > 0
        assert ((self.route >= 0) & (self.route < self.network.num_routes))[sends].all(), "a message without a route"

    def __len__(self) -> int:
        return len(self.seconds)


@frozen
class RateChanges:
    """When a message's rate changed, in order of time; a rate of 0 is its end."""

    at_s: Floats
    task: Ints
    bytes_per_s: Floats


@frozen
class SkippedTime:
    """A time in which periods repeat that are not played: from begin_s on, so long."""

    begin_s: float
    lasts_s: float


@frozen
class Timeline:
    """When every task began and ended."""

    start_s: Floats
    end_s: Floats
    #: by task: ends of its wait and its message, and changes of the rate of this
    task_events: Ints
    rates: RateChanges | None
    skipped: tuple[SkippedTime, ...] = ()

    @property
    def events(self) -> int:
        """Of all tasks."""
        return int(self.task_events.sum())

    @property
    def seconds(self) -> float:
        """From the first beginning to the last end."""
        return float(self.end_s.max(initial=0.0))


def run(graph: TaskGraph, *, ranks: Sequence[int] | Ints | None = None, rates: bool = False) -> Timeline:
    """Plays all tasks. `ranks` order what happens at the same time, which changes nothing but the last digits."""
    from dovetail.simulation.event_kernels import Links, Tasks, play

    count, network = len(graph), graph.network
    order = np.argsort(graph.before, kind="stable")
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(graph.before, minlength=count), out=starts[1:])
    waiting = np.bincount(graph.after, minlength=count).astype(np.int64)
    tasks = Tasks(
        graph.seconds, graph.bytes, graph.route, starts, np.ascontiguousarray(graph.after[order]), waiting,
        np.full(count, np.nan), np.full(count, np.nan), np.zeros(count, np.int64),
    )  # fmt: skip
    links = Links(network.bytes_per_s, network.starts, network.link, network.part)
    first = np.arange(count) if ranks is None else np.asarray(ranks, np.int64)
    ended, log = play(tasks, links, first, np.empty((3, 1024 if rates else 0)))
    assert ended == count, f"{count - ended} of {count} tasks wait for each other"
    changes = RateChanges(log[0], log[1].astype(np.int64), log[2]) if rates else None
    return Timeline(tasks.begin, tasks.end, tasks.events, changes)
