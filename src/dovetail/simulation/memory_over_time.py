"""Memory of a stage's chips while a step runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dovetail.arrays import Floats
from dovetail.frameworks import ParameterBytes
from dovetail.pipeline.work_order import WorkKind
from dovetail.plans.plan import Plan
from dovetail.plans.zero_stage import effective_zero_stage
from dovetail.simulation.layer_steps import StepKind
from dovetail.simulation.step_tasks import StepTasks
from dovetail.simulation.task_graph import Timeline
from dovetail.step.evaluate import Step
from dovetail.step.facts import FrameworkFacts
from dovetail.step.formulas import allocator_bytes, optimizer_step_bytes
from dovetail.step.memory import MemoryTables

#: Parts of a stage's memory that come and go with its work.
WORKING = ("recompute workspace", "transient", "layer gradients")
PASSING = ("activations", *WORKING, "loss", "optimizer step")


@dataclass(frozen=True, slots=True)
class MemoryOverTime:
    """Bytes of one chip: from at_s[i] on, bytes[i]."""

    at_s: Floats
    bytes: Floats

    @property
    def peak_bytes(self) -> float:
        """At its fullest."""
        return float(self.bytes.max())


@dataclass(frozen=True, slots=True)
class _ChunkBytes:
    """Bytes of a chunk: of a micro-batch in flight, and while its loss or its gradients are computed."""

    saved: float
    loss: float
    gradient: float


def memory_over_time(
    tasks: StepTasks, timeline: Timeline, plan: Plan, step: Step, facts: FrameworkFacts
) -> tuple[MemoryOverTime, ...]:
    """Memory of every stage's chips.

    A chunk saves its activations from the beginning of a micro-batch's forward to the end of its last gradient. What a
    layer at work needs besides is there while a gradient runs, and what a loss needs in its forward.
    """
    order, tables, sizes = tasks.order, step.tables, facts.parameter_bytes
    zero_stage = effective_zero_stage(plan.zero_stage, plan.pipeline_parallel)
    chunks = _chunk_bytes(step, tables, sizes, zero_stage)
    begin, end = timeline.start_s[tasks.begin[:, 0]], timeline.end_s[tasks.end[:, 0]]
    updates = tasks.labels.kind == StepKind.OPTIMIZER
    places: list[int] = order.place.tolist()
    by_stage = tables.parts(step.stages, sizes, zero_stage, np.zeros(len(step.stages)))
    memory: list[MemoryOverTime] = []
    for stage, content in enumerate(step.stages):
        changes = [(0.0, sum(part for name, part in by_stage[stage].items() if name not in PASSING))]
        for item in range(int(order.starts[stage]), int(order.starts[stage + 1])):
            chunk, at_s, until_s = chunks[places[item]], float(begin[item]), float(end[item])
            match WorkKind(int(order.kind[item])):
                case WorkKind.FORWARD:
                    changes += [(at_s, chunk.saved + chunk.loss), (until_s, -chunk.loss)]
                case WorkKind.BACKWARD:
                    changes += [(at_s, chunk.gradient), (until_s, -chunk.gradient - chunk.saved)]
                case WorkKind.INPUT_GRADIENT:
                    changes += [(at_s, chunk.gradient), (until_s, -chunk.gradient)]
                case WorkKind.WEIGHT_GRADIENT:
                    changes.append((until_s, -chunk.saved))
        used, home = tables.parameters(content)[0].tolist()
        step_bytes = float(optimizer_step_bytes(used, home, zero_stage, sizes, 0.0))
        (update,) = np.nonzero(updates & (tasks.labels.chip == stage * tasks.begin.shape[1]))
        changes += [(float(timeline.start_s[update[0]]), step_bytes), (float(timeline.end_s[update[0]]), -step_bytes)]
        memory.append(_added_up(changes, facts))
    return tuple(memory)


def _chunk_bytes(step: Step, tables: MemoryTables, sizes: ParameterBytes, zero_stage: int) -> list[_ChunkBytes]:
    """Of every chunk, had a stage nothing else: without a loss, what it needs besides while a gradient runs."""
    alone = [[content] for content in step.contents]
    nothing = np.zeros(len(alone))
    losses = [float((tables.profiles.loss[0] * (counts > 0)).max()) for counts in tables.counts(*alone)]
    working = replace(tables, profiles=tables.profiles._replace(loss=0 * tables.profiles.loss))
    return [
        _ChunkBytes(saved, loss, sum(parts[name] for name in WORKING))
        for saved, loss, parts in zip(
            tables.saved_bytes(step.contents).tolist(),
            losses,
            working.parts(alone, sizes, zero_stage, nothing),
            strict=True,
        )
    ]


def _added_up(changes: Sequence[tuple[float, float]], facts: FrameworkFacts) -> MemoryOverTime:
    """Changes in order of time, what is freed before what is taken at the same time."""
    ordered = sorted(changes)
    at_s = np.array([at for at, _ in ordered])
    last = np.append(at_s[1:] > at_s[:-1], True)
    tensors = np.cumsum([change for _, change in ordered])[last]
    return MemoryOverTime(
        at_s[last], tensors + allocator_bytes(tensors, facts.allocator_overhead) + facts.context_bytes
    )
