"""Tokens travel to experts as expert-parallel exchanges, whichever chips the experts lie on."""

from __future__ import annotations

import pytest

from dovetail.plans.plan_file import task_of
from dovetail.step.evaluate import evaluate


@pytest.mark.parametrize(
    "degrees",
    [
        {"context_parallel": 8, "expert_parallel": 8},
        {"tensor_parallel": 8, "expert_parallel": 8, "expert_tensor_parallel": 1, "sequence_parallel": True},
        {"expert_parallel": 8},
    ],
    ids=["context", "tensor", "data"],
)
def test_an_exchange_of_tokens_is_the_experts(degrees):
    task = task_of(
        {
            "job": {"model": "mixtral-8x7b", "seq_len": 4096, "global_batch": 64},
            "cluster": {"chip": "h100-sxm", "chips": 64},
            "plan": {"zero_stage": 1, "recompute": "full"} | degrees,
        },
        "test",
    )
    parts = evaluate(task.plan, task.job, task.cluster, task.framework, energy=False).breakdown
    assert parts["expert-parallel"] > 0
