"""A plan held against an answer: in the space or not, and why it is not the answer."""

from __future__ import annotations

import pytest

import dovetail as dt
from dovetail.explanation.covered import covered
from dovetail.plans.space import Space
from dovetail.plans.write import plan_part
from dovetail.search.plan import plan

JOB = dt.Job(dt.models.load("llama-3.2-1b"), 2048, 32)
SPACE = Space(context_parallel=(1,), recompute=("none",), zero_stage=(0, 1), tensor_parallel=(1, 2))


@pytest.fixture(scope="module")
def answer():
    return plan(JOB, dt.hardware.cluster("h100-sxm", 8), "megatron", space=SPACE)


def test_the_answer_covers_itself(answer):
    held = covered(answer, {"plan": plan_part(answer.fastest.plan)}, "mine.yaml")
    assert (held.covered, held.reason, held.loss) == (True, None, 0.0)
    assert held.why.endswith("no longer than the answer")


def test_a_slower_plan_is_told_where_it_loses(answer):
    held = covered(answer, {"plan": {"tensor_parallel": 2, "zero_stage": 1}}, "mine.yaml")
    assert held.covered
    assert held.loss is not None
    assert held.loss > 0
    assert "longer than the fastest (" in held.why


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tensor_parallel": 4, "sequence_parallel": True}, "tensor_parallel 4 is none of 1, 2"),
        ({"zero_stage": 3, "pipeline_parallel": 2}, "zero_stage is 3 with a pipeline"),
        ({"micro_batch": 3}, "micro_batch 3 × data_parallel 8 does not divide the global batch 32"),
        ({"recompute": "full"}, "recompute full is none of none"),
    ],
)
def test_a_plan_that_is_left_out_is_told_by_what(answer, fields, reason):
    held = covered(answer, {"plan": fields}, "mine.yaml")
    assert not held.covered
    assert str(held.reason).startswith(reason)
