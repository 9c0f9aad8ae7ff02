"""The tasks of one work item (a micro-batch's forward or backward through a chunk), as a pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dovetail.frozen import frozen
from dovetail.pipeline.work_order import WorkKind
from dovetail.simulation.layer_steps import LayerStep, LayerSteps, StepKind
from dovetail.step.stages import ChunkContent


@dataclass(slots=True)
class Pattern:
    """Tasks with what they need of each other, to be laid out as often as the item comes.

    Task 0 is the item's beginning, the last one its end; neither takes time.
    """

    steps: list[LayerStep | None] = field(default_factory=list[LayerStep | None])
    #: pairs of tasks: the first is needed by the second
    edges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    #: the first and the last task of each of its layers, in the order of the work
    first: list[int] = field(default_factory=list[int])
    last: list[int] = field(default_factory=list[int])
    #: messages that the end does not wait for: the end of the next item does
    loose: list[int] = field(default_factory=list[int])
    #: layers in the order of the work
    layers: list[str] = field(default_factory=list[str])

    def add(self, step: LayerStep | None, needs: Sequence[int]) -> int:
        """A task that needs others; its number."""
        self.steps.append(step)
        number = len(self.steps) - 1
        self.edges += [(before, number) for before in dict.fromkeys(needs)]
        return number


class _Writer:
    """Writes a pattern layer by layer."""

    def __init__(self) -> None:
        self.pattern = Pattern()
        #: what the next step of the chip needs
        self.front = [self.pattern.add(None, ())]
        #: by kind of group: the message before on the stream that overlaps computation
        self.streams: dict[str, int] = {}
        #: what the layer before began with
        self.earlier = list(self.front)
        #: reductions of the layer before, which the end of this one waits for
        self.reductions: list[int] = []

    def step(self, step: LayerStep) -> int:
        """One step after all before it."""
        task = self.pattern.add(step, self.front)
        self.front = [task]
        return task

    def overlapped(self, step: LayerStep, needs: Sequence[int]) -> int:
        """A message that overlaps computation, after those of its kind before it."""
        before = [self.streams[step.group]] if step.group in self.streams else []
        task = self.pattern.add(step, [*needs, *before])
        self.streams[step.group] = task
        return task

    def layer(
        self, name: str, steps: Sequence[LayerStep], gather: Sequence[LayerStep], reduce: Sequence[LayerStep]
    ) -> None:
        """A layer: its weights gathered while the one before it works, its gradients reduced while the next does."""
        started, gathered = list(self.front), list[int]()
        for collective in gather:
            gathered += self._collective(collective, self.earlier)
        self.front += gathered
        self.earlier = started
        count, aside = len(self.pattern.steps), list[int]()
        for step in steps:
            if step.message is None:
                self.step(step)
            else:
                aside += self._collective(step, None)
        self.front += [*aside, *self.reductions]
        self.reductions = []
        ended = list(self.front)
        for collective in reduce:
            self.reductions += self._collective(collective, ended)
        self.pattern.layers.append(name)
        self.pattern.first.append(min(count, len(self.pattern.steps) - 1))
        self.pattern.last.append(self.front[0])

    def _collective(self, step: LayerStep, needs: Sequence[int] | None) -> list[int]:
        """A collective's overlapped part, after what it needs, or after the part that computation waits for."""
        parts = parted(step)
        if parts.seen is not None:
            self.step(parts.seen)
        tasks = (
            []
            if parts.overlapped is None
            else [self.overlapped(parts.overlapped, self.front if needs is None else needs)]
        )
        if parts.lost is not None:
            self.step(parts.lost)
        return tasks

    def end(self) -> Pattern:
        """The finished pattern."""
        self.pattern.loose = list(self.reductions)
        self.pattern.add(None, self.front)
        return self.pattern


@frozen
class Parts:
    """A collective in parts."""

    #: the part that computation waits for
    seen: LayerStep | None
    #: the part that overlaps computation, and what computation loses to it
    overlapped: LayerStep | None
    lost: LayerStep | None

    @property
    def waited_for(self) -> list[LayerStep]:
        """All that computation waits for."""
        return [step for step in (self.seen, self.lost) if step is not None]


def parted(step: LayerStep) -> Parts:
    """What computation waits for of a collective, and what overlaps it.

    Kernels that send need cores and memory too, so computation beside them is slower: it waits for as long as it loses.
    The links carry every byte once.
    """
    assert step.message is not None, step
    if step.overlapped <= 0:
        return Parts(step, None, None)
    seen = lost = None
    if step.overlapped < 1:
        seen = LayerStep(step.name, step.kind, message=step.message.times(1 - step.overlapped), group=step.group)
    if step.lost > 0:
        lost = LayerStep(f"slowed by {step.name}", StepKind.SLOWED, step.overlapped * step.lost * step.message.seconds)
    overlapped = LayerStep(step.name, step.kind, message=step.message.times(step.overlapped), group=step.group)
    return Parts(seen, overlapped, lost)


def item_pattern(kind: WorkKind, content: ChunkContent, layers: Mapping[str, LayerSteps]) -> Pattern:
    """One micro-batch through a chunk: its layers in order, or in reverse for gradients."""
    writer = _Writer()
    names = [name for name, count in content.items() for _ in range(count)]
    for name in names if kind is WorkKind.FORWARD else reversed(names):
        steps = layers[name]
        match kind:
            case WorkKind.FORWARD:
                writer.layer(name, steps.forward, steps.forward_gather, ())
            case WorkKind.BACKWARD:
                writer.layer(name, steps.backward, steps.backward_gather, steps.microbatch_reduction)
            case WorkKind.INPUT_GRADIENT:
                writer.layer(name, steps.input_gradient, steps.backward_gather, steps.microbatch_reduction)
            case WorkKind.WEIGHT_GRADIENT:
                writer.layer(name, steps.weight_gradient, (), ())
    return writer.end()


def joined_pattern(forward: Pattern, backward: Pattern) -> Pattern:
    """Two items that run together: their kernels take turns, each item's share of its work done alike.

    A message of one then travels while the other computes (DeepSeek-AI 2024, section 3.2.1).
    """
    both = Pattern()
    begin = both.add(None, ())
    offsets: list[int] = []
    for pattern in (forward, backward):
        offset = len(both.steps) - 1
        offsets.append(offset)
        both.steps += pattern.steps[1:-1]
        last = len(pattern.steps) - 1
        for a, b in pattern.edges:
            if b != last:
                both.edges.append((offset + a if a else begin, offset + b))
        both.first += [offset + task for task in pattern.first]
        both.last += [offset + task for task in pattern.last]
        both.layers += pattern.layers
        both.loose += [offset + task for task in pattern.loose]
    order = sorted((*_progress(forward, offsets[0]), *_progress(backward, offsets[1])))
    both.edges += [(a, b) for (_, a), (_, b) in pairwise(order)]
    ends = [
        offset + a
        for pattern, offset in zip((forward, backward), offsets, strict=True)
        for a, b in pattern.edges
        if b == len(pattern.steps) - 1 and a
    ]
    both.add(None, [*ends, begin])
    return both


def _progress(pattern: Pattern, offset: int) -> list[tuple[float, int]]:
    """Kernels of an item, and the part of its work that is done when each is halfway."""
    kernels = [(n, step) for n, step in enumerate(pattern.steps) if step is not None and step.message is None]
    total = sum(step.seconds for _, step in kernels) or 1.0
    halfway, done = list[tuple[float, int]](), 0.0
    for number, step in kernels:
        halfway.append(((done + step.seconds / 2) / total, offset + number))
        done += step.seconds
    return halfway
