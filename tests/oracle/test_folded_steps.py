"""One chip for every stage stands for all of its chips, and the same plan is simulated alike every time."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest
from random_step_plans import random_tasks

from dovetail import frameworks, hardware, models
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.plans.plan_file import Task
from dovetail.simulation.chips import Chips
from dovetail.simulation.simulate import Simulation, simulate

CHIPS = 64
#: model, framework, sequences a step and their tokens, plan: all on 8 nodes of 8
CASES = {
    "tensor and sequence": (
        "llama-3.1-8b", "megatron", 64, 4096,
        {"tensor_parallel": 4, "pipeline_parallel": 4, "zero_stage": 1, "sequence_parallel": True},
    ),
    "interleaved": (
        "llama-3.1-8b", "megatron", 64, 4096,
        {
            "tensor_parallel": 2, "pipeline_parallel": 4, "virtual_stages": 2, "zero_stage": 1,
            "sequence_parallel": True,
        },
    ),
    "sharded weights": ("llama-3.1-8b", "fsdp", 128, 4096, {"zero_stage": 3}),
    "experts folded over tensor": (
        "mixtral-8x7b", "megatron", 64, 4096,
        {
            "tensor_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 8, "expert_tensor_parallel": 1,
            "zero_stage": 1, "sequence_parallel": True,
        },
    ),
    "weight gradients later": (
        "gpt3-13b", "ideal", 64, 2048,
        {"tensor_parallel": 2, "pipeline_parallel": 4, "pipeline_schedule": "zb_h1", "zero_stage": 1},
    ),
    "both directions": (
        "gpt3-13b", "ideal", 64, 2048,
        {"tensor_parallel": 2, "pipeline_parallel": 4, "pipeline_schedule": "dualpipe", "zero_stage": 1},
    ),
    "contexts": (
        "llama-3.1-8b", "megatron", 32, 16384,
        {
            "tensor_parallel": 2, "context_parallel": 4, "pipeline_parallel": 2, "zero_stage": 1,
            "sequence_parallel": True,
        },
    ),
    "stages inside": (
        "gpt3-13b", "megatron", 64, 2048,
        {"tensor_parallel": 2, "pipeline_parallel": 4, "axis_order": "tp-cp-pp-dp", "zero_stage": 0},
    ),
}  # fmt: skip


def task_of(case: str) -> Task:
    model, framework, batch, seq_len, spec = CASES[case]
    job = Job(models.load(model), seq_len=seq_len, global_batch=batch)
    layers = job.model.num_layers
    plan = resolve_plan(PlanSpec(**spec), chips=CHIPS, global_batch=batch, num_layers=layers)
    return Task(job, hardware.cluster("hgx-h100", chips=CHIPS), frameworks.load(framework), plan)


def simulated(task: Task, *, exact: bool = False) -> Simulation:
    return simulate(task.plan, task.job, task.cluster, task.framework, exact=exact)


def check_folded(task: Task) -> None:
    folded, exact = simulated(task), simulated(task, exact=True)
    chips = task.plan.chips // task.plan.pipeline_parallel
    assert folded.tasks.begin.shape[1] == 1
    assert exact.tasks.begin.shape[1] == chips
    assert folded.step_time_s == pytest.approx(exact.step_time_s, rel=1e-6), task
    # every item of the one chip when any of the others has it
    for at, tasks in ((0, "begin"), (1, "end")):
        times = [(s.timeline.start_s, s.timeline.end_s)[at][getattr(s.tasks, tasks)] for s in (folded, exact)]
        np.testing.assert_allclose(*np.broadcast_arrays(*times), rtol=1e-6, atol=1e-6 * exact.step_time_s)
    for one, every in zip(folded.memory, exact.memory, strict=True):
        assert one.peak_bytes == pytest.approx(every.peak_bytes, rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_folded_step_is_the_exact_one(case):
    check_folded(task_of(case))


def folds(task: Task) -> bool:
    """Whether all chips of a stage lie alike to those of its neighbours."""
    arrangement = arrange(task.plan, task.job.graph(), task.cluster)
    return Chips(task.plan, task.cluster, (), arrangement, exact=False).folds()


@pytest.mark.slow
def test_folded_steps_of_random_plans_are_the_exact_ones():
    tasks = (task for task in random_tasks(seed=64, count=2000) if task.plan.chips == CHIPS and folds(task))
    chosen = list(islice(tasks, 40))
    assert len(chosen) == 40
    for task in chosen:
        check_folded(task)


# -- the same every time


def digest_of(case: str) -> str:
    """Of all arrays of a simulated step."""
    found = simulated(task_of(case))
    graph, timeline = found.tasks.graph, found.timeline
    arrays = [graph.seconds, graph.bytes, graph.route, graph.before, graph.after, timeline.start_s, timeline.end_s]
    labels = found.tasks.labels
    arrays += [labels.chip, labels.kind, labels.stream, labels.name, labels.microbatch, labels.place]
    arrays += [array for stage in found.memory for array in (stage.at_s, stage.bytes)]
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(np.ascontiguousarray(array).tobytes())
    whole.update(repr((labels.names, labels.streams, found.events)).encode())
    return whole.hexdigest()


@pytest.mark.parametrize("case", ["interleaved", "sharded weights", "both directions"])
def test_the_same_plan_twice_gives_the_same_arrays(case):
    assert digest_of(case) == digest_of(case)


def test_another_process_gives_the_same_arrays():
    script = (
        "import sys; from test_folded_steps import digest_of; sys.stdout.write(digest_of('experts folded over tensor'))"
    )
    paths = [os.path.dirname(os.path.abspath(__file__)), *filter(None, [os.environ.get("PYTHONPATH")])]
    # sets and dictionaries of texts come in another order
    found = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found == [digest_of("experts folded over tensor")] * 2
