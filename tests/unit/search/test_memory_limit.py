"""Plans keep a limit of memory: a risk, or bytes asked for; a plan that is given may use all that is usable."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dovetail import frameworks, hardware, models
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.space import BY_BLOCK, Space
from dovetail.search import TIE_MARGIN, plan
from dovetail.step.capacity import fit_probability, memory_limit, usable_for
from dovetail.step.evaluate import evaluate
from dovetail.step.layer_tables import Setting
from dovetail.units import bytes_text

JOB = Job(models.load("llama-3.2-1b"), seq_len=1024, global_batch=64)
MEGATRON, IDEAL, WAFER = (frameworks.load(name) for name in ("megatron", "ideal", "wafer"))
NARROW = Space(tensor_parallel=(1, 2), context_parallel=(1,), pipeline_parallel=(1, 2, 4), micro_batch=(1, 2, 4))
MENU = replace(NARROW, partition="even")
RISKY = replace(IDEAL, memory_error=replace(IDEAL.memory_error, value=0.01))
QUESTIONS = {
    "menu": (MEGATRON, MENU),
    "partitions": (MEGATRON, NARROW),
    "by block": (RISKY, replace(NARROW, recompute=(BY_BLOCK,), pipeline_schedule=("1f1b",), zero_stage=(1,))),
}


def of_memory(gigabytes: float) -> Cluster:
    """Eight H100 of so much memory."""
    cluster = hardware.cluster("h100-sxm", chips=8)
    return replace(cluster, chip=replace(cluster.chip, hbm_bytes=gigabytes * 1e9))


def quantile(framework: Framework, risk: float) -> float:
    """What is exceeded by a part `risk` of logistic errors, found by bisection."""
    low, high = 0.0, 10.0
    for _ in range(200):
        middle = (low + high) / 2
        beyond = 1 / (1 + math.exp(middle / framework.memory_error.value))
        low, high = (middle, high) if beyond > risk else (low, middle)
    return high


@pytest.mark.parametrize("risk", [0.001, 0.02, 0.3, 0.5])
def test_the_limit_is_where_the_error_of_the_risk_fills_the_chip(risk):
    chip, outside = hardware.chip("h100-sxm"), MEGATRON.outside_bytes
    predicted = (chip.usable_bytes - outside) / (1 + quantile(MEGATRON, risk)) + outside
    assert memory_limit(chip, MEGATRON, fit_risk=risk) == pytest.approx(predicted, rel=1e-9)
    assert usable_for(predicted, MEGATRON, risk) == pytest.approx(chip.usable_bytes, rel=1e-9)
    fits = fit_probability(predicted, outside, chip.usable_bytes, MEGATRON.memory_error.value)
    assert fits == pytest.approx(1 - risk)


def test_where_memory_is_laid_out_all_that_is_usable_is_for_plans():
    chip = hardware.chip("h100-sxm")
    assert memory_limit(chip, IDEAL) == memory_limit(chip, WAFER) == chip.usable_bytes
    assert memory_limit(chip, MEGATRON, 5e9) == 5e9
    assert [fit_probability(need, 0.0, 1e9, 0.0) for need in (1e9, 1.1e9)] == [1.0, 0.0]


def test_a_setting_has_one_limit_for_every_chip():
    setting = Setting.of(JOB, of_memory(40), MEGATRON)
    other = of_memory(20).chip
    assert setting.capacity_bytes == memory_limit(setting.cluster.chip, MEGATRON)
    assert setting.capacity_of(other) == memory_limit(other, MEGATRON)
    assert replace(setting, memory_limit_bytes=1e9).capacity_of(other) == 1e9


def test_a_smaller_risk_leaves_fewer_plans_and_answers_keep_it():
    least_s = 0.0
    for risk in (0.5, 0.1, 0.02, 0.001):
        answer = plan(JOB, of_memory(12), MEGATRON, space=MENU, fit_risk=risk)
        assert answer.best.fit_probability >= 1 - risk - 1e-9
        assert answer.step_time_s >= least_s
        least_s = answer.step_time_s
    usual = plan(JOB, of_memory(12), MEGATRON, space=MENU)
    assert usual.limit_bytes == plan(JOB, of_memory(12), MEGATRON, space=MENU, fit_risk=0.02).limit_bytes


@pytest.mark.parametrize(("risk", "limit"), [(0.0, None), (0.6, None), (0.02, 5e9)])
def test_a_risk_that_is_none_or_beside_a_limit_is_refused(risk, limit, refusal):
    said = refusal(plan, JOB, of_memory(12), MEGATRON, fit_risk=risk, memory_limit_bytes=limit)
    assert said.startswith("fit_risk: ")


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_keep_the_limit_and_fit_where_they_are_estimated(name):
    cluster, (framework, space) = of_memory(12), QUESTIONS[name]
    found = plan(JOB, cluster, framework, space=space)
    assert found.limit_bytes == memory_limit(cluster.chip, framework) == found.certificate.memory_limit_bytes
    assert f"at most {bytes_text(found.limit_bytes)} of a chip's memory" in found.certificate.space_text
    least_s = 0.0
    for limit in (None, 0.999 * found.best.peak_bytes, 0.8 * found.best.peak_bytes):
        answer = plan(JOB, cluster, framework, space=space, memory_limit_bytes=limit)
        assert answer.certificate.status == "optimal"
        assert answer.best.peak_bytes <= answer.limit_bytes
        assert evaluate(answer.plan, JOB, cluster, framework).fits
        assert answer.best.headroom_bytes == cluster.chip.usable_bytes - answer.best.peak_bytes > 0
        assert answer.step_time_s >= least_s
        least_s = answer.step_time_s


def test_a_given_plan_may_take_what_is_usable():
    cluster = of_memory(12)
    found = plan(JOB, cluster, MEGATRON, space=MENU)
    # memory of which the plan takes 98 %: riskier than a search would, and still it is likelier to fit than not
    full = replace(cluster, chip=replace(cluster.chip, hbm_bytes=found.best.peak_bytes / 0.98))
    full = replace(full, chip=replace(full.chip, hbm_usable_share=1.0))
    result = evaluate(found.plan, JOB, full, MEGATRON)
    assert result.fits
    assert 0.5 < result.fit_probability < 0.98
    assert result.peak_bytes > memory_limit(full.chip, MEGATRON)
    assert result.headroom_bytes == pytest.approx(0.02 * full.chip.hbm_bytes)
    other = plan(JOB, full, MEGATRON, space=MENU)
    assert other.best.peak_bytes <= memory_limit(full.chip, MEGATRON) < result.peak_bytes


def test_as_much_as_the_plan_takes_is_enough_and_nothing_is_not():
    cluster = of_memory(40)
    found = plan(JOB, cluster, MEGATRON, space=MENU)
    again = plan(JOB, cluster, MEGATRON, space=MENU, memory_limit_bytes=found.best.peak_bytes * (1 + 1e-9))
    assert again.step_time_s == pytest.approx(found.step_time_s)
    nothing = plan(JOB, cluster, MEGATRON, space=MENU, memory_limit_bytes=1e9)
    assert (nothing.evaluation, nothing.certificate.status) == (None, "infeasible")


def test_a_limit_goes_with_the_memory_of_other_chips():
    cluster = of_memory(40)
    found = plan(JOB, cluster, MEGATRON, space=MENU, memory_limit_bytes=30e9)
    assert found.limit_on(of_memory(80)) == pytest.approx(60e9)
    assert replace(found, memory_limit_bytes=None).limit_on(of_memory(80)) is None


@pytest.mark.parametrize("limit", [0.0, -1.0, 40e9])
def test_more_than_programs_get_is_refused(limit, refusal):
    said = refusal(plan, JOB, of_memory(40), MEGATRON, memory_limit_bytes=limit)
    assert said.startswith("memory_limit_bytes: is ")
    assert "at most what programs get of h100-sxm, 37" in said


def test_the_tie_margin_is_at_most_3_percent():
    assert 0 < TIE_MARGIN <= 0.03
