"""The tasks of a simulated step as nodes of an execution trace: one list for each stage, the same for its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush

import numpy as np

from dovetail.arrays import Ints
from dovetail.frozen import frozen
from dovetail.layout import CollectiveKind
from dovetail.simulation.chakra_format import COMM_TYPES, NodeType, boolean, int32, int64, node, uint64
from dovetail.simulation.chakra_work import CollectiveWork, KernelWork, TaskKey, TaskWork
from dovetail.simulation.layer_steps import StepKind
from dovetail.simulation.step_tasks import StepTasks
from dovetail.simulation.task_graph import TaskGraph, Timeline


class Partner(Enum):
    """With whom a rank communicates."""

    #: all ranks along axes
    GROUP = "group"
    #: the next and the previous rank round the ring along axes
    NEXT = "next"
    PREVIOUS = "previous"
    #: the same position of another stage, or of all stages that share a weight
    TO_STAGE = "to stage"
    FROM_STAGE = "from stage"
    STAGES = "stages"


#: Axes, or stages.
Partners = tuple[Partner, tuple[str | int, ...]]


@frozen
class StageNode:
    """A node without the attributes in which the ranks of a stage differ: those of `partners`."""

    message: bytes
    partners: Partners | None
    #: its comm_size
    bytes: int


@frozen
class StepWorks:
    """What tasks are in numbers."""

    by_stage: Sequence[Mapping[TaskKey, TaskWork]]
    #: stages and bytes, in the order of their tasks
    tied: Sequence[tuple[tuple[int, ...], int]]
    #: of a transfer between stages
    transfer_bytes: int


def stage_nodes(tasks: StepTasks, timeline: Timeline, works: StepWorks) -> list[list[StageNode]]:
    """The nodes of every stage in the order in which they began, numbered from 0."""
    writer = _NodeWriter(tasks, timeline, works)
    for task in _begun(tasks.graph, timeline):
        writer.task(task)
    return writer.finished()


class _NodeWriter:
    """Writes tasks in the order in which they begin."""

    def __init__(self, tasks: StepTasks, timeline: Timeline, works: StepWorks) -> None:
        graph, labels = tasks.graph, tasks.labels
        self._works: StepWorks = works
        num_stages = tasks.order.pipeline.num_stages
        self._nodes: list[list[StageNode]] = [[] for _ in range(num_stages)]
        self._stages = range(num_stages)
        self._streams = labels.streams
        columns = (labels.chip, labels.kind, labels.stream, labels.place, labels.microbatch)
        self._stage, self._kind, self._stream, self._chunk, self._microbatch = map(_numbers, columns)
        self._name: list[str] = np.array(labels.names, object)[labels.name].tolist()
        self._seconds, self._bytes = graph.seconds.tolist(), graph.bytes.tolist()
        self._start_s, self._end_s = timeline.start_s.tolist(), timeline.end_s.tolist()
        self._before, self._before_starts = _by_task(graph.after, graph.before, len(graph))
        #: tasks of items that run together are labelled as those of the first
        self._joined = bool(tasks.order.joined.any())
        self._target: list[int] = _targets(tasks).tolist()
        self._transfers: dict[tuple[int, int], int] = {}
        self._permutes = [0] * num_stages
        self._tied = iter(works.tied)
        #: by task: the nodes of its stage that stand for it; of a task of several stages, by stage
        self._ends: list[tuple[int, ...]] = [()] * len(graph)
        self._ends_by_stage: dict[int, dict[int, tuple[int, ...]]] = {}
        #: by stage and stream: the last node and when it ended
        self._last: dict[tuple[int, int | str], tuple[int, float]] = {}

    def task(self, task: int) -> None:
        """The nodes of a task; one that takes no time is none: what needs it needs what it needs."""
        kind, stage = StepKind(self._kind[task]), self._stage[task]
        if kind is StepKind.WAIT and self._microbatch[task] < 0:
            # of all stages: the gradient norm, and what is between steps
            self._ends_by_stage[task] = {each: self._compute(task, each) for each in self._stages}
        elif kind is StepKind.TRANSFER:
            self._transfer(task, stage, self._target[task])
        elif kind is not StepKind.COLLECTIVE:
            self._ends[task] = self._compute(task, stage)
        elif (work := self._work(task)) is None:
            stages, sent = next(self._tied)
            collective = CollectiveWork(CollectiveKind.ALL_REDUCE, (), sent)
            self._ends_by_stage[task] = {
                each: self._collective(task, each, collective, (Partner.STAGES, stages)) for each in stages
            }
        else:
            assert isinstance(work, CollectiveWork), work
            permutes = work.kind is CollectiveKind.PERMUTE
            self._ends[task] = (
                self._permute(task, stage, work)
                if permutes
                else self._collective(task, stage, work, (Partner.GROUP, work.axes))
            )

    def finished(self) -> list[list[StageNode]]:
        """The nodes of every stage, once all tasks are written."""
        assert next(self._tied, None) is None, "gradients of tied weights are summed"
        return self._nodes

    def _work(self, task: int) -> TaskWork | None:
        stream = self._streams[self._stream[task]]
        key = (self._name[task], self._kind[task], stream, self._seconds[task], self._bytes[task])
        return self._works.by_stage[self._stage[task]].get(key)

    def _compute(self, task: int, stage: int) -> tuple[int, ...]:
        needs = self._needs(task, stage)
        if self._seconds[task] == 0:
            return needs
        kind, name, work = StepKind(self._kind[task]), self._name[task], self._work(task)
        if work is not None:
            name = f"{kind.name.lower().replace('_', ' ')} {name}"
        attributes = boolean("is_cpu_op", value=kind is StepKind.WAIT)
        # ASTRA-sim's roofline divides by the operations of whatever has bytes
        if isinstance(work, KernelWork) and work.num_ops:
            attributes += int64("num_ops", work.num_ops) + uint64("tensor_size", work.bytes)
        return self._add(task, stage, NodeType.COMPUTE, name, needs, attributes)

    def _collective(self, task: int, stage: int, work: CollectiveWork, partners: Partners) -> tuple[int, ...]:
        attributes = int64("comm_type", COMM_TYPES[work.kind])
        needs = self._needs(task, stage)
        return self._add(task, stage, NodeType.COLLECTIVE, self._name[task], needs, attributes, partners, work.bytes)

    def _permute(self, task: int, stage: int, work: CollectiveWork) -> tuple[int, ...]:
        """To the next rank of the ring, and from the previous one."""
        tag, needs, name = int32("comm_tag", self._permutes[stage]), self._needs(task, stage), self._name[task]
        self._permutes[stage] += 1
        to, source = (Partner.NEXT, work.axes), (Partner.PREVIOUS, work.axes)
        return (
            *self._add(task, stage, NodeType.SEND, f"{name} send", needs, tag, to, work.bytes),
            *self._add(task, stage, NodeType.RECEIVE, f"{name} receive", needs, tag, source, work.bytes),
        )

    def _transfer(self, task: int, stage: int, target: int) -> None:
        tag = self._transfers.get((stage, target), 0)
        self._transfers[stage, target] = tag + 1
        tagged, sent = int32("comm_tag", tag), self._works.transfer_bytes
        to, source = (Partner.TO_STAGE, (target,)), (Partner.FROM_STAGE, (stage,))
        needs = self._needs(task, stage)
        self._ends_by_stage[task] = {
            stage: self._add(task, stage, NodeType.SEND, f"send to stage {target}", needs, tagged, to, sent),
            target: self._add(
                task, target, NodeType.RECEIVE, f"receive from stage {stage}", (), tagged, source, sent
            ),
        }  # fmt: skip

    def _needs(self, task: int, stage: int) -> tuple[int, ...]:
        """The nodes of a stage that a task waits for."""
        nodes: dict[int, None] = {}
        for before in self._before[self._before_starts[task] : self._before_starts[task + 1]]:
            if before in self._ends_by_stage:
                nodes.update(dict.fromkeys(self._ends_by_stage[before].get(stage, ())))
            elif self._stage[before] == stage:
                nodes.update(dict.fromkeys(self._ends[before]))
        return tuple(sorted(nodes))

    def _add(
        self,
        task: int,
        stage: int,
        kind: NodeType,
        name: str,
        needs: tuple[int, ...],
        attributes: bytes,
        partners: Partners | None = None,
        sent: int = 0,
    ) -> tuple[int]:
        number = len(self._nodes[stage])
        start_s, end_s = self._start_s[task], self._end_s[task]
        stream = name if kind is NodeType.RECEIVE else self._stream[task]
        last, ended_s = self._last.get((stage, stream), (-1, np.inf))
        after = (last,) if ended_s <= start_s and last not in needs else ()
        self._last[stage, stream] = number, end_s
        if self._microbatch[task] >= 0 and not self._joined:
            name += f", micro-batch {self._microbatch[task]}, chunk {self._chunk[task]}"
        if partners is not None:
            attributes += boolean("is_cpu_op", value=False) + int64("comm_size", sent)
        span = round(start_s * 1e6), round(end_s * 1e6)
        message = node(number, name, kind, needs, after, span) + attributes
        self._nodes[stage].append(StageNode(message, partners, sent))
        return (number,)


def _numbers(column: Ints) -> list[int]:
    return column.tolist()


def _by_task(task: Ints, value: Ints, count: int) -> tuple[list[int], list[int]]:
    """Values in the order of their tasks, and where those of each task begin."""
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(task, minlength=count), out=starts[1:])
    return value[np.argsort(task, kind="stable")].tolist(), starts.tolist()


def _begun(graph: TaskGraph, timeline: Timeline) -> Iterable[int]:
    """Tasks in the order in which they began, each after those it needs."""
    start_s: list[float] = timeline.start_s.tolist()
    after, starts = _by_task(graph.before, graph.after, len(graph))
    waiting: list[int] = np.bincount(graph.after, minlength=len(graph)).tolist()
    ready = [(start_s[task], task) for task, needed in enumerate(waiting) if not needed]
    heapify(ready)
    while ready:
        _, task = heappop(ready)
        yield task
        for other in after[starts[task] : starts[task + 1]]:
            waiting[other] -= 1
            if not waiting[other]:
                heappush(ready, (start_s[other], other))


def _targets(tasks: StepTasks) -> Ints:
    """The stage that a transfer goes to: that of the item which waits for it elsewhere."""
    graph, stage, kind = tasks.graph, tasks.labels.chip, tasks.labels.kind
    target = np.full(len(graph), -1)
    leaves = (kind[graph.before] == StepKind.TRANSFER) & (stage[graph.before] != stage[graph.after])
    leaves &= tasks.labels.microbatch[graph.after] >= 0
    target[graph.before[leaves]] = stage[graph.after[leaves]]
    return target
