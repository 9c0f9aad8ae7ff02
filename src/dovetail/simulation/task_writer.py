"""Tasks written one block after another, with what they wait for and what they are called."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Array, Floats, Ints
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.pipeline.work_order import WorkOrder
from dovetail.simulation.chips import Chips
from dovetail.simulation.item_tasks import Pattern
from dovetail.simulation.layer_steps import LayerStep, StepKind
from dovetail.simulation.task_blocks import TaskBlock, Texts
from dovetail.simulation.task_graph import TaskGraph

#: More are not written; the event loop plays so many in about a minute.
MOST_TASKS = 20_000_000


@frozen
class Labels:
    """What every task is: arrays over tasks; `streams` and `names` are the texts they number."""

    #: simulated chips, those of a stage after each other; the first of those that take part
    chip: Ints
    kind: Ints
    stream: Ints
    name: Ints
    #: of the order, the first of two that run together; -1 where a task belongs to none
    item: Ints
    microbatch: Ints
    place: Ints
    streams: tuple[str, ...]
    names: tuple[str, ...]


class TaskWriter:
    """Lays blocks of tasks out one after another; `kernels` is the stream of steps that are no messages."""

    def __init__(self, order: WorkOrder, chips: Chips, kernels: str) -> None:
        self.order, self.chips, self._kernels = order, chips, kernels
        self._blocks: list[tuple[TaskBlock, int, int]] = []
        self._edges: list[tuple[Ints, Ints]] = []
        self._count = 0
        self._texts, self._streams = Texts(), Texts()
        self._streams.number(kernels)

    def block(self, pattern: Pattern, stage: int) -> TaskBlock:
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
            stream = self._streams.number(step.group if step is not None and step.group else self._kernels)
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

    def messages(
        self, stage: int, waits: Floats, sent: Floats, routes: Ints, labels: tuple[StepKind, str, str]
    ) -> TaskBlock:
        """A message of every chip of a stage: its kind, stream and name are the same for all."""
        chips, none = np.arange(len(routes)), np.zeros(0, np.int64)
        numbers = (labels[0], self._streams.number(labels[1]), self._texts.number(labels[2]))
        kind, stream, name = (np.full(len(chips), number) for number in numbers)
        chip = stage * self.chips.simulated + chips
        return TaskBlock(waits, sent, routes, chip, kind, stream, name, (none, none), chips[None])

    def single(self, name: str, kind: StepKind, seconds: float) -> Ints:
        """One task for all chips."""
        ones = np.ones(1, np.int64)
        texts = self._texts.number(name) * ones
        none = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        block = TaskBlock(
            seconds * np.ones(1), np.zeros(1), -ones, 0 * ones, kind * ones, 0 * ones, texts, none, 0 * ones
        )
        return np.array([self.lay(block, -1)])

    def lay(self, block: TaskBlock, item: int) -> int:
        """Adds a block's tasks, of an item or of none; where they begin."""
        offset = self._count
        if offset > MOST_TASKS:
            fix = "take fewer micro-batches (a smaller global_batch), stages or layers"
            raise InputError("the simulation of this step", f"has more than {MOST_TASKS:,} tasks to play", fix)
        self._blocks.append((block, offset, item))
        self._count += len(block.seconds)
        return offset

    def edge(self, before: Ints, after: Ints) -> None:
        """Tasks wait for others, one by one."""
        self._edges.append((np.asarray(before), np.asarray(after)))

    def written(self) -> tuple[TaskGraph, Labels]:
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
            items,
            np.where(of_item, self.order.microbatch[items], -1),
            np.where(of_item, self.order.place[items], -1),
            tuple(self._streams.numbers),
            tuple(self._texts.numbers),
        )
        return graph, labels


def alone(step: LayerStep) -> Pattern:
    """A pattern of one step."""
    pattern = Pattern()
    pattern.add(step, ())
    return pattern
