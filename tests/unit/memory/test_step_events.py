"""Allocations of a step, tensor by tensor: they add up to what the model says, and an allocator can replay them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dovetail import frameworks
from dovetail.cost.calibration import calibration
from dovetail.memory.allocator import Event, replay
from dovetail.memory.reserved import reserved_memory
from dovetail.memory.step_events import stage_events
from dovetail.plans.plan_file import Task, task_of
from dovetail.step.evaluate import EvaluatedStep, evaluate, evaluated_step, step_of
from dovetail.step.evaluation import Evaluation
from dovetail.step.facts import plan_facts

sys.path.append(str(Path(__file__).parents[2] / "oracle"))
from random_step_plans import random_tasks  # type: ignore[import-not-found]

from timing import within

LLAMA = {
    "job": {"model": "llama-3.1-8b", "seq_len": 8192, "global_batch": 8},
    "cluster": {"chip": "h100-sxm", "chips": 8, "framework": "torchtitan"},
    "plan": {"zero_stage": 3, "micro_batch": 1},
}


def events_of(task: Task, stage: int) -> list[Event]:
    facts = plan_facts(task.plan, task.framework, task.job)
    known = calibration(task.cluster.chip, task.job.precision).efficiencies
    return stage_events(task.plan, step_of(task.plan, task.job, task.cluster, facts, known), facts, stage)


def evaluated(task: Task) -> Evaluation:
    return evaluate(task.plan, task.job, task.cluster, task.framework, energy=False)


def evaluated_task(task: Task) -> EvaluatedStep:
    return evaluated_step(task.plan, task.job, task.cluster, task.framework)


def tensors(result: Evaluation) -> float:
    parts = result.memory_by_stage[result.fullest_stage]
    return sum(size for name, size in parts.items() if name not in ("allocator", "workspaces", "context"))


def peak(events: Sequence[Event]) -> int:
    alive: dict[int, int] = {}
    most = now = 0
    for event in events:
        now += event.bytes or -alive.pop(event.key)
        if event.bytes:
            alive[event.key] = event.bytes
        most = max(most, now)
    return most


def test_allocations_peak_where_the_model_says():
    """Random plans of frameworks on PyTorch: nearly all within 2 %, none far off."""
    tasks = [task for task in random_tasks(seed=5, count=70) if task.framework.allocator != "planned"]
    ratios = []
    for task in tasks:
        result = evaluated(task)
        ratios.append(peak(events_of(task, result.fullest_stage)) / tensors(result) - 1)
    assert len(ratios) >= 40
    assert sum(abs(ratio) <= 0.02 for ratio in ratios) >= 0.93 * len(ratios)
    assert max(map(abs, ratios)) < 0.05


def test_everything_but_the_state_is_freed():
    # under FSDP the master weights count with the optimizer's state
    task = task_of(LLAMA, "case.yaml")
    alive: dict[int, Event] = {}
    for event in events_of(task, 0):
        if event.bytes:
            alive[event.key] = event
        else:
            del alive[event.key]
    assert {event.operator for event in alive.values()} == {"optimizer"}


def test_a_step_of_8b_is_replayed_in_two_seconds():
    task = task_of(LLAMA, "case.yaml")
    with within(2):
        found = replay(events_of(task, 0))
    assert found.peak_reserved_bytes >= found.peak_allocated_bytes


@pytest.mark.parametrize("framework", frameworks.names())
def test_frameworks_without_the_allocator_reserve_nothing(framework):
    task = replace(task_of(LLAMA, "case.yaml"), framework=frameworks.load(framework))
    found = reserved_memory(evaluated_task(task), task.plan, task.framework)
    assert (found is None) is (framework in ("ideal", "maxtext", "wafer"))


def test_the_operator_at_which_memory_runs_out_is_named():
    task = task_of({**LLAMA, "job": {**LLAMA["job"], "seq_len": 32768}}, "case.yaml")
    found = reserved_memory(evaluated_task(task), task.plan, task.framework)
    assert found is not None
    assert found.phase == "forward"
    assert found.operator is not None
    assert found.operator.startswith(("mlp", "query", "attention", "feed_forward", "mixer", "key", "value", "output"))
