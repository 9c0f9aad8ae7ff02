"""Memory of a stage's chips while a step runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats
from dovetail.frameworks import ParameterBytes
from dovetail.frozen import frozen
from dovetail.pipeline.in_flight import peak_saved_by_stage
from dovetail.pipeline.work_order import WorkKind
from dovetail.plans.plan import Plan
from dovetail.plans.zero_stage import effective_zero_stage
from dovetail.simulation.layer_steps import StepKind
from dovetail.simulation.step_tasks import StepTasks
from dovetail.simulation.task_graph import Timeline
from dovetail.step.evaluate import Step
from dovetail.step.facts import FrameworkFacts
from dovetail.step.formulas import allocator_bytes
from dovetail.step.loans import moved_bytes
from dovetail.step.memory import MemoryTables, one_run
from dovetail.step.memory_kernels import OneRun
from dovetail.step.store import on_die_activations

#: Parts of a stage's memory that come and go with its work, in its backward and in its loss.
WORKING = ("layer at work", "layer gradients", "gathered weights")
AT_LOSS = ("loss", "gathered weights")
#: Moments of a backward when all activations are there, and when most are gone.
AT_WORK = ("backward of the head", "backward of the last layer")
AT_THE_END = ("backward of the first layer", "backward of the embedding")
#: The part of a backward after which its last layers are at work.
LATE = 0.99


@frozen
class MemoryOverTime:
    """Bytes of one chip: from at_s[i] on, bytes[i]."""

    at_s: Floats
    bytes: Floats

    @property
    def peak_bytes(self) -> float:
        """At its fullest."""
        return float(self.bytes.max())


@frozen
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
    chunks = _chunk_bytes(step, tables, sizes, zero_stage, one_run(plan))
    kept, resident = _off_the_dies(plan, step)
    begin, end = timeline.start_s[tasks.begin[:, 0]], timeline.end_s[tasks.end[:, 0]]
    updates = tasks.labels.kind == StepKind.OPTIMIZER
    places: list[int] = order.place.tolist()
    run = one_run(plan)
    late = sizes.late_gradients and run.one_microbatch
    by_stage = tables.by_phase(step.stages, sizes, zero_stage, np.zeros(len(step.stages)), run)
    memory: list[MemoryOverTime] = []
    for stage in range(len(step.stages)):
        phases = by_stage[stage]
        state = phases["optimizer"]
        gradients = state["gradients"]
        always = state["weights"] + state["optimizer"] + (0.0 if late else gradients)
        changes = [(0.0, always + float(resident[stage]))]
        for item in range(int(order.starts[stage]), int(order.starts[stage + 1])):
            chunk, at_s, until_s = chunks[places[item]], float(begin[item]), float(end[item])
            chunk = replace(chunk, saved=chunk.saved * float(kept[stage]))
            match WorkKind(int(order.kind[item])):
                case WorkKind.FORWARD:
                    changes += [(at_s, chunk.saved + chunk.loss), (until_s, -chunk.loss)]
                case WorkKind.BACKWARD:
                    changes += [(at_s, chunk.gradient), (until_s, -chunk.gradient - chunk.saved)]
                    if late:
                        # without sharding the end of the backward adds nothing to its gradients
                        ends = [sum(phases[when].values()) for when in AT_THE_END if when in phases]
                        last = max(ends, default=always + gradients) - always
                        last_s = at_s + LATE * (until_s - at_s)
                        changes += [(last_s, last - chunk.gradient - chunk.saved)]
                        changes += [(until_s, gradients - last + chunk.gradient + chunk.saved)]
                case WorkKind.INPUT_GRADIENT:
                    changes += [(at_s, chunk.gradient), (until_s, -chunk.gradient)]
                case WorkKind.WEIGHT_GRADIENT:
                    changes.append((until_s, -chunk.saved))
        saved = kept[stage] * np.array([chunk.saved for chunk in chunks])
        changes += _skipped_changes(tasks, begin, stage, saved)
        step_bytes = state["optimizer step"]
        (update,) = np.nonzero(updates & (tasks.labels.chip == stage * tasks.begin.shape[1]))
        changes += [(float(timeline.start_s[update[0]]), step_bytes), (float(timeline.end_s[update[0]]), -step_bytes)]
        memory.append(_added_up(changes, facts))
    return tuple(memory)


def _skipped_changes(tasks: StepTasks, begin_s: Floats, stage: int, saved: Floats) -> list[tuple[float, float]]:
    """What a stage saves more, or less, after periods that are skipped: GPipe's forwards and backwards come apart.

    As much by each; so memory is fullest in the first period or the last, which are both there.
    """
    order, items = tasks.order, slice(int(tasks.order.starts[stage]), int(tasks.order.starts[stage + 1]))
    runs, place = tasks.runs[items], order.place[items]
    frees = np.isin(order.kind[items], (WorkKind.BACKWARD, WorkKind.WEIGHT_GRADIENT))
    sign = np.where(order.kind[items] == WorkKind.FORWARD, 1, np.where(frees, -1, 0))
    changes: list[tuple[float, float]] = []
    for last in np.nonzero((runs[:-1] > 1) & (runs[1:] == 1))[0].tolist():
        first = last - int(np.argmax(np.append(runs[last::-1], 1) == 1)) + 1
        more = np.zeros(len(saved))
        np.add.at(more, place[first : last + 1], (sign * (runs - 1))[first : last + 1])
        if more.any():
            changes.append((float(begin_s[items][last + 1]), float(more @ saved)))
    return changes


def _off_the_dies(plan: Plan, step: Step) -> tuple[Floats, Floats]:
    """By stage: the part of its activations that its own dies hold, and what they hold all the time besides."""
    kept, resident = np.ones(len(step.stages)), np.zeros(len(step.stages))
    if plan.wafer is None:
        return kept, resident
    if "activations" in plan.wafer.store:
        return 0 * kept, on_die_activations(step.tables.layers.saved[0], step.tables.counts(*step.stages))
    held = peak_saved_by_stage(step.pipeline, step.tables.saved_bytes(step.contents))
    for loan, moved in zip(plan.wafer.loans, moved_bytes(plan, held), strict=True):
        kept[loan.stage] -= moved / max(float(held[loan.stage]), 1.0)
        resident[loan.lender] += moved
    return kept, resident


def _chunk_bytes(
    step: Step, tables: MemoryTables, sizes: ParameterBytes, zero_stage: int, run: OneRun
) -> list[_ChunkBytes]:
    """Of every chunk, had a stage nothing else."""
    alone = [[content] for content in step.contents]
    nothing = np.zeros(len(alone))
    saved: list[float] = tables.saved_bytes(step.contents).tolist()
    return [
        _ChunkBytes(
            bytes_of,
            sum(phases["loss"][name] for name in AT_LOSS) if "loss" in phases else 0.0,
            max(sum(phases[when][name] for name in WORKING) for when in AT_WORK if when in phases),
        )
        for bytes_of, phases in zip(saved, tables.by_phase(alone, sizes, zero_stage, nothing, run), strict=True)
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
