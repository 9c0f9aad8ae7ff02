"""Memory of a stage's chips while a step runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.cost.shapes import Array, largest, summed
from dovetail.evaluation.evaluate import Step, loss_bytes, state_kept
from dovetail.evaluation.facts import FrameworkFacts
from dovetail.placement.memory import ParameterBytes, layer_gradients, stage_memory, stage_parameters
from dovetail.placement.stages import ChunkContent
from dovetail.placement.work_order import WorkKind
from dovetail.plans.plan import Plan
from dovetail.simulation.layer_steps import StepKind
from dovetail.simulation.network import Floats
from dovetail.simulation.step_tasks import StepTasks
from dovetail.simulation.task_graph import Timeline

#: Parts of a stage's memory that come and go with its work.
PASSING = ("activations", "recompute workspace", "transient", "layer gradients", "loss", "optimizer step")


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
class _Held:
    """Bytes of a chunk: of a microbatch in flight, and while its loss or its gradients are computed."""

    saved: float
    loss: float
    gradient: float


def memory_over_time(
    tasks: StepTasks, timeline: Timeline, plan: Plan, step: Step, facts: FrameworkFacts
) -> tuple[MemoryOverTime, ...]:
    """What the chips of every stage hold.

    A chunk keeps its activations from the beginning of a microbatch's forward to the end of its last gradient. What a
    layer at work needs besides is there while a gradient runs, and what a loss holds in its forward.
    """
    order, losses = tasks.order, loss_bytes(step.profiles.layers, facts)
    sizes, zero_stage = state_kept(plan, facts)
    chunks = [_held(content, step, losses, sizes, zero_stage) for content in step.contents]
    begin, end = timeline.start_s[tasks.begin[:, 0]], timeline.end_s[tasks.end[:, 0]]
    updates = tasks.labels.kind == StepKind.OPTIMIZER
    places: list[int] = order.place.tolist()
    found: list[MemoryOverTime] = []
    for stage, content in enumerate(step.stages):
        parts = stage_memory(content, step.profiles.layers, step.kept, [0.0] * len(content), sizes, zero_stage, losses)
        changes = [(0.0, float(summed(part for name, part in parts.items() if name not in PASSING)))]
        for item in range(int(order.starts[stage]), int(order.starts[stage + 1])):
            held, at_s, until_s = chunks[places[item]], float(begin[item]), float(end[item])
            match WorkKind(int(order.kind[item])):
                case WorkKind.FORWARD:
                    changes += [(at_s, held.saved + held.loss), (until_s, -held.loss)]
                case WorkKind.BACKWARD:
                    changes += [(at_s, held.gradient), (until_s, -held.gradient - held.saved)]
                case WorkKind.INPUT_GRADIENT:
                    changes += [(at_s, held.gradient), (until_s, -held.gradient)]
                case WorkKind.WEIGHT_GRADIENT:
                    changes.append((until_s, -held.saved))
        used, home = stage_parameters(content, step.profiles.layers)
        copies = float((home if zero_stage >= 1 else used) * sizes.step_copy)
        (update,) = np.nonzero(updates & (tasks.labels.chip == stage * tasks.begin.shape[1]))
        changes += [(float(timeline.start_s[update[0]]), copies), (float(timeline.end_s[update[0]]), -copies)]
        found.append(_added_up(changes, 1 + facts.allocator_overhead, facts.context_bytes))
    return tuple(found)


def _held(
    content: ChunkContent, step: Step, losses: Mapping[str, Array], sizes: ParameterBytes, zero_stage: int
) -> _Held:
    profiles, names = step.profiles.layers, list(content)
    gradient = largest(step.kept[name].workspace_bytes for name in names)
    gradient = gradient + largest(profiles[name].transient_bytes for name in names if name not in losses)
    gradient = gradient + layer_gradients(names, profiles, sizes, zero_stage)
    return _Held(
        float(summed(number * step.kept[name].saved_bytes for name, number in content.items())),
        float(largest(losses[name] for name in names if name in losses)),
        float(gradient),
    )


def _added_up(changes: Sequence[tuple[float, float]], times: float, more: float) -> MemoryOverTime:
    """Changes in order of time, what is freed at a moment before what is taken."""
    ordered = sorted(changes)
    at_s = np.array([at for at, _ in ordered])
    held = np.cumsum([change for _, change in ordered])
    last = np.append(at_s[1:] > at_s[:-1], True)
    return MemoryOverTime(at_s[last], held[last] * times + more)
