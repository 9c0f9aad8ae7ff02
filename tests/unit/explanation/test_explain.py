"""An explanation adds up, its neighbours lose, more hardware never costs, and its ranges hold."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dovetail import hardware, models
from dovetail.explanation.changed_hardware import CAPACITY, FLOPS, knobs, with_a_node, with_chips, with_memory
from dovetail.explanation.explain import explain
from dovetail.explanation.neighbourhood import Neighbourhood
from dovetail.models import Job
from dovetail.search import Space, plan
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import evaluate

#: Few values of the fields that cost most time.
SPACE = Space(
    tensor_parallel=(1, 2, 4),
    context_parallel=(1, 2),
    pipeline_parallel=(1, 2, 4),
    virtual_stages=(1, 2, 3, 4),
    recompute=("none", "selective", "full"),
    recompute_share=(0.5, 1.0),
    micro_batch=(1, 2),
)


@pytest.fixture(scope="module")
def answer():
    job = Job(models.load("llama-3.1-8b"), 8192, 32)
    return plan(job, hardware.cluster("h100-sxm", 16), "megatron", space=replace(SPACE, pipeline_parallel=(2, 4)))


@pytest.fixture(scope="module")
def found(answer):
    return explain(answer, time_limit_s=math.inf)


def test_parts_add_up(answer, found):
    assert sum(found.seconds.values()) == pytest.approx(answer.step_time_s, rel=1e-12)
    assert sum(found.bytes.parts.values()) == pytest.approx(answer.best.peak_bytes, rel=1e-12)
    held = answer.best.memory_by_stage[found.bytes.stage - 1]
    assert sum(held.values()) == answer.best.peak_bytes


def test_neighbours_have_the_value_they_stand_for_and_lose(answer, found):
    assert answer.certificate.status == "optimal"
    fields = {other.field for other in found.neighbours}
    assert {"tensor_parallel", "pipeline_parallel", "micro_batch", "zero_stage", "recompute"} <= fields
    assert {"virtual_stages", "pipeline_schedule", "axis_order"} <= fields
    some = [other for other in found.neighbours if other.plan is not None]
    assert len(some) > 5
    for other in some:
        assert other.loss >= -1e-9
        own = getattr(other.plan, other.field)
        assert own != getattr(answer.plan, other.field)
        if other.field != "recompute":
            assert str(own).lower() == other.value
        again = evaluate(other.plan, answer.job, answer.cluster, answer.framework, energy=False)
        assert again.fits
        assert again.step_time_s == pytest.approx(other.step_time_s, rel=1e-9)


def test_neighbours_are_in_the_space_of_the_answer(answer, found):
    for other in (other for other in found.neighbours if other.plan is not None):
        assert other.plan.tensor_parallel in answer.space.tensor_parallel
        assert other.plan.pipeline_parallel in answer.space.pipeline_parallel
    around = Neighbourhood(answer).space
    assert answer.plan.tensor_parallel in around.tensor_parallel
    assert set(around.tensor_parallel or ()) <= set(answer.space.tensor_parallel)


def test_more_hardware_never_costs(answer, found):
    names = [value.what for value in found.marginal]
    assert names == [*(knob.name for knob in knobs(answer.cluster)), "nodes"]
    for value in found.marginal[:-1]:
        assert value.same_plan_s <= answer.step_time_s * (1 + 1e-9)
        assert value.step_time_s <= value.same_plan_s * (1 + 1e-9)
        assert value.gain >= value.same_plan_gain - 1e-9
    gains = {value.what: value.same_plan_gain for value in found.marginal}
    assert gains[CAPACITY] == 0
    assert 0.03 < gains[FLOPS] < 0.1
    assert all(gain > 0 for what, gain in gains.items() if what not in (CAPACITY, "nodes"))


def test_the_plan_is_best_in_its_range_and_the_rival_beyond_it(answer, found):
    """Every rival that is named beats the plan a little beyond the range, and not within it."""
    named = 0
    turned = {knob.name: knob.turned for knob in knobs(answer.cluster)}
    for kept in found.stays_best:
        assert 0.5 <= kept.low <= 1 <= kept.high <= 2
        for end, rival, beyond in ((kept.low, kept.low_rival, 0.99), (kept.high, kept.high_rival, 1.01)):
            if rival is None or kept.what == CAPACITY:
                continue
            named += 1
            for factor, wins in ((end, False), (end * beyond, True)):
                changed = turned[kept.what](answer.cluster, factor)
                own, other = (
                    evaluate(p, answer.job, changed, answer.framework, energy=False).step_time_s
                    for p in (answer.plan, rival)
                )
                assert (other < own * (1 - 1e-9)) == wins
    assert named


def test_a_plan_stays_while_it_fits(answer, found):
    (kept,) = (kept for kept in found.stays_best if kept.what == CAPACITY)
    assert kept.low_unfit
    for factor, fits in ((kept.low * 1.0001, True), (kept.low * 0.9999, False)):
        changed = with_memory(answer.cluster, factor)
        peak = evaluate(answer.plan, answer.job, changed, answer.framework, energy=False).peak_bytes
        assert (peak <= memory_limit(changed.chip, answer.framework)) is fits


def test_binding_names_what_gains_most(found):
    most = max(found.marginal[:-1], key=lambda value: value.gain)
    assert found.bottleneck.startswith(f"{most.what}: 10 % more gains {100 * most.gain:.1f} %")
    memory = next(value for value in found.marginal if value.what == CAPACITY)
    assert ("memory is a bottleneck" in found.bottleneck) == (memory.gain >= 0.001)


def test_flops_of_a_chip_with_less_power_grow_from_what_it_sustains():
    """The share that its power leaves it is told by peaks equal to another chip's: it must not get lost."""
    cluster = hardware.cluster("h100-96gb-hbm2e-500w", 8)
    job = Job(models.load("llama-3.1-8b"), 4096, 16)
    best = plan(job, cluster, "megatron", space=replace(SPACE, tensor_parallel=(2,), pipeline_parallel=(1,)))
    (knob,) = (knob for knob in knobs(cluster) if knob.name == FLOPS)
    seconds = [
        evaluate(best.plan, job, knob.turned(cluster, factor), best.framework, energy=False).step_time_s
        for factor in (1 - 1e-9, 1.0, 1 + 1e-9, 1.1)
    ]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-6)
    assert seconds[2] == pytest.approx(seconds[1], rel=1e-6)
    assert 1.01 < seconds[1] / seconds[3] < 1.1


def test_nodes_are_added_to_full_groups():
    cluster = hardware.cluster("h100-sxm", 256)
    larger, alone = with_a_node(cluster), with_a_node(hardware.cluster("h100-sxm", 8))
    assert larger is not None
    assert larger.chips == 264
    assert alone is not None
    assert [tier.size for tier in alone.tiers] == [8, 16]
    racks = replace(
        cluster, tiers=(cluster.tiers[0], replace(cluster.tiers[1], name="rack", size=64), cluster.tiers[1])
    )
    with_rack = with_a_node(racks)
    assert with_rack is not None
    assert [tier.size for tier in with_rack.tiers] == [8, 64, 320]
    assert with_chips(hardware.cluster("h100-sxm", 8), 2**30) is None
