"""A simulated step in Chrome's Trace Event Format, which Perfetto reads: slices, arrows and counters over time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from dovetail.arrays import Bools, Ints
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.pipeline.work_order import WorkKind
from dovetail.report.link_use import LinkUse, averaged, link_use
from dovetail.report.step_items import WORDS, ItemSpans, item_name, item_spans, stage_chips, stage_names, store_names
from dovetail.report.trace_threads import Threads, nanoseconds, threads_of
from dovetail.simulation.layer_steps import StepKind
from dovetail.simulation.simulate import Simulation

#: A trace with more events leaves out the moments at which links change, then operators, and then is refused: with some
#: 130 bytes an event, a file that a browser still opens.
MOST_EVENTS = 1_000_000

#: Moments at which the use of a link is written instead.
WINDOWS = 1000

#: Texts are handed on in parts of so many events.
_PART = 4096

_KINDS = {
    StepKind.FORWARD: "forward",
    StepKind.RECOMPUTE: "recompute",
    StepKind.INPUT_GRADIENT: "input gradient",
    StepKind.WEIGHT_GRADIENT: "weight gradient",
    StepKind.OPTIMIZER: "optimizer",
    StepKind.WAIT: "wait",
    StepKind.SLOWED: "slowed beside messages",
    StepKind.COLLECTIVE: "collective",
    StepKind.TRANSFER: "transfer",
}


@frozen
class StepTrace:
    """A trace ready to be written."""

    simulation: Simulation
    #: whether every operator and collective is in it, or only items, transfers and what ends the step
    operators: bool
    spans: ItemSpans
    threads: Threads
    #: of transfers that are shown: the task, and the item and chip of its stage that it goes to
    arrows: tuple[Ints, Ints, Ints]
    use: LinkUse

    @property
    def events(self) -> int:
        """How many events it has, names of processes and threads apart."""
        memory = sum(len(stage.at_s) for stage in self.simulation.memory)
        return len(self.threads.task) + self.spans.begin_s.size + 2 * len(self.arrows[0]) + len(self.use) + memory

    def parts(self) -> Iterator[str]:
        """The JSON text, part by part; the same bytes for the same step."""
        # an arrow belongs to a slice that is there already
        events = chain(
            self._names(), self._items(), self._slices(), self._arrow_starts(), self._arrow_ends(), self._counters()
        )
        yield '{"displayTimeUnit":"ns","traceEvents":[\n'
        part: list[str] = []
        between = ""
        for event in events:
            part.append(event)
            if len(part) == _PART:
                yield between + ",\n".join(part)
                part, between = [], ",\n"
        yield between + ",\n".join(part) if part else ""
        yield "\n]}\n"

    def _names(self) -> Iterator[str]:
        # stores have no threads of their own, only how full their links are
        for number, name in enumerate([*stage_names(self.simulation), *store_names(self.simulation)]):
            yield _named("process", number + 1, 0, name)
            yield _sorted("process", number + 1, 0, number)
        for tid, chip, name in self.threads.named():
            yield _named("thread", chip + 1, tid, name)
            yield _sorted("thread", chip + 1, tid, tid)

    def _items(self) -> Iterator[str]:
        order, spans = self.simulation.tasks.order, self.spans
        chips = stage_chips(self.simulation)
        begin, end = nanoseconds(spans.begin_s).tolist(), nanoseconds(spans.end_s).tolist()
        for row, (item, stage) in enumerate(zip(spans.item.tolist(), spans.stage.tolist(), strict=True)):
            name = json.dumps(item_name(order, item))
            args = (
                f'"kind":"{WORDS[WorkKind(int(order.kind[item]))]}","microbatch":{order.microbatch[item]},'
                f'"chunk":{order.chunk[item]},"place":{order.place[item]}'
            )
            for chip in range(chips):
                number: int = stage * chips + chip
                tid = self.threads.kernels[number]
                yield _slice(name, "item", number + 1, tid, begin[row][chip], end[row][chip], args)

    def _slices(self) -> Iterator[str]:
        graph, labels, timeline = self.simulation.tasks.graph, self.simulation.tasks.labels, self.simulation.timeline
        names = [json.dumps(name) for name in labels.names]
        task = self.threads.task
        columns = (
            self.threads.chip, self.threads.tid, labels.name[task], labels.kind[task], labels.microbatch[task],
            labels.place[task], nanoseconds(timeline.start_s[task]), nanoseconds(timeline.end_s[task]),
            graph.bytes[task], graph.seconds[task] * 1e6,
        )  # fmt: skip
        kinds = [_KINDS[StepKind(kind)] for kind in range(len(StepKind))]
        lists: list[list[Any]] = [column.tolist() for column in columns]
        name: int
        kind: int
        for chip, tid, name, kind, batch, place, start, end, sent, wait in zip(*lists, strict=True):
            args = f'"kind":"{kinds[kind]}"'
            if batch >= 0:
                args += f',"microbatch":{batch},"place":{place}'
            if kind >= StepKind.COLLECTIVE:
                args += f',"bytes":{sent:.0f},"wait_us":{wait:.6g}'
            yield _slice(names[name], kinds[kind], chip + 1, tid, start, end, args)

    def _arrow_starts(self) -> Iterator[str]:
        transfer, _, _ = self.arrows
        start = nanoseconds(self.simulation.timeline.start_s)
        where = {task: row for row, task in enumerate(self.threads.task.tolist())}
        for number, task in enumerate(transfer.tolist()):
            row = where[task]
            yield _arrow("s", number, int(self.threads.chip[row]) + 1, int(self.threads.tid[row]), int(start[task]))

    def _arrow_ends(self) -> Iterator[str]:
        _, items, chips = self.arrows
        tasks, stage = self.simulation.tasks, self.simulation.tasks.order.stage
        begin = nanoseconds(self.simulation.timeline.start_s[tasks.begin])
        for number, (item, chip) in enumerate(zip(items.tolist(), chips.tolist(), strict=True)):
            at: int = int(stage[item]) * stage_chips(self.simulation) + chip
            yield _arrow("f", number, at + 1, self.threads.kernels[at], int(begin[item, chip]))

    def _counters(self) -> Iterator[str]:
        chips = stage_chips(self.simulation)
        for stage, memory in enumerate(self.simulation.memory):
            levels = (memory.bytes / 2**30).tolist()
            for at, level in zip(nanoseconds(memory.at_s).tolist(), levels, strict=True):
                yield _counter("memory", stage * chips + 1, at, "GiB", level)
        tasks, use = self.simulation.tasks, self.use
        links: list[int] = use.link.tolist()
        rates = tasks.graph.network.bytes_per_s
        at, share = nanoseconds(use.at_s).tolist(), (100 * use.share).tolist()
        for link, low, high in zip(links, use.starts[:-1].tolist(), use.starts[1:].tolist(), strict=True):
            unit = f"% of {rates[link] / 1e9:.4g} GB/s"
            store = link - tasks.port_links
            # of the chip whose port it is, or of a store, which come behind all chips
            process = (link if store < 0 else tasks.port_links) // tasks.chip_links + max(store, 0)
            for row in range(low, high):
                yield _counter(tasks.link_names[link], process + 1, at[row], unit, share[row])


def step_trace(simulation: Simulation, most: int = MOST_EVENTS) -> StepTrace:
    """The trace of a step, with as much in it as so many events allow."""
    assert simulation.timeline.rates is not None, "a trace needs the rates of messages"
    use = link_use(simulation.tasks.graph, simulation.timeline.rates)
    mean = averaged(use, simulation.step_time_s, WINDOWS) if len(use) > WINDOWS * len(use.link) else use
    trace = _trace(simulation, use, operators=True)
    if trace.events > most:
        trace = replace(trace, use=mean)
    if trace.events > most:
        trace = _trace(simulation, mean, operators=False)
    if trace.events > most:
        what = f"has {trace.events:,} events, more than the {most:,} a viewer opens"
        raise InputError("the trace of this step", what, "simulate fewer microbatches, or without --exact")
    return trace


def _trace(simulation: Simulation, use: LinkUse, *, operators: bool) -> StepTrace:
    tasks, timeline = simulation.tasks, simulation.timeline
    shown = nanoseconds(timeline.end_s) > nanoseconds(timeline.start_s)
    if not operators:
        shown &= (tasks.labels.microbatch < 0) | (tasks.labels.kind == StepKind.TRANSFER)
    threads = threads_of(simulation, np.nonzero(shown)[0])
    return StepTrace(simulation, operators, item_spans(simulation), threads, _arrows(simulation, shown), use)


def _arrows(simulation: Simulation, shown: Bools) -> tuple[Ints, Ints, Ints]:
    """Transfers and what waits for them on another stage."""
    tasks = simulation.tasks
    graph, labels, chips = tasks.graph, tasks.labels, stage_chips(simulation)
    begins = np.full(len(graph), -1)
    begins[tasks.begin] = np.arange(tasks.begin.size).reshape(tasks.begin.shape)
    edges = (labels.kind[graph.before] == StepKind.TRANSFER) & shown[graph.before]
    transfer, target = graph.before[edges], begins[graph.after[edges]]
    item, chip = np.divmod(target, chips)
    # a sender may wait for its own transfer too
    over = (target >= 0) & (tasks.order.stage[item] != labels.chip[transfer] // chips)
    order = np.argsort(transfer[over], kind="stable")
    return transfer[over][order], item[over][order], chip[over][order]


def _microseconds(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}" if rest else f"{whole}"


def _slice(name: str, category: str, pid: int, tid: int, start: int, end: int, args: str) -> str:
    return (
        f'{{"ph":"X","name":{name},"cat":"{category}","pid":{pid},"tid":{tid},"ts":{_microseconds(start)},'
        f'"dur":{_microseconds(end - start)},"args":{{{args}}}}}'
    )


def _arrow(phase: str, number: int, pid: int, tid: int, at: int) -> str:
    end = ',"bp":"e"' if phase == "f" else ""
    return (
        f'{{"ph":"{phase}","name":"transfer","cat":"transfer","id":{number + 1},"pid":{pid},"tid":{tid},'
        f'"ts":{_microseconds(at)}{end}}}'
    )


def _counter(name: str, pid: int, at: int, unit: str, value: float) -> str:
    return (
        f'{{"ph":"C","name":{json.dumps(name)},"pid":{pid},"tid":0,"ts":{_microseconds(at)},'
        f'"args":{{{json.dumps(unit)}:{value:.9g}}}}}'
    )


def _named(what: str, pid: int, tid: int, name: str) -> str:
    args = f'{{"name":{json.dumps(name)}}}'
    return f'{{"ph":"M","name":"{what}_name","pid":{pid},"tid":{tid},"args":{args}}}'


def _sorted(what: str, pid: int, tid: int, index: int) -> str:
    return f'{{"ph":"M","name":"{what}_sort_index","pid":{pid},"tid":{tid},"args":{{"sort_index":{index}}}}}'
