"""Memory over time: its peak is what the model says, it is never negative, and a step ends with what it began with."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dovetail.cost.calibration import calibration
from dovetail.pipeline import PipelineSchedule, WorkKind, work_order
from dovetail.plans.plan import Plan
from dovetail.plans.plan_file import Task, task_of
from dovetail.profile import LayerProfile
from dovetail.simulation.memory_over_time import MemoryOverTime
from dovetail.simulation.simulate import Simulation, simulate
from dovetail.step.evaluate import Step, evaluate, step_of
from dovetail.step.facts import FrameworkFacts, plan_facts
from dovetail.step.memory import loss_bytes

sys.path.append(str(Path(__file__).parents[2] / "oracle"))
from random_step_plans import random_tasks  # type: ignore[import-not-found]

FEW, MANY = 20, 300
#: what is there from the first moment to the last, unless gradients come with the backward
ALWAYS = {"weights", "gradients", "optimizer"}


@dataclass
class Case:
    """A simulated plan and what the model says of it."""

    task: Task
    simulation: Simulation
    step: Step
    #: by stage
    model: list[dict[str, float]]
    #: the same in the optimizer's step, where all gradients are there
    update: list[dict[str, float]]

    @property
    def text(self) -> str:
        task = self.task
        return f"{task.job.model.name} on {task.cluster.name} by {task.framework.name}: {task.plan}"


def case_of(task: Task) -> Case:
    plan, job, cluster, framework = task.plan, task.job, task.cluster, task.framework
    facts = plan_facts(plan, framework, job)
    step = step_of(plan, job, cluster, facts, calibration(cluster.chip, job.precision).efficiencies)
    model = evaluate(plan, job, cluster, framework, energy=False)
    update = [dict(phases["optimizer"]) for phases in model.memory_by_phase]
    parts = [dict(parts) for parts in model.memory_by_stage]
    return Case(task, simulate(plan, job, cluster, framework), step, parts, update)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [case_of(task) for task in random_tasks(seed=11, count=FEW)]


def chunk_bytes(case: Case) -> list[tuple[float, float, float]]:
    """By place: what a microbatch leaves in a chunk, what its loss holds, and what a layer's gradients need besides."""
    task, layers = case.task, case.step.profiles.layers
    plan = task.plan
    facts = plan_facts(plan, task.framework, task.job)
    losses = loss_bytes(layers, facts)
    found = []
    for content in case.step.contents:
        kept = [case.step.recompute[name] for name in content]
        saved = sum(number * float(again.saved_bytes) for number, again in zip(content.values(), kept, strict=True))
        loss = max((float(losses[name]) for name in content if name in losses), default=0.0)
        gradients = [layer_gradients(layers[name], plan, facts) for name in content]
        working = max(float(again.working_bytes) + g for again, g in zip(kept, gradients, strict=True))
        found.append((saved, loss, working))
    return found


def layer_gradients(layer: LayerProfile, plan: Plan, facts: FrameworkFacts) -> float:
    """Weight gradients of the layer at work: one by one where they are sharded, else those of dense products."""
    size = layer.largest_weight if sharded(plan) else layer.dense_parameters
    return float(size) * facts.parameter_bytes.layer_gradient


def sharded(plan: Plan) -> bool:
    return plan.zero_stage == 3 or (plan.zero_stage == 2 and plan.pipeline_parallel == 1)


def fullest_moments(case: Case) -> list[float]:
    """By stage, the most that comes and goes with its items: these in order, no matter when each of them runs."""
    pipeline, chunks = case.step.pipeline, chunk_bytes(case)
    order, most = work_order(pipeline), []
    for stage in range(pipeline.num_stages):
        held = peak = beside = freed = 0.0
        for item in order.items(stage):
            saved, loss, gradients = chunks[int(pipeline.places()[stage, item.chunk])]
            if item.kind is WorkKind.FORWARD:
                held, beside = held + saved, beside + loss
            elif item.kind is not WorkKind.WEIGHT_GRADIENT:
                beside += gradients
            if item.kind in (WorkKind.BACKWARD, WorkKind.WEIGHT_GRADIENT):
                freed += saved
            if item.joined:
                # both at once, and nothing of them goes before both are done
                continue
            peak = max(peak, held + beside)
            held, beside, freed = held - freed, 0.0, 0.0
        assert held == pytest.approx(0.0, abs=1e-6 * peak)
        most.append(peak)
    return most


def always_there(parts: dict[str, float]) -> tuple[float, float]:
    """Of the model's bytes those of the whole step, and by how much tensors of layers are more in the allocator."""
    state = sum(parts.get(name, 0.0) for name in (*ALWAYS, "optimizer step", "gathered weights"))
    outside = parts["context"] + parts["workspaces"]
    of_layers = sum(parts.values()) - parts["allocator"] - outside - state
    overhead = 1 + (parts["allocator"] / of_layers if of_layers else 0.0)
    return sum(parts[name] for name in ALWAYS) + outside, overhead


def late_gradients(case: Case) -> bool:
    """Whether gradients come with the backward of their layer."""
    plan = case.task.plan
    return case.task.framework.gradients == "computed" and plan.num_microbatches == plan.pipeline_parallel == 1


def one_chunk_a_stage(case: Case) -> bool:
    return case.step.pipeline.schedule not in (PipelineSchedule.INTERLEAVED, PipelineSchedule.DUAL_PIPE)


def check_peaks(case: Case) -> None:
    peaks = [stage.peak_bytes for stage in case.simulation.memory]
    model = [sum(parts.values()) for parts in case.model]
    if one_chunk_a_stage(case):
        assert peaks == pytest.approx(model, rel=0.02), case.text
    # the model spreads microbatches evenly over the chunks of a stage, and takes the worst of all of them at a moment
    for peak, parts, moment in zip(peaks, case.model, fullest_moments(case), strict=True):
        always, overhead = always_there(parts)
        expected = always + moment * overhead
        if sharded(case.task.plan) or late_gradients(case):
            # weights are gathered for a while, and gradients may come with the backward
            continue
        assert peak >= expected * (1 - 1e-9), case.text
        if not parts["optimizer step"]:
            assert peak == pytest.approx(expected, rel=1e-9), case.text
    assert case.simulation.peak_memory_bytes == max(peaks)


def check_ends(case: Case) -> None:
    step_s = case.simulation.step_time_s
    for number, (stage, parts) in enumerate(zip(case.simulation.memory, case.update, strict=True)):
        assert (np.diff(stage.at_s) > 0).all()
        always, _ = always_there(parts)
        if late_gradients(case):
            assert stage.bytes[-1] >= always * (1 - 1e-9), case.text
            continue
        assert (stage.bytes >= always * (1 - 1e-9)).all(), case.text
        assert stage.bytes[-1] == pytest.approx(always, rel=1e-9), case.text
        assert before(stage, case.simulation, number) == pytest.approx(always, rel=1e-9), case.text
        assert stage.at_s[0] == 0.0
        assert stage.at_s[-1] <= step_s * (1 + 1e-12)


def before(memory: MemoryOverTime, simulation: Simulation, stage: int) -> float:
    """Bytes ahead of a stage's first item, where it does not begin at once; otherwise those at the end."""
    tasks = simulation.tasks
    first = simulation.timeline.start_s[tasks.begin[int(tasks.order.starts[stage]), 0]]
    return float(memory.bytes[0] if first > 0 else memory.bytes[-1])


def test_peaks_are_those_of_the_model(cases):
    for case in cases:
        check_peaks(case)


def test_memory_ends_where_it_began_and_is_never_less(cases):
    for case in cases:
        check_ends(case)


def test_without_sharding_gradients_of_one_micro_batch_come_with_its_backward():
    document = {
        "job": {"model": "llama-3.2-1b", "seq_len": 2048, "global_batch": 8},
        "cluster": {"chip": "h100-sxm", "chips": 8, "framework": "torchtitan"},
        "plan": {"data_parallel": 8, "zero_stage": 0, "micro_batch": 1},
    }
    case = case_of(task_of(document, "plan.yaml"))
    (memory,), (update,) = case.simulation.memory, case.update
    assert late_gradients(case)
    assert update["gradients"] == pytest.approx(4 * case.task.job.graph().parameters())
    # none at the loss, all of them at the end
    assert memory.bytes[-1] - memory.bytes[0] <= update["gradients"] * (1 + update["allocator"] / update["gradients"])
    assert memory.peak_bytes == pytest.approx(sum(case.model[0].values()), rel=0.02)
    check_ends(case)


@pytest.mark.slow
def test_memory_of_many_plans_is_that_of_the_model():
    for task in random_tasks(seed=2027, count=MANY):
        case = case_of(task)
        check_peaks(case)
        check_ends(case)
