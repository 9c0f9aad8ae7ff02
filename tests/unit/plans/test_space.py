"""What a narrowed space may hold, and what is counted where blocks choose by themselves."""

from __future__ import annotations

import pytest

import dovetail as dt
from dovetail import frameworks, hardware, models
from dovetail.errors import InputError
from dovetail.models import Job
from dovetail.plans.space import BY_BLOCK, Space
from dovetail.plans.stated_space import stated
from dovetail.search import plan

JOB = Job(models.load("qwen3-0.6b"), seq_len=2048, global_batch=8)
CLUSTER = hardware.cluster("h100-sxm", chips=4)
NARROW = {"tensor_parallel": (1, 2), "context_parallel": (1,), "pipeline_parallel": (1, 2), "micro_batch": (1, 2)}


@pytest.mark.parametrize(
    ("framework", "space", "sentence"),
    [
        ("maxtext", Space(recompute=("none",)), "space: recompute: none is in no plan of maxtext"),
        ("maxtext", Space(recompute=(BY_BLOCK,)), "space: recompute: "),
        ("megatron", Space(recompute=(BY_BLOCK,)), "space: recompute: "),
        ("torchtitan", Space(recompute=("full",), recompute_share=(0.5,)), "space: recompute_share: "),
        ("megatron", Space(recompute_share=(1.5,)), "space: recompute_share: "),
        ("deepspeed", Space(context_kind=("ring",)), "space: context_kind: "),
        ("megatron", Space(tensor_parallel=(0,)), "space: tensor_parallel: 0 is in no plan"),
        ("megatron", Space(micro_batch=(0, 1)), "space: micro_batch: 0 is in no plan"),
    ],
)
def test_values_the_framework_does_not_run_are_refused(framework, space, sentence):
    with pytest.raises(InputError) as refused:
        dt.plan(JOB, CLUSTER, framework, space=space)
    assert str(refused.value).startswith(sentence)


def test_what_blocks_choose_is_not_counted():
    free = plan(JOB, CLUSTER, "ideal", space=Space(**NARROW, pipeline_schedule=("1f1b",)))
    alike = plan(JOB, CLUSTER, "ideal", space=Space(**NARROW, pipeline_schedule=("1f1b",), recompute=("none",)))
    certificate = free.certificate
    assert certificate.counted == alike.certificate.counted
    assert certificate.pruned + certificate.infeasible + certificate.evaluated == certificate.counted
    assert certificate.open == 0
    assert min(certificate.pruned, certificate.infeasible, certificate.evaluated) >= 0
    assert free.step_time_s <= alike.step_time_s * (1 + 1e-9)


def test_words_say_where_blocks_cannot_choose():
    framework = frameworks.load("ideal")
    _, sentence = stated(Space().resolve(JOB, CLUSTER, framework), Space(), framework)
    assert "none or full elsewhere" in sentence
