"""The best plan by simulation: leading plans in the order of their bounds, against simulating every plan."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plan_brute_force import every_plan, keeps_risk
from typer.testing import CliRunner

import dovetail as dt
from dovetail import frameworks, hardware, models
from dovetail.cli import app
from dovetail.errors import InputError
from dovetail.search import Space
from dovetail.step.evaluate import evaluate

COMMON = {"partition": "even", "context_parallel": (1,), "recompute": ("none", "full"), "recompute_share": (1.0,)}
CASES: dict[str, dict[str, Any]] = {
    "pipelines": {
        "tensor_parallel": (1,),
        "pipeline_parallel": (2, 4),
        "virtual_stages": (1, 2),
        "micro_batch": (1,),
        "zero_stage": (0, 1),
        "zero_group": (4, 8),
        "axis_order": ("tp-cp-dp-pp",),
    },
    "shards": {
        "tensor_parallel": (2,),
        "pipeline_parallel": (1,),
        "micro_batch": (1,),
        "zero_stage": (1, 3),
        "zero_group": (8,),
        "axis_order": ("tp-cp-dp-pp",),
    },
}


@pytest.mark.parametrize("name", CASES)
def test_the_fastest_of_all_plans_is_found_and_nothing_is_below_the_bound(name):
    job = dt.Job(models.load("gpt3-1.3b"), seq_len=2048, global_batch=32)
    cluster, framework = hardware.cluster("dgx-a100-80gb", chips=16), frameworks.load("megatron")
    space = Space(**COMMON, **CASES[name])
    plans = every_plan(job, cluster, framework, space)
    estimates = ((p, evaluate(p, job, cluster, framework, energy=False)) for p in plans)
    fitting = [p for p, estimate in estimates if keeps_risk(estimate, cluster, framework)]
    assert len(fitting) > 5
    every = sorted(dt.simulate(plan, job, cluster, framework).step_time_s for plan in fitting)
    answer = dt.plan(job, cluster, framework, space=space, simulate_top=200)
    assert answer.simulated[0].step_time_s == pytest.approx(every[0], rel=1e-9)
    assert answer.certificate.status == "optimal"
    assert answer.certificate.time == "simulated"
    few = dt.plan(job, cluster, framework, space=space, simulate_top=2)
    bound = few.certificate.lower_bound_s
    assert bound is not None
    assert bound <= every[0] * (1 + 1e-9)
    assert len(few.simulated) <= 2
    assert all(replayed.least_s <= replayed.step_time_s * (1 + 1e-9) for replayed in answer.simulated)


def test_a_number_of_plans_is_checked():
    job = dt.Job(models.load("gpt3-1.3b"), seq_len=2048, global_batch=16)
    with pytest.raises(InputError, match=r"simulate_top: is -1; it should be from 1 to 1000"):
        dt.plan(job, hardware.cluster("dgx-a100-80gb", chips=8), simulate_top=-1)


ASKED = ["plan", "--model", "gpt3-1.3b", "--cluster", "dgx-a100-80gb", "--global-batch", "64", "--seq-len", "2048"]


def test_the_command_says_what_was_simulated():
    run = CliRunner().invoke(app, [*ASKED, "--chips", "8", "--simulate-top", "3"])
    assert run.exit_code == 0, run.output
    assert "simulated  " in run.output
    assert " simulated; " in run.output
    run = CliRunner().invoke(app, [*ASKED, "--chips", "8", "--simulate-top", "3", "--json"])
    fields = json.loads(run.output)
    assert fields["certificate"]["time"] == "simulated"
    assert fields["simulation"]["step_time_s"] == min(plan["step_time_s"] for plan in fields["simulation"]["plans"])
    assert fields["simulation"]["ratio"] == pytest.approx(
        fields["simulation"]["step_time_s"] / fields["simulation"]["model_step_time_s"]
    )


def test_several_numbers_of_chips_are_refused():
    run = CliRunner().invoke(app, [*ASKED, "--chips", "8,16", "--simulate-top", "3"])
    assert isinstance(run.exception, InputError)
    assert "--simulate-top" in str(run.exception)
