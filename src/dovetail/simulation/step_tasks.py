"""A whole training step as tasks: every item of the pipeline, transfers between stages, and what follows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.placement.stages import ChunkContent
from dovetail.placement.work_order import WorkKind, WorkOrder, needs
from dovetail.simulation.chips import Chips
from dovetail.simulation.item_tasks import Pattern, item_pattern, joined_pattern, parted
from dovetail.simulation.layer_steps import LayerStep, LayerSteps, Message, StepKind
from dovetail.simulation.network import Floats, Ints
from dovetail.simulation.task_graph import TaskGraph

#: The stream of kernels; the others are called after the kind of group whose messages they carry.
KERNELS = "kernels"
TRANSFERS = "transfers"


@dataclass(frozen=True, slots=True)
class Labels:
    """What every task is: arrays over tasks, the texts apart."""

    #: simulated chips, those of a stage after each other; the first of those that take part
    chip: Ints
    kind: Ints
    stream: Ints
    name: Ints
    microbatch: Ints
    place: Ints
    streams: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepTasks:
    """A step ready to run."""

    graph: TaskGraph
    labels: Labels
    order: WorkOrder
    #: items × simulated chips of a stage: the tasks an item begins and ends with
    begin: Ints
    end: Ints
    link_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepParts:
    """What a step is made of."""

    order: WorkOrder
    #: by place along the model
    contents: Sequence[ChunkContent]
    layers: Mapping[str, LayerSteps]
    #: bytes every chip of a stage hands to the next, and whether it waits until they are there
    stream_bytes: float
    sending: bool
    #: gradients that several stages hold parts of: the stages, and what each chip sends
    tied: Sequence[tuple[tuple[int, ...], Message]]
    #: by stage
    optimizer_s: Sequence[float]
    between_s: float


@dataclass(frozen=True, slots=True)
class _Block:
    """Tasks of a pattern on the chips of a stage: columns, edges, and where each chip finds a step."""

    seconds: Floats
    bytes: Floats
    route: Ints
    chip: Ints
    kind: Ints
    stream: Ints
    name: Ints
    edges: tuple[Ints, Ints]
    #: steps × chips
    at: Ints


@dataclass(slots=True)
class _Texts:
    """Texts by number."""

    numbers: dict[str, int] = field(default_factory=dict[str, int])

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def step_tasks(parts: StepParts, chips: Chips) -> StepTasks:
    """All tasks of a step, and what they wait for."""
    writer = _StepWriter(parts, chips)
    writer.items()
    writer.transfers()
    writer.updated_weights()
    writer.closing()
    return writer.finished()


class _StepWriter:
    """Lays patterns out one after another."""

    def __init__(self, parts: StepParts, chips: Chips) -> None:
        self.parts, self.chips, self.order = parts, chips, parts.order
        self._places: list[int] = self.order.place.tolist()
        self._kinds = [WorkKind(kind) for kind in self.order.kind.tolist()]
        self._blocks: list[tuple[_Block, int, int]] = []
        self._edges: list[tuple[Ints, Ints]] = []
        self._count = 0
        self._texts, self._streams = _Texts(), _Texts()
        self._streams.number(KERNELS)
        self._known: dict[tuple[object, ...], tuple[Pattern, _Block]] = {}
        items = len(self.order.kind)
        self.begin = np.zeros((items, chips.simulated), np.int64)
        self.end = np.zeros((items, chips.simulated), np.int64)
        #: by item: its pattern, block and where this begins
        self._laid: list[tuple[Pattern, _Block, int] | None] = [None] * items
        #: by stage: tasks after which its part of the pipeline is done
        self._done: list[list[Ints]] = [[] for _ in range(self.order.pipeline.num_stages)]
        self._next: dict[int, Ints] = {}

    # -- the pipeline

    def items(self) -> None:
        """Every item of every stage, one after another."""
        for stage in range(self.order.pipeline.num_stages):
            low, high = int(self.order.starts[stage]), int(self.order.starts[stage + 1])
            before: tuple[Pattern, _Block, int] | None = None
            item = low
            while item < high:
                width = 2 if self.order.joined[item] else 1
                laid = self._item(stage, item, width)
                pattern, block, offset = laid
                if before is not None:
                    self._edge(before[1].at[-1] + before[2], block.at[0] + offset)
                    self._next[item - 1] = block.at[0] + offset
                    for task in before[0].loose:
                        self._edge(before[1].at[task] + before[2], block.at[-1] + offset)
                before = pattern, block, offset
                item += width
            assert before is not None, "every stage has items"
            self._done[stage].append(before[1].at[-1] + before[2])
            self._done[stage] += [before[1].at[task] + before[2] for task in before[0].loose]

    def _item(self, stage: int, item: int, width: int) -> tuple[Pattern, _Block, int]:
        places, kinds = self._places[item : item + width], self._kinds[item : item + width]
        key = (stage, *places, *kinds)
        if key not in self._known:
            patterns = [
                item_pattern(kind, self.parts.contents[place], self.parts.layers)
                for kind, place in zip(kinds, places, strict=True)
            ]
            pattern = patterns[0] if width == 1 else joined_pattern(*patterns)
            self._known[key] = pattern, self._block(pattern, stage)
        pattern, block = self._known[key]
        offset = self._lay(block, item)
        for member in range(item, item + width):
            self.begin[member], self.end[member] = block.at[0] + offset, block.at[-1] + offset
            self._laid[member] = pattern, block, offset
        return pattern, block, offset

    def transfers(self) -> None:
        """What stages hand to each other, in the order in which each has it; a copy engine for every direction."""
        order, required = self.order, needs(self.order)
        stage = order.stage
        last: dict[tuple[int, int], Ints] = {}
        users = np.full(len(order.kind), -1)
        has = required.item >= 0
        users[required.item[has & (required.link >= 0)]] = np.nonzero(has & (required.link >= 0))[0]
        for item in np.nonzero(has & (required.link < 0))[0].tolist():
            self._edge(self.end[required.item[item]], self.begin[item])
        for item in np.nonzero(users >= 0)[0].tolist():
            user = int(users[item])
            way = (int(stage[item]), int(stage[user]))
            block = self._transfer_block(*way)
            at = block.at[0] + self._lay(block, item)
            self._edge(self.end[item], at)
            self._edge(at, self.begin[user])
            if way in last:
                self._edge(last[way], at)
            last[way] = at
            if self.parts.sending:
                head = item + 1 if order.joined[item] else item
                if head in self._next:
                    self._edge(at, self._next[head])
                else:
                    self._done[way[0]].append(at)

    def _transfer_block(self, source: int, target: int) -> _Block:
        key = ("transfer", source, target)
        if key not in self._known:
            found = self.chips.transfer(source, target)
            waits = np.array([transfer.wait_s for transfer in found])
            sent = np.array([transfer.times * self.parts.stream_bytes for transfer in found])
            routes, copies = np.array([transfer.route for transfer in found]), len(found)
            chip = source * self.chips.simulated + np.arange(copies)
            name = self._texts.number(f"to stage {target}")
            labels = (StepKind.TRANSFER, self._streams.number(TRANSFERS), name)
            kind, stream, names = (np.full(copies, number) for number in labels)
            none = np.zeros(0, np.int64)
            block = _Block(waits, sent, routes, chip, kind, stream, names, (none, none), np.arange(copies)[None])
            self._known[key] = Pattern(), block
        return self._known[key][1]

    # -- before and after

    def updated_weights(self) -> None:
        """Weights updated in shards come together ahead of the first forward that needs them."""
        seen: set[tuple[int, int]] = set()
        for stage in range(self.order.pipeline.num_stages):
            ahead, blocking = list[Ints](), list[LayerStep]()
            for item in self._items_of(stage, (WorkKind.FORWARD,)):
                place = self._places[item]
                if (stage, place) in seen:
                    continue
                seen.add((stage, place))
                laid = self._laid[item]
                assert laid is not None, "items are laid first"
                for name, task in zip(laid[0].layers, laid[0].first, strict=True):
                    for collective in self.parts.layers[name].updated_gather:
                        found = parted(collective)
                        blocking += [step for step in (found.seen, found.lost) if step is not None]
                        if found.beside is not None:
                            ahead.append(self._message(found.beside, stage, ahead[-1:]))
                            self._edge(ahead[-1], laid[1].at[task] + laid[2])
            before: list[Ints] = []
            for step in blocking:
                before = [self._message(step, stage, before)]
            for task in before:
                self._edge(task, self.begin[int(self.order.starts[stage])])

    def closing(self) -> None:
        """Gradients are reduced, then (their norm is known when all are) weights updated."""
        stages = range(self.order.pipeline.num_stages)
        for stage in stages:
            self._reductions(stage)
        before: list[Ints] = []
        for holders, message in self.parts.tied:
            block = self._tied_block(holders, message)
            at = block.at[0] + self._lay(block, -1)
            for task in [*before, *(task for holder in holders for task in self._done[holder])]:
                self._edge(task, at)
            before = [at]
            for holder in holders:
                self._done[holder].append(at)
        together = self._single("gradient norm", StepKind.WAIT, 0.0)
        for task in (task for done in self._done for task in done):
            self._edge(task, np.broadcast_to(together, task.shape))
        after = self._single("between steps", StepKind.WAIT, self.parts.between_s)
        for stage in stages:
            update = LayerStep("optimizer", StepKind.OPTIMIZER, self.parts.optimizer_s[stage])
            block = self._block(_alone(update), stage)
            at = block.at[0] + self._lay(block, -1)
            self._edge(np.broadcast_to(together, at.shape), at)
            self._edge(at, np.broadcast_to(after, at.shape))

    def _reductions(self, stage: int) -> None:
        """Of each layer after its last gradient, beside what is left to do; the rest of it after everything."""
        gradients = (WorkKind.BACKWARD, WorkKind.WEIGHT_GRADIENT)
        last = {self._places[item]: item for item in self._items_of(stage, gradients)}
        behind, blocking = list[Ints](), list[LayerStep]()
        for item in sorted(last.values()):
            laid = self._laid[item]
            assert laid is not None, "items are laid first"
            for name, task in zip(laid[0].layers, laid[0].last, strict=True):
                for collective in self.parts.layers[name].step_reduction:
                    found = parted(collective)
                    blocking += [step for step in (found.seen, found.lost) if step is not None]
                    if found.beside is not None:
                        needed = [*behind[-1:], laid[1].at[task] + laid[2]]
                        behind.append(self._message(found.beside, stage, needed))
        before = list(self._done[stage])
        for step in blocking:
            before = [self._message(step, stage, before)]
        self._done[stage] += [*behind[-1:], *(before if blocking else [])]

    def _items_of(self, stage: int, kinds: tuple[WorkKind, ...]) -> Iterable[int]:
        span = range(int(self.order.starts[stage]), int(self.order.starts[stage + 1]))
        return (item for item in span if self._kinds[item] in kinds)

    # -- tasks

    def _message(self, step: LayerStep, stage: int, needed: Sequence[Ints]) -> Ints:
        key = (stage, step)
        if key not in self._known:
            pattern = _alone(step)
            self._known[key] = pattern, self._block(pattern, stage)
        block = self._known[key][1]
        at = block.at[0] + self._lay(block, -1)
        for task in needed:
            self._edge(task, at)
        return at

    def _single(self, name: str, kind: StepKind, seconds: float) -> Ints:
        """One task for all chips."""
        ones = np.ones(1, np.int64)
        texts = self._texts.number(name) * ones
        none = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        block = _Block(seconds * np.ones(1), np.zeros(1), -ones, 0 * ones, kind * ones, 0 * ones, texts, none, 0 * ones)
        return np.array([self._lay(block, -1)])

    def _tied_block(self, stages: Sequence[int], message: Message) -> _Block:
        ((way, each),) = message.bytes_by_way
        routes = np.array(self.chips.across(stages, way))
        copies = len(routes)
        numbers = (StepKind.COLLECTIVE, self._streams.number("data-parallel"), self._texts.number("tied embeddings"))
        kind, stream, names = (np.full(copies, number) for number in numbers)
        chip = stages[0] * self.chips.simulated + np.arange(copies)
        none = np.zeros(0, np.int64)
        waits, sent = np.full(copies, message.wait_s), np.full(copies, each)
        return _Block(waits, sent, routes, chip, kind, stream, names, (none, none), np.arange(copies)[None])

    def _block(self, pattern: Pattern, stage: int) -> _Block:
        """A pattern on the chips of a stage: a task for every chip, or for every group where it is a collective."""
        chips = self.chips
        first = stage * chips.simulated
        own = np.arange(chips.simulated)
        columns: list[list[float]] = [[] for _ in range(7)]
        at: list[Ints] = []
        for step in pattern.steps:
            groups, routes, sent, seconds = own, [-1] * chips.simulated, 0.0, 0.0
            if step is not None:
                seconds = step.seconds
                if step.message is not None:
                    seconds, groups = step.message.wait_s, chips.groups(step.message.axes)
                    routes = [-1] * (int(groups.max()) + 1)
                    if step.message.bytes_by_way:
                        routes, sent = chips.collective(step.message, stage)
            copies = len(routes)
            at.append(len(columns[0]) + groups)
            members = first + np.unique(groups, return_index=True)[1]
            kind = StepKind.WAIT if step is None else step.kind
            stream = self._streams.number(step.group if step is not None and step.group else KERNELS)
            name = self._texts.number("" if step is None else step.name)
            values = ([seconds] * copies, [sent] * copies, routes, members.tolist())
            for column, found in zip(
                columns, (*values, [kind] * copies, [stream] * copies, [name] * copies), strict=True
            ):
                column += found
        where = np.array(at, np.int64)
        pairs = np.array(pattern.edges, np.int64).reshape(-1, 2)
        edges = where[pairs[:, 0]].ravel(), where[pairs[:, 1]].ravel()
        floats = [np.array(column, np.float64) for column in columns[:2]]
        ints = [np.array(column, np.int64) for column in columns[2:]]
        return _Block(*floats, *ints, edges, where)  # type: ignore[call-arg]

    def _lay(self, block: _Block, item: int) -> int:
        """Adds a block's tasks, of an item or of none; where they begin."""
        offset = self._count
        self._blocks.append((block, offset, item))
        self._count += len(block.seconds)
        return offset

    def _edge(self, before: Ints, after: Ints) -> None:
        self._edges.append((np.asarray(before), np.asarray(after)))

    def finished(self) -> StepTasks:
        """Everything together."""
        blocks = [block for block, _, _ in self._blocks]

        def column(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(block, name) for block in blocks])

        lengths = np.array([len(block.seconds) for block in blocks])
        items = np.repeat([item for _, _, item in self._blocks], lengths)
        of_item = items >= 0
        inside = [(block.edges[0] + offset, block.edges[1] + offset) for block, offset, _ in self._blocks]
        before, after = (np.concatenate(side) for side in zip(*inside, *self._edges, strict=True))
        graph = TaskGraph(column("seconds"), column("bytes"), column("route"), before, after, self.chips.network())
        labels = Labels(
            column("chip"),
            column("kind"),
            column("stream"),
            column("name"),
            np.where(of_item, self.order.microbatch[items], -1),
            np.where(of_item, self.order.place[items], -1),
            tuple(self._streams.numbers),
            tuple(self._texts.numbers),
        )
        return StepTasks(graph, labels, self.order, self.begin, self.end, tuple(self.chips.link_names()))


def _alone(step: LayerStep) -> Pattern:
    pattern = Pattern()
    pattern.add(step, ())
    return pattern
