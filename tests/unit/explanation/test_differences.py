"""What differs between two plans: every single change is what evaluating the changed plan says, in order of gain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dovetail.explanation.differences import compare
from dovetail.plans.plan_file import task_of
from dovetail.step.evaluate import evaluate
from dovetail.step.ties import RATIO_P90

JOB = {"model": "llama-3.1-8b", "seq_len": 8192, "global_batch": 256}
CLUSTER = {"chip": "h100-sxm", "chips": 64, "framework": "megatron"}
PLAN = {"tensor_parallel": 8, "pipeline_parallel": 2, "sequence_parallel": True, "zero_stage": 1, "recompute": "full"}


def task(plan: dict[str, Any], **job: Any):
    return task_of({"job": JOB | job, "cluster": CLUSTER, "plan": plan}, "plan.yaml")


def seconds(plan: dict[str, Any]) -> float:
    found = task(plan)
    return evaluate(found.plan, found.job, found.cluster, found.framework).step_time_s


def test_equal_plans_do_not_differ():
    comparison = compare(task(PLAN), task(PLAN))
    assert comparison.differences == ()
    assert comparison.gain == 0


def test_every_single_change_is_an_evaluation():
    changes = {"recompute": "none", "zero_stage": 0, "micro_batch": 2}
    comparison = compare(task(PLAN), task(PLAN | changes))
    found = {name: each for each in comparison.differences for name in each.fields}
    for name, value in changes.items():
        changed = seconds(PLAN | {name: value})
        assert found[name].step_time_s == pytest.approx(changed, rel=1e-12)
        assert found[name].gain == pytest.approx(1 - changed / seconds(PLAN), rel=1e-9)
    assert comparison.other.step_time_s == pytest.approx(seconds(PLAN | changes), rel=1e-12)
    gains = [each.gain or 0.0 for each in comparison.differences if each.fits]
    assert gains == sorted(gains, reverse=True)


def test_a_gain_within_the_error_of_ratios_is_not_distinguishable():
    comparison = compare(task(PLAN), task(PLAN | {"tensor_parallel": 2, "zero_stage": 0, "micro_batch": 2}))
    ratio = comparison.other.step_time_s / comparison.ours.step_time_s
    low, high = ratio / (1 + RATIO_P90), ratio / (1 - RATIO_P90)
    assert (comparison.ratio.low, comparison.ratio.high) == pytest.approx((low, high))
    assert comparison.ratio.distinguishable == (low > 1 or high < 1)
    told = {each.distinguishable for each in comparison.differences if each.gain is not None}
    assert told == {True, False}, "small changes and a large one"
    for each in comparison.differences:
        if each.gain is not None:
            assert each.distinguishable == (abs(each.gain) > RATIO_P90)


def test_equal_plans_are_not_distinguishable():
    assert not compare(task(PLAN), task(PLAN)).ratio.distinguishable


def test_what_follows_from_a_change_is_no_change_of_its_own():
    other = PLAN | {"tensor_parallel": 1, "sequence_parallel": False}
    comparison = compare(task(PLAN), task(other))
    assert [each.fields for each in comparison.differences] == [("tensor_parallel",)]
    assert comparison.differences[0].step_time_s == pytest.approx(comparison.other.step_time_s, rel=1e-12)


def test_chunks_bring_their_schedule_and_their_cut():
    cut = (2, *[3] * 10, 0)
    other = PLAN | {"virtual_stages": 6, "layers_per_stage": cut}
    comparison = compare(task(PLAN), task(other))
    assert [each.fields for each in comparison.differences] == [("virtual_stages", "pipeline_schedule")]
    assert comparison.differences[0].step_time_s == pytest.approx(comparison.other.step_time_s, rel=1e-12)


def test_a_change_that_cannot_be_made_alone_says_why():
    ours = {"pipeline_parallel": 2, "virtual_stages": 4, "micro_batch": 1, "zero_stage": 1}
    other = {"pipeline_parallel": 16, "micro_batch": 1, "zero_stage": 1}
    comparison = compare(task(ours), task(other))
    stuck = [each for each in comparison.differences if each.step_time_s is None]
    assert stuck, "64 chunks are more than 32 blocks"
    assert "pipeline_parallel" in stuck[0].fields
    assert stuck[0].obstacle
    assert comparison.differences[-1] == stuck[0]


def test_plans_for_different_things_are_refused(refusal):
    assert "job" in refusal(compare, task(PLAN), task(PLAN, global_batch=512))
    elsewhere = task(PLAN)
    larger = replace(
        elsewhere, cluster=replace(elsewhere.cluster, chip=replace(elsewhere.cluster.chip, hbm_bytes=1e12))
    )
    assert "cluster" in refusal(compare, task(PLAN), larger)
