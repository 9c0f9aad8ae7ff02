"""A whole training step as tasks: every item of the pipeline, transfers between stages, and the end of the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.arrays import Array, Floats, Ints
from dovetail.pipeline.work_order import WorkKind, WorkOrder, needs
from dovetail.simulation.chips import Chips
from dovetail.simulation.item_tasks import Pattern, item_pattern, joined_pattern, parted
from dovetail.simulation.layer_steps import GRADIENTS, LayerStep, LayerSteps, Message, StepKind
from dovetail.simulation.task_blocks import Laid, TaskBlock, Texts
from dovetail.simulation.task_graph import TaskGraph
from dovetail.step.stages import ChunkContent

#: The stream of kernels; the others are called after the kind of group whose messages they carry.
KERNELS = "kernels"
TRANSFERS = "transfers"


@dataclass(frozen=True, slots=True)
class Labels:
    """What every task is: arrays over tasks; `streams` and `names` are the texts they number."""

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


def step_tasks(parts: StepParts, chips: Chips) -> StepTasks:
    """All tasks of a step, and what they wait for."""
    writer = _StepWriter(parts, chips)
    writer.items()
    writer.transfers()
    writer.updated_weights()
    writer.end_of_step()
    return writer.finished()


class _StepWriter:
    """Lays patterns out one after another."""

    def __init__(self, parts: StepParts, chips: Chips) -> None:
        self.parts, self.chips, self.order = parts, chips, parts.order
        self._places: list[int] = self.order.place.tolist()
        self._kinds = [WorkKind(kind) for kind in self.order.kind.tolist()]
        self._blocks: list[tuple[TaskBlock, int, int]] = []
        self._edges: list[tuple[Ints, Ints]] = []
        self._count = 0
        self._texts, self._streams = Texts(), Texts()
        self._streams.number(KERNELS)
        self._patterns: dict[tuple[object, ...], tuple[Pattern, TaskBlock]] = {}
        items = len(self.order.kind)
        self.begin = np.zeros((items, chips.simulated), np.int64)
        self.end = np.zeros((items, chips.simulated), np.int64)
        self._laid: dict[int, Laid] = {}
        #: by stage: tasks after which its part of the pipeline is done
        self._done: list[list[Ints]] = [[] for _ in range(self.order.pipeline.num_stages)]
        #: by item: what the item after it begins with
        self._next: dict[int, Ints] = {}

    # -- the pipeline

    def items(self) -> None:
        """Every item of every stage, one after another."""
        for stage in range(self.order.pipeline.num_stages):
            low, high = int(self.order.starts[stage]), int(self.order.starts[stage + 1])
            before: Laid | None = None
            item = low
            while item < high:
                width = 2 if self.order.joined[item] else 1
                laid = self._item(stage, item, width)
                if before is not None:
                    self._edge(before.end, laid.begin)
                    self._next[item - 1] = laid.begin
                    for task in before.loose:
                        self._edge(task, laid.end)
                before = laid
                item += width
            assert before is not None, "every stage has items"
            self._done[stage] += [before.end, *before.loose]

    def _item(self, stage: int, item: int, width: int) -> Laid:
        places, kinds = self._places[item : item + width], self._kinds[item : item + width]
        key = (stage, *places, *kinds)
        if key not in self._patterns:
            patterns = [
                item_pattern(kind, self.parts.contents[place], self.parts.layers)
                for kind, place in zip(kinds, places, strict=True)
            ]
            pattern = patterns[0] if width == 1 else joined_pattern(*patterns)
            self._patterns[key] = pattern, self._block(pattern, stage)
        pattern, block = self._patterns[key]
        laid = Laid(pattern, block, self._lay(block, item))
        for member in range(item, item + width):
            self.begin[member], self.end[member] = laid.begin, laid.end
            self._laid[member] = laid
        return laid

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

    def _transfer_block(self, source: int, target: int) -> TaskBlock:
        key = ("transfer", source, target)
        if key not in self._patterns:
            transfers = self.chips.transfer(source, target)
            waits = np.array([transfer.wait_s for transfer in transfers])
            sent = np.array([transfer.times * self.parts.stream_bytes for transfer in transfers])
            routes = np.array([transfer.route for transfer in transfers])
            labels = (StepKind.TRANSFER, TRANSFERS, f"to stage {target}")
            self._patterns[key] = Pattern(), self._messages(source, waits, sent, routes, labels)
        return self._patterns[key][1]

    # -- before and after

    def updated_weights(self) -> None:
        """Weights updated in shards come together ahead of the first forward that needs them."""
        for stage in range(self.order.pipeline.num_stages):
            first: dict[int, int] = {}
            for item in self._items_of(stage, (WorkKind.FORWARD,)):
                first.setdefault(self._places[item], item)
            ahead, blocking = list[Ints](), list[LayerStep]()
            for laid in (self._laid[item] for item in sorted(first.values())):
                for name, task in zip(laid.pattern.layers, laid.pattern.first, strict=True):
                    for parts in map(parted, self.parts.layers[name].updated_gather):
                        blocking += parts.waited_for
                        if parts.overlapped is not None:
                            ahead.append(self._message(parts.overlapped, stage, ahead[-1:]))
                            self._edge(ahead[-1], laid.at(task))
            for task in self._one_by_one(blocking, stage, ()):
                self._edge(task, self.begin[int(self.order.starts[stage])])

    def end_of_step(self) -> None:
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
        """Of each layer after its last gradient, overlapping what is left to do; the rest of it after everything."""
        gradients = (WorkKind.BACKWARD, WorkKind.WEIGHT_GRADIENT)
        last = {self._places[item]: item for item in self._items_of(stage, gradients)}
        behind, blocking = list[Ints](), list[LayerStep]()
        for laid in (self._laid[item] for item in sorted(last.values())):
            for name, task in zip(laid.pattern.layers, laid.pattern.last, strict=True):
                for parts in map(parted, self.parts.layers[name].step_reduction):
                    blocking += parts.waited_for
                    if parts.overlapped is not None:
                        behind.append(self._message(parts.overlapped, stage, [*behind[-1:], laid.at(task)]))
        self._done[stage] += [*behind[-1:], *self._one_by_one(blocking, stage, self._done[stage])]

    def _one_by_one(self, steps: Sequence[LayerStep], stage: int, needed: Sequence[Ints]) -> list[Ints]:
        """Steps after each other, the first after what is needed; the last of them, where there is any."""
        last: list[Ints] = []
        for step in steps:
            last = [self._message(step, stage, last or needed)]
        return last

    def _items_of(self, stage: int, kinds: tuple[WorkKind, ...]) -> Iterable[int]:
        span = range(int(self.order.starts[stage]), int(self.order.starts[stage + 1]))
        return (item for item in span if self._kinds[item] in kinds)

    # -- tasks

    def _message(self, step: LayerStep, stage: int, needed: Sequence[Ints]) -> Ints:
        key = (stage, step)
        if key not in self._patterns:
            pattern = _alone(step)
            self._patterns[key] = pattern, self._block(pattern, stage)
        block = self._patterns[key][1]
        at = block.at[0] + self._lay(block, -1)
        for task in needed:
            self._edge(task, at)
        return at

    def _single(self, name: str, kind: StepKind, seconds: float) -> Ints:
        """One task for all chips."""
        ones = np.ones(1, np.int64)
        texts = self._texts.number(name) * ones
        none = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        block = TaskBlock(
            seconds * np.ones(1), np.zeros(1), -ones, 0 * ones, kind * ones, 0 * ones, texts, none, 0 * ones
        )
        return np.array([self._lay(block, -1)])

    def _tied_block(self, stages: Sequence[int], message: Message) -> TaskBlock:
        ((way, each),) = message.bytes_by_way
        routes = np.array(self.chips.across(stages, way))
        waits, sent = np.full(len(routes), message.wait_s), np.full(len(routes), each)
        return self._messages(stages[0], waits, sent, routes, (StepKind.COLLECTIVE, GRADIENTS, "tied embeddings"))

    def _messages(
        self, stage: int, waits: Floats, sent: Floats, routes: Ints, labels: tuple[StepKind, str, str]
    ) -> TaskBlock:
        """A message of every chip of a stage: its kind, stream and name are the same for all."""
        chips, none = np.arange(len(routes)), np.zeros(0, np.int64)
        numbers = (labels[0], self._streams.number(labels[1]), self._texts.number(labels[2]))
        kind, stream, name = (np.full(len(chips), number) for number in numbers)
        chip = stage * self.chips.simulated + chips
        return TaskBlock(waits, sent, routes, chip, kind, stream, name, (none, none), chips[None])

    def _block(self, pattern: Pattern, stage: int) -> TaskBlock:
        """A pattern on the chips of a stage: a task for every chip, or for every group where it is a collective."""
        chips = self.chips
        first = stage * chips.simulated
        one_each = np.arange(chips.simulated)
        columns: list[list[float]] = [[] for _ in range(7)]
        at: list[Ints] = []
        for step in pattern.steps:
            groups, routes, sent, seconds = one_each, [-1] * chips.simulated, 0.0, 0.0
            if step is not None:
                seconds = step.seconds
                if step.message is not None:
                    seconds, groups = step.message.wait_s, chips.groups(step.message.axes)
                    routes = [-1] * (int(groups.max()) + 1)
                    if step.message.bytes_by_way:
                        routes, sent = chips.collective(step.message, stage)
            count = len(routes)
            at.append(len(columns[0]) + groups)
            members = first + np.unique(groups, return_index=True)[1]
            kind = StepKind.WAIT if step is None else step.kind
            stream = self._streams.number(step.group if step is not None and step.group else KERNELS)
            name = self._texts.number("" if step is None else step.name)
            values = ([seconds] * count, [sent] * count, routes, members.tolist())
            for column, added in zip(columns, (*values, [kind] * count, [stream] * count, [name] * count), strict=True):
                column += added
        where = np.array(at, np.int64)
        pairs = np.array(pattern.edges, np.int64).reshape(-1, 2)
        edges = where[pairs[:, 0]].ravel(), where[pairs[:, 1]].ravel()
        floats = [np.array(column, np.float64) for column in columns[:2]]
        ints = [np.array(column, np.int64) for column in columns[2:]]
        return TaskBlock(*floats, *ints, edges, where)  # type: ignore[call-arg]

    def _lay(self, block: TaskBlock, item: int) -> int:
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

        def column(name: str) -> Array:
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
