"""A whole training step as tasks: every item of the pipeline, transfers between stages, and the end of the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np

from dovetail.arrays import Ints
from dovetail.frozen import frozen
from dovetail.pipeline.work_order import WorkKind, WorkOrder, needs
from dovetail.simulation.chips import DIRECTIONS, Chips
from dovetail.simulation.item_tasks import Pattern, item_pattern, joined_pattern, parted
from dovetail.simulation.layer_steps import LayerStep, LayerSteps, Message, StepKind
from dovetail.simulation.task_blocks import Laid, TaskBlock
from dovetail.simulation.task_graph import TaskGraph
from dovetail.simulation.task_writer import Labels, TaskWriter, alone
from dovetail.step.profiles import GRADIENTS
from dovetail.step.stages import ChunkContent
from dovetail.step.store import StageTraffic, StoreUse

#: The stream of kernels; the others are called after the kind of group whose messages they carry.
KERNELS = "kernels"
TRANSFERS = "transfers"
STORE = "store"


@frozen
class StepTasks:
    """A step ready to run."""

    graph: TaskGraph
    labels: Labels
    order: WorkOrder
    #: items × simulated chips of a stage: the tasks an item begins and ends with
    begin: Ints
    end: Ints
    link_names: tuple[str, ...]
    #: links of a simulated chip, its ports; behind those of all chips come the stores of wafers
    chip_links: int
    #: by item, how often it comes: more than once where it stands for those of periods that are skipped
    runs: Ints

    @property
    def task_runs(self) -> Ints:
        """By task, how often it comes."""
        return np.where(self.labels.item >= 0, self.runs[self.labels.item], 1)

    @property
    def num_tasks(self) -> int:
        """Tasks of the whole step."""
        return int(self.task_runs.sum())

    @property
    def port_links(self) -> int:
        """Links that are ports of chips: all but the stores."""
        return self.chip_links * self.order.pipeline.num_stages * self.begin.shape[1]


@frozen
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
    #: what stages exchange with stores off the wafer
    store: StoreUse = field(default_factory=StoreUse)
    #: stage, lender, and the bytes of a micro-batch that each die of the stage sends there and fetches back
    loans: Sequence[tuple[int, int, float]] = ()


def step_tasks(parts: StepParts, chips: Chips) -> StepTasks:
    """All tasks of a step, and what they wait for."""
    writer = _StepWriter(parts, chips)
    writer.items()
    writer.transfers()
    writer.loans()
    writer.streams()
    writer.updated_weights()
    writer.end_of_step()
    return writer.finished()


class _StepWriter(TaskWriter):
    """Lays patterns out one after another."""

    def __init__(self, parts: StepParts, chips: Chips) -> None:
        super().__init__(parts.order, chips, KERNELS)
        self.parts = parts
        self._places: list[int] = self.order.place.tolist()
        self._kinds = [WorkKind(kind) for kind in self.order.kind.tolist()]
        self._patterns: dict[tuple[object, ...], tuple[Pattern, TaskBlock]] = {}
        items = len(self.order.kind)
        self.begin = np.zeros((items, chips.simulated), np.int64)
        self.end = np.zeros((items, chips.simulated), np.int64)
        self._laid: dict[int, Laid] = {}
        #: by stage: tasks after which its part of the pipeline is done
        self._done: list[list[Ints]] = [[] for _ in range(self.order.pipeline.num_stages)]
        #: by item: what the item after it begins with, and what the item before it begins and ends with
        self._next: dict[int, Ints] = {}
        self._before: dict[int, Laid] = {}

    # -- the pipeline

    def items(self) -> None:
        """Every item of every stage, one after another."""
        for stage in range(self.order.pipeline.num_stages):
            low, high = int(self.order.starts[stage]), int(self.order.starts[stage + 1])
            before: Laid | None = None
            item = began = low
            while item < high:
                width = 2 if self.order.joined[item] else 1
                laid = self._item(stage, item, width)
                if before is not None:
                    self.edge(before.end, laid.begin)
                    self._next |= dict.fromkeys(range(began, item), laid.begin)
                    self._before |= dict.fromkeys(range(item, item + width), before)
                    for task in before.loose:
                        self.edge(task, laid.end)
                before, began = laid, item
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
            self._patterns[key] = pattern, self.block(pattern, stage)
        pattern, block = self._patterns[key]
        laid = Laid(pattern, block, self.lay(block, item))
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
            self.edge(self.end[required.item[item]], self.begin[item])
        for item in np.nonzero(users >= 0)[0].tolist():
            user = int(users[item])
            way = (int(stage[item]), int(stage[user]))
            block = self._transfer_block(*way, self.parts.stream_bytes, f"to stage {way[1]}")
            at = block.at[0] + self.lay(block, item)
            self.edge(self.end[item], at)
            self.edge(at, self.begin[user])
            if way in last:
                self.edge(last[way], at)
            last[way] = at
            if self.parts.sending:
                if item in self._next:
                    self.edge(at, self._next[item])
                else:
                    self._done[way[0]].append(at)

    def loans(self) -> None:
        """Activations that other stages hold: sent behind a forward and fetched ahead of its backward, waited for."""
        backward = (WorkKind.BACKWARD, WorkKind.INPUT_GRADIENT)
        for stage, lender, lent in self.parts.loans:
            for item in self._items_of(stage, (WorkKind.FORWARD,)):
                block = self._transfer_block(stage, lender, lent, f"to be held by stage {lender}")
                at = block.at[0] + self.lay(block, item)
                self.edge(self.end[item], at)
                self.edge(at, self._next[item])
            for item in self._items_of(stage, backward):
                block = self._transfer_block(lender, stage, lent, f"back to stage {stage}")
                at = block.at[0] + self.lay(block, item)
                self.edge(self._before[item].end, at)
                self.edge(at, self.begin[item])

    def streams(self) -> None:
        """What stores send to an item and receive from it, block by block while it works.

        An item's stream begins with the item before it, since dies have room for two blocks, and the item does not end
        before it; a stage's streams follow each other.
        """
        store = self.parts.store
        for stage, (traffic, wafers) in enumerate(zip(store.by_stage, store.wafers, strict=True)):
            route, bytes_of, last = self.chips.store_route(wafers), _streamed(traffic), list[Ints]()
            for item in range(int(self.order.starts[stage]), int(self.order.starts[stage + 1])):
                ahead, behind = bytes_of[self._kinds[item]]
                if ahead:
                    at = self._stream(stage, ahead, route, item, "from the store")
                    for task in [*last, *([self._before[item].begin] if item in self._before else [])]:
                        self.edge(task, at)
                    self.edge(at, self.end[item])
                    last = [at]
                if behind:
                    at = self._stream(stage, behind, route, item, "to the store")
                    for task in [*last, self.begin[item]]:
                        self.edge(task, at)
                    last = [at]
            self._done[stage] += last
            if traffic.step_bytes:
                at = self._stream(stage, traffic.step_bytes, route, -1, "gradients and weights")
                for task in self._done[stage]:
                    self.edge(task, at)
                self._done[stage] = [at]

    def _stream(self, stage: int, sent: float, route: int, item: int, name: str) -> Ints:
        key = (name, stage, sent)
        if key not in self._patterns:
            labels = (StepKind.TRANSFER, STORE, name)
            ones = np.ones(self.chips.simulated)
            routes = np.full(len(ones), route)
            # where every chip is simulated, each has its part
            self._patterns[key] = Pattern(), self.messages(stage, 0 * ones, sent / len(ones) * ones, routes, labels)
        block = self._patterns[key][1]
        return block.at[0] + self.lay(block, item)

    def _transfer_block(self, source: int, target: int, each: float, name: str) -> TaskBlock:
        key = (name, source, target, each)
        if key not in self._patterns:
            transfers = self.chips.transfer(source, target)
            waits = np.array([transfer.wait_s for transfer in transfers])
            sent = np.array([transfer.times * each for transfer in transfers])
            routes = np.array([transfer.route for transfer in transfers])
            labels = (StepKind.TRANSFER, TRANSFERS, name)
            self._patterns[key] = Pattern(), self.messages(source, waits, sent, routes, labels)
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
                            self.edge(ahead[-1], laid.at(task))
            for task in self._one_by_one(blocking, stage, ()):
                self.edge(task, self.begin[int(self.order.starts[stage])])

    def end_of_step(self) -> None:
        """Gradients are reduced, then (their norm is known when all are) weights updated."""
        stages = range(self.order.pipeline.num_stages)
        for stage in stages:
            self._reductions(stage)
        before: list[Ints] = []
        for holders, message in self.parts.tied:
            block = self._tied_block(holders, message)
            at = block.at[0] + self.lay(block, -1)
            for task in [*before, *(task for holder in holders for task in self._done[holder])]:
                self.edge(task, at)
            before = [at]
            for holder in holders:
                self._done[holder].append(at)
        together = self.single("gradient norm", StepKind.WAIT, 0.0)
        for task in (task for done in self._done for task in done):
            self.edge(task, np.broadcast_to(together, task.shape))
        after = self.single("between steps", StepKind.WAIT, self.parts.between_s)
        for stage in stages:
            update = LayerStep("optimizer", StepKind.OPTIMIZER, self.parts.optimizer_s[stage])
            block = self.block(alone(update), stage)
            at = block.at[0] + self.lay(block, -1)
            self.edge(np.broadcast_to(together, at.shape), at)
            self.edge(at, np.broadcast_to(after, at.shape))

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
            pattern = alone(step)
            self._patterns[key] = pattern, self.block(pattern, stage)
        block = self._patterns[key][1]
        at = block.at[0] + self.lay(block, -1)
        for task in needed:
            self.edge(task, at)
        return at

    def _tied_block(self, stages: Sequence[int], message: Message) -> TaskBlock:
        ((way, each),) = message.bytes_by_way
        routes = np.array(self.chips.across(stages, way))
        waits, sent = np.full(len(routes), message.wait_s), np.full(len(routes), each)
        return self.messages(stages[0], waits, sent, routes, (StepKind.COLLECTIVE, GRADIENTS, "tied embeddings"))

    def finished(self) -> StepTasks:
        """Everything together."""
        graph, labels = self.written()
        links, ports = tuple(self.chips.link_names()), len(DIRECTIONS) * len(self.chips.ways)
        runs = np.ones(len(self.begin), np.int64)
        return StepTasks(graph, labels, self.order, self.begin, self.end, links, ports, runs)


def _streamed(traffic: StageTraffic) -> dict[WorkKind, tuple[float, float]]:
    """Bytes ahead of an item and behind it."""
    ahead = traffic.weights_in + traffic.activations
    return {
        WorkKind.FORWARD: (traffic.weights_in, traffic.activations),
        WorkKind.BACKWARD: (ahead, traffic.gradients_out),
        WorkKind.INPUT_GRADIENT: (ahead, 0.0),
        WorkKind.WEIGHT_GRADIENT: (0.0, traffic.gradients_out),
    }
