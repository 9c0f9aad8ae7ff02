"""State off the wafer: what dies still hold, what the store must, and what streams."""

from __future__ import annotations

import pytest

from dovetail import frameworks, hardware, models
from dovetail.mapping.store import Outside, streams, without
from dovetail.models import Job
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.step.evaluate import evaluate

WAFER = hardware.wafer("wse-3-like")
JOB = Job(models.load("gpt3-1.3b"), seq_len=1024, global_batch=168, precision="fp16")
PARAMETERS = JOB.graph().parameters()


def plan(**fields: object):
    return resolve_plan(PlanSpec.model_validate(fields), chips=84, global_batch=168, num_layers=24)


def memory(outside: Outside, **fields: object) -> dict[str, float]:
    found = evaluate(plan(**fields), JOB, WAFER.cluster(), without(frameworks.load("wafer"), outside))
    return dict(found.memory_by_stage[0])


def test_what_is_outside_is_not_on_the_dies():
    here, apart = (memory("nothing", zero_stage=1), memory("optimizer", zero_stage=1))
    assert here["optimizer"] > 0
    assert apart["optimizer"] == 0
    assert apart["weights"] == here["weights"] > 0
    nothing = memory("state", zero_stage=3)
    assert nothing["weights"] == nothing["gradients"] == nothing["optimizer"] == 0
    assert nothing["gathered weights"] > 0
    assert nothing["layer gradients"] > 0


def test_streams_are_counted_by_hand():
    framework, wanted = frameworks.load("wafer"), plan(zero_stage=3, micro_batch=1)
    assert wanted.num_microbatches == 2
    optimizer = streams(wanted, JOB, framework, WAFER, "optimizer")
    assert optimizer is not None
    assert optimizer.stored_bytes == 12 * PARAMETERS
    assert optimizer.sent_bytes == 24 * PARAMETERS
    assert optimizer.seconds == pytest.approx(24 * PARAMETERS / 150e9)
    state = streams(wanted, JOB, framework, WAFER, "state", wafers=2)
    assert state is not None
    assert state.stored_bytes == 16 * PARAMETERS
    # two copies on two wafers: each takes all weights, twice a microbatch, and gives all gradients
    assert state.sent_bytes == 2 * 6 * PARAMETERS
    nothing = streams(wanted, JOB, framework, WAFER, "nothing")
    assert nothing is not None
    assert nothing.seconds == 0


def test_a_store_that_is_too_small_is_none():
    assert streams(plan(), JOB, frameworks.load("wafer"), hardware.wafer("watos-like"), "optimizer") is None
