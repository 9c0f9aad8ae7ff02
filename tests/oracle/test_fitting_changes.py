"""The changes that make plans fit, against all single changes and pairs evaluated one by one."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from fitting_changes_brute_force import Measure, fastest_changes

from dovetail import frameworks, hardware
from dovetail.documents import validate
from dovetail.errors import InputError
from dovetail.explanation.changed_hardware import with_memory
from dovetail.explanation.fitting_changes import fitting_changes
from dovetail.models import Job, Model
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.plans.plan_file import Task
from dovetail.plans.runs import check_runs
from dovetail.plans.write import plan_part
from dovetail.step.evaluate import evaluate

DENSE = {"kind": "dense", "size": 4096}
MIXTURE = {"kind": "mixture", "experts": 4, "top_k": 2, "size": 512}

#: Framework, chip, chips, feed-forward and layers.
QUESTIONS = (
    ("megatron", "h100-sxm", 2, DENSE, 3),
    ("megatron", "a100-80gb", 4, MIXTURE, 1),
    ("megatron-2022", "a100-80gb", 4, DENSE, 2),
    ("torchtitan", "h100-sxm", 4, DENSE, 2),
    ("deepspeed", "a100-80gb", 8, DENSE, 2),
    ("fsdp", "h100-sxm", 8, DENSE, 2),
    ("maxtext", "tpu-v5p", 4, DENSE, 2),
    ("ideal", "h100-sxm", 2, DENSE, 3),
)
PLANS = 7


@cache
def job_of(kind: str, layers: int) -> Job:
    mixer = {"kind": "attention", "heads": 8, "kv_heads": 8, "head_dim": 128}
    document = {
        "name": "small", "hidden": 1024, "vocab": 32000,
        "blocks": {"block": {"mixer": mixer, "feed_forward": DENSE if kind == "dense" else MIXTURE}},
        "layers": [{"blocks": ["block"], "repeat": layers}],
    }  # fmt: skip
    return Job(validate(Model, document, "small"), seq_len=4096, global_batch=8)


def drawn_task(question: tuple[Any, ...], draw: random.Random) -> Task:
    """A random plan that runs, on chips with less memory than it needs."""
    name, chip, chips, feed_forward, layers = question
    job, framework = job_of(feed_forward["kind"], layers), frameworks.load(name)
    # a few of the policies and kinds do
    framework = replace(
        framework,
        recompute_modules=framework.recompute_modules[:1],
        recompute_policies=framework.recompute_policies[:2],
        context_parallel=framework.context_parallel[-1:],
    )
    cluster = hardware.cluster(chip, chips=chips)
    while True:
        fields = {
            "tensor_parallel": draw.choice((1, 1, 2)),
            "pipeline_parallel": draw.choice((1, 1, 2)),
            "micro_batch": draw.choice((1, 2)),
            "zero_stage": draw.choice((0, 0, 1, 2, 3)),
            "recompute": draw.choice(("none", "none", "selective", "full")),
            "sequence_parallel": draw.random() < 0.3,
            "pipeline_schedule": draw.choice((None, "gpipe")),
        }
        try:
            plan = resolve_plan(PlanSpec(**fields), chips=chips, global_batch=8, num_layers=layers)
            check_runs(plan, job, cluster, framework)
        except InputError:
            continue
        peak = evaluate(plan, job, cluster, framework, energy=False).peak_bytes
        factor = peak * draw.uniform(0.5, 0.99) / cluster.chip.usable_bytes
        return Task(job, with_memory(cluster, factor), framework, plan)


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_changes_are_the_fastest_of_all_that_make_a_plan_fit(number):
    draw, measure = random.Random(number), Measure()  # noqa: S311
    for _ in range(PLANS):
        task = drawn_task(QUESTIONS[number], draw)
        expected = fastest_changes(task, measure)
        found = fitting_changes(task)
        seconds = [each.evaluation.step_time_s for each in found]
        assert seconds == sorted(seconds)
        by_things = {each.kinds: each.evaluation.step_time_s for each in found}
        assert by_things == pytest.approx(expected, rel=1e-9)
        usable = task.cluster.chip.usable_bytes
        assert all(each.evaluation.fits and each.evaluation.peak_bytes <= usable for each in found)
        # as changes of a plan file that says every field
        part = plan_part(task.plan)
        for each in found:
            fields = {name: value for name, value in {**part, **each.changes}.items() if value is not None}
            sizes = {"chips": task.cluster.chips, "global_batch": task.job.global_batch}
            changed = resolve_plan(PlanSpec.model_validate(fields), num_layers=task.job.model.num_layers, **sizes)
            assert changed == each.evaluation.plan
