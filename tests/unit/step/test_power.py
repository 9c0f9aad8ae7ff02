"""Power of a step: it grows with MFU, stays below the TDP, and holds its parts by an independent sum."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dovetail import hardware
from dovetail.cost.energy import RUNNING, energy_rates
from dovetail.hardware import Coefficient
from dovetail.plans.plan_file import task_of
from dovetail.report.answer_fields import evaluation_fields
from dovetail.step.energy import ranged_joules
from dovetail.step.evaluate import evaluate
from dovetail.step.power import AROUND, COOLING, HOST, Ranged, step_power

MODELLED = ["h100-sxm", "a100-80gb", "mi250x", "tpu-v4", "b200"]


def estimated(chip: str, **job: object):
    task = task_of(
        {
            "job": {"model": "llama-2-7b", "seq_len": 2048, "global_batch": 64} | job,
            "cluster": {"chip": chip, "chips": 8, "framework": "ideal"},
            "plan": {"zero_stage": 3, "recompute": "full"},
        },
        "power.yaml",
    )
    return task, evaluate(task.plan, task.job, task.cluster, task.framework)


@pytest.mark.parametrize("name", MODELLED)
def test_more_mfu_draws_more_power_and_takes_less_energy(name):
    rates = energy_rates(hardware.chip(name))
    assert rates is not None
    counts = {"macs": 1e15, "lanes": 1e12, "memory_bytes": 1e12, "link_bytes": 1e10}
    joules = [ranged_joules(rates, counts, seconds) for seconds in (8.0, 4.0, 2.0)]
    watts = [each.value / seconds for each, seconds in zip(joules, (8.0, 4.0, 2.0), strict=True)]
    assert watts[0] < watts[1] < watts[2]
    assert joules[0].value > joules[1].value > joules[2].value
    for each in joules:
        assert 0 < each.low < each.value < each.high


@pytest.mark.parametrize("name", MODELLED)
def test_no_chip_draws_more_than_its_tdp(name):
    _, found = estimated(name)
    limit = hardware.chip(name).tdp_w
    assert found.energy is not None
    assert found.power is not None
    assert limit is not None
    assert 0.25 * limit < found.power.chip.low <= found.power.chip.value <= found.power.chip.high <= limit * (1 + 1e-9)


def test_a_chip_without_a_limit_is_not_limited():
    task, capped = estimated("b200")
    free = replace(task.cluster, chip=replace(task.cluster.chip, tdp_w=None))
    found = evaluate(task.plan, task.job, free, task.framework)
    assert capped.power is not None
    assert found.power is not None
    assert capped.power.chip.value == pytest.approx(1000)
    assert "at most TDP" in capped.provenance["energy"]
    assert found.power.chip.value > 1000


def test_an_h100_by_hand():
    """A multiply-accumulate: 0.41 pJ, operands from 16 × 32 units, registers, clocks; into the board."""
    rates = energy_rates(hardware.chip("h100-sxm"))
    assert rates is not None
    logic = 1.83 / 1.6 * 1.259
    operands = (2 / 16 + 2 / 32 + 0.875) * 0.74e-12
    assert rates.rates.macs == pytest.approx(1.1 * logic * (0.41e-12 + operands), rel=1e-6)
    assert rates.rates.standing_w == pytest.approx(1.1 * 3 * 0.08 * 814)
    assert rates.rates.memory_bytes == pytest.approx(1.1 * (32e-12 + 10.5e-12))


def test_registers_are_a_gpu_s():
    gpu, systolic = hardware.chip("a100-80gb"), hardware.chip("tpu-v4")
    for chip, moves in ((gpu, True), (systolic, False)):
        rates = energy_rates(chip)
        assert rates is not None
        low, high = rates.ends[-len(RUNNING)]
        assert (low.macs < high.macs) is moves


def test_narrow_products_take_half():
    """All of a model's products but logits and attention are in fp8; they are at least 4 in 5 here."""
    (task, half), (_, narrow) = estimated("h100-sxm"), estimated("h100-sxm", precision="fp8")
    chip = replace(task.cluster.chip, tdp_w=None)
    assert half.step_time_s > narrow.step_time_s
    bf16 = evaluate(task.plan, task.job, replace(task.cluster, chip=chip), task.framework)
    fp8 = evaluate(task.plan, replace(task.job, precision="fp8"), replace(task.cluster, chip=chip), task.framework)
    assert bf16.energy_j is not None
    assert fp8.energy_j is not None
    standing = 1.1 * 3 * 0.08 * 814 * 8
    ratio = (fp8.energy_j - standing * fp8.step_time_s) / (bf16.energy_j - standing * bf16.step_time_s)
    assert 0.5 < ratio < 0.75


def test_ends_of_independent_parts_add_as_squares():
    found = step_power(Ranged(600.0, 500.0, 660.0), 1.0, hosted=True)
    assert found.system is not None
    assert found.facility is not None
    assert found.system.value == pytest.approx(600 * 1.2 + 80)
    high = math.sqrt((1.2 * 60) ** 2 + (600 * (AROUND.high - 1.2)) ** 2 + (HOST.high - 80) ** 2)
    assert found.system.high == pytest.approx(800 + high)
    assert found.facility.value == pytest.approx(COOLING.value * 800)
    assert step_power(Ranged(1.0, 1.0, 1.0), 1.0, hosted=False).system is None
    exact = Coefficient(2.0, 2.0, 2.0, "", "assumed")
    assert Ranged(3.0, 2.0, 5.0).times(exact) == Ranged(3.0, 2.0, 5.0).times(2.0) == Ranged(6.0, 4.0, 10.0)


def test_the_fields_agree():
    task, found = estimated("tpu-v4")
    fields = evaluation_fields(found, task.job, task.cluster, task.framework)
    low, high = fields["energy_range_j"]
    assert low < fields["energy_j"] <= high
    watts = fields["energy_j"] / fields["step_time_s"] / 8
    assert fields["power_w"]["chip"] == pytest.approx(watts)
    assert fields["power_w"]["chip"] < fields["power_w"]["system"] < fields["power_w"]["facility"]


def test_without_energies_the_tdp_is_the_most():
    _, found = estimated("v100-32gb")
    assert found.power is not None
    assert found.power.chip.value == found.power.chip.high == pytest.approx(300)
    assert found.power.chip.low == pytest.approx(90)
