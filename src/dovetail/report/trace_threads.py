"""Which row of a trace every task of a step goes to: a process for each chip, a thread for each of its streams."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.frozen import frozen
from dovetail.report.step_items import num_stages, stage_chips, store_names
from dovetail.simulation.layer_steps import StepKind
from dovetail.simulation.simulate import Simulation
from dovetail.simulation.step_tasks import KERNELS, STORE, TRANSFERS

#: Streams from top to bottom; others are between these two.
_FIRST = (KERNELS, "tensor-parallel", "context-parallel", "expert-parallel", "weight-gather", "updated weights")
_LAST = ("data-parallel", TRANSFERS, STORE)


@frozen
class Threads:
    """Slices with their threads; a message of several chips is a slice on each of them."""

    task: Ints
    chip: Ints
    tid: Ints
    #: by thread, in order: the chip, the stream and how many of the stream lie above
    rows: tuple[tuple[int, str, int], ...]
    #: numbers of threads begin behind those of processes, so that none is taken for a process's main thread
    first: int
    #: by chip, the thread of its kernels
    kernels: tuple[int, ...]

    def named(self) -> Iterator[tuple[int, int, str]]:
        """Number, chip and name of every thread."""
        for row, (chip, stream, lane) in enumerate(self.rows):
            yield self.first + row, chip, f"{stream} {lane + 1}" if lane else stream


def threads_of(simulation: Simulation, tasks: Ints) -> Threads:
    """The threads of tasks; messages of a stream that overlap lie beside each other."""
    labels, timeline = simulation.tasks.labels, simulation.timeline
    task, chip = _on_chips(simulation, tasks)
    ranks = _stream_ranks(labels.streams)
    stream = ranks[labels.stream[task]]
    start, end = nanoseconds(timeline.start_s[task]), nanoseconds(timeline.end_s[task])
    order = np.lexsort((task, end, start, stream, chip))
    task, chip, stream, start, end = task[order], chip[order], stream[order], start[order], end[order]
    lane = _lanes(chip * len(ranks) + stream, start, end)
    chips = num_stages(simulation) * stage_chips(simulation)
    all_chips = np.arange(chips)
    keys = np.stack(
        (np.append(all_chips, chip), np.append(0 * all_chips, stream), np.append(0 * all_chips, lane)), axis=1
    )
    rows, number = np.unique(keys, axis=0, return_inverse=True)
    names = {int(rank): name for rank, name in zip(ranks, labels.streams, strict=True)}
    first = chips + len(store_names(simulation)) + 1
    tid = first + number.reshape(-1)
    by_thread = tuple((c, names[s], n) for c, s, n in rows.tolist())
    return Threads(task, chip, tid[chips:], by_thread, first, tuple(tid[:chips].tolist()))


def _stream_ranks(streams: tuple[str, ...]) -> Ints:
    """The place of every stream from top to bottom."""
    others = sorted(set(streams) - {*_FIRST, *_LAST})
    order = [name for name in (*_FIRST, *others, *_LAST) if name in streams]
    return np.array([order.index(name) for name in streams])


def _on_chips(simulation: Simulation, tasks: Ints) -> tuple[Ints, Ints]:
    """Tasks and the chips they run on: a collective on all whose ports it uses, anything else on one."""
    graph, labels = simulation.tasks.graph, simulation.tasks.labels
    network = graph.network
    ports = simulation.tasks.chip_links
    shared = (labels.kind[tasks] == StepKind.COLLECTIVE) & (graph.route[tasks] >= 0)
    members = [
        np.unique(network.link[low:high] // ports)
        for low, high in zip(network.starts[:-1].tolist(), network.starts[1:].tolist(), strict=True)
    ]
    sizes = np.array([len(chips) for chips in members], np.int64)
    together = tasks[shared]
    routes: list[int] = graph.route[together].tolist()
    chips_of_shared = [members[route] for route in routes]
    chips = np.concatenate([labels.chip[tasks[~shared]], *chips_of_shared])
    return np.append(tasks[~shared], np.repeat(together, sizes[graph.route[together]])), chips


def nanoseconds(seconds: Floats) -> Ints:
    """Whole nanoseconds: what lies within each other or after each other stays so."""
    return np.rint(seconds * 1e9).astype(np.int64)


def _lanes(key: Ints, start: Ints, end: Ints) -> Ints:
    """Of slices in order of stream and time: the first row of its stream that is free, counted from 0."""
    lane = np.zeros(len(key), np.int64)
    if not len(key):
        return lane
    # latest end so far within the stream: streams are kept apart by shifting each behind the one before
    span = int(end.max()) + 1
    latest = np.maximum.accumulate(end + key * span)
    crossing = (key[1:] == key[:-1]) & (start[1:] + key[1:] * span < latest[:-1])
    for crowded in np.unique(key[1:][crossing]).tolist():
        (rows,) = np.nonzero(key == crowded)
        ends: list[int] = []
        for row in rows.tolist():
            free = next((n for n, busy in enumerate(ends) if busy <= start[row]), len(ends))
            ends[free : free + 1] = [int(end[row])]
            lane[row] = free
    return lane
