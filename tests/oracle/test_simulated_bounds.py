"""No simulated step takes less than the bounds that searches prune by: L0 ≤ L2 and L1⁻ ≤ L2."""

from __future__ import annotations

import pytest
from random_step_plans import random_tasks

from dovetail.bounds.hardware_bound import physical_bound
from dovetail.plans.plan_batch import PlanBatch
from dovetail.plans.plan_file import Task
from dovetail.simulation.simulate import simulate
from dovetail.step.evaluate import least_step_s

FEW, MANY = 8, 2000
ROUNDING = 1e-9


def violations(task: Task) -> list[str]:
    """The bounds that the simulated step of a plan falls below."""
    plan, job, cluster, framework = task.plan, task.job, task.cluster, task.framework
    seconds = simulate(plan, job, cluster, framework).step_time_s
    bounds = {
        "physical bound": float(physical_bound(job, cluster, PlanBatch.of([plan]))[0]),
        "least of the model": least_step_s(plan, job, cluster, framework),
    }
    assert min(bounds.values()) > 0
    return [
        f"{seconds} s simulated, {name} {bound} s: {job.model.name} × {job.seq_len} × {job.global_batch}, "
        f"{cluster.name}, {framework.name}, {plan}"
        for name, bound in bounds.items()
        if seconds < bound * (1 - ROUNDING)
    ]


def test_no_simulated_step_is_below_its_bounds():
    assert [found for task in random_tasks(seed=7, count=FEW) for found in violations(task)] == []


@pytest.mark.slow
def test_none_of_many_simulated_steps_is_below_its_bounds():
    assert [found for task in random_tasks(seed=2026, count=MANY) for found in violations(task)] == []
