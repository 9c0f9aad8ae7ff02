"""Plans keep a limit of memory: the framework's reserve, or what is asked for; a plan that is given may use it all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail import frameworks, hardware, models
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.space import BY_BLOCK, Space
from dovetail.search import TIE_MARGIN, plan
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import evaluate
from dovetail.step.layer_tables import Setting

JOB = Job(models.load("llama-3.2-1b"), seq_len=1024, global_batch=64)
MEGATRON, IDEAL, WAFER = (frameworks.load(name) for name in ("megatron", "ideal", "wafer"))
NARROW = Space(tensor_parallel=(1, 2), context_parallel=(1,), pipeline_parallel=(1, 2, 4), micro_batch=(1, 2, 4))
MENU = replace(NARROW, partition="even")
RESERVED = replace(IDEAL, memory_reserve=0.04)
QUESTIONS = {
    "menu": (MEGATRON, MENU),
    "partitions": (MEGATRON, NARROW),
    "by block": (RESERVED, replace(NARROW, recompute=(BY_BLOCK,), pipeline_schedule=("1f1b",), zero_stage=(1,))),
}


def of_memory(gigabytes: float) -> Cluster:
    """Eight H100 of so much memory."""
    cluster = hardware.cluster("h100-sxm", chips=8)
    return replace(cluster, chip=replace(cluster.chip, hbm_bytes=gigabytes * 1e9))


def test_a_reserve_where_memory_is_predicted_and_none_where_it_is_laid_out():
    chip = hardware.chip("h100-sxm")
    assert memory_limit(chip, MEGATRON) == pytest.approx(0.96 * 79.18 * 2**30)
    assert memory_limit(chip, IDEAL) == memory_limit(chip, WAFER) == chip.usable_bytes
    assert memory_limit(chip, MEGATRON, 5e9) == 5e9


def test_a_setting_has_one_limit_for_every_chip():
    setting = Setting.of(JOB, of_memory(40), MEGATRON)
    other = of_memory(20).chip
    assert setting.capacity_bytes == 0.96 * setting.cluster.chip.usable_bytes
    assert setting.capacity_of(other) == pytest.approx(setting.capacity_bytes / 2)
    assert replace(setting, memory_limit_bytes=1e9).capacity_of(other) == 1e9


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_keep_the_limit_and_fit_where_they_are_estimated(name):
    cluster, (framework, space) = of_memory(12), QUESTIONS[name]
    found = plan(JOB, cluster, framework, space=space)
    assert found.limit_bytes == memory_limit(cluster.chip, framework) == found.certificate.memory_limit_bytes
    assert "at most 10.7 GiB of a chip's memory" in found.certificate.space_text
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
    # memory of which the plan takes 98 %: more than a search would, and still it fits
    full = replace(cluster, chip=replace(cluster.chip, hbm_bytes=found.best.peak_bytes / 0.98))
    full = replace(full, chip=replace(full.chip, hbm_usable_share=1.0))
    result = evaluate(found.plan, JOB, full, MEGATRON)
    assert result.fits
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
