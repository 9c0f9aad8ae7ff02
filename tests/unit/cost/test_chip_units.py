"""Chips as the cost models see them: what power, kernels of before and networks leave of the calibrated rates."""

from dataclasses import replace

import numpy as np
import pytest

from dovetail import hardware
from dovetail.cost.calibration import OTHERS, GenerationFigures, calibration, generation_of, power_share, shipped
from dovetail.cost.contraction import systolic_seconds
from dovetail.cost.shapes import Gemm
from dovetail.cost.units import NETWORK_STARTS, SYNCHRONOUS_SHARE, chip_units, tier_arrays
from dovetail.documents import validate
from dovetail.hardware.chip import ChipCalibration

CHIPS = hardware.chip_names()
PRECISIONS = ("bf16", "fp16", "fp8", "fp4", "fp32")


def test_a_part_of_less_power_sustains_the_root_of_what_it_has():
    assert power_share(hardware.chip("h100-96gb-hbm2e-500w")) == pytest.approx((500 / 700) ** 0.5)
    # 192 W for 275 TFLOPS against 450 W for 459 is another chip, not the same with less power
    assert power_share(hardware.chip("tpu-v4")) == 1


@pytest.mark.parametrize("name", CHIPS)
def test_no_part_sustains_more_than_its_generations_first(name):
    share = power_share(hardware.chip(name))
    assert 0 < share <= 1
    generation = generation_of(name)
    if generation is None or shipped().generations[generation].chips[0] == name:
        assert share == 1


def test_more_power_or_an_unknown_one_changes_nothing():
    h100 = hardware.chip("h100-sxm")
    assert power_share(replace(h100, tdp_w=1400.0)) == 1
    assert power_share(replace(h100, tdp_w=None)) == 1
    assert power_share(replace(h100, tdp_w=175.0)) == pytest.approx(0.5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_power_bounds_products_and_attention_and_not_memory(precision):
    h100 = hardware.chip("h100-sxm")
    full, half = chip_units(h100, precision), chip_units(replace(h100, tdp_w=175.0), precision)
    for part, field in (
        ("matrix", "sustained"), ("half", "sustained"),
        ("attention", "forward_efficiency"), ("attention", "backward_efficiency"),
    ):  # fmt: skip
        assert getattr(getattr(half, part), field) == pytest.approx(0.5 * getattr(getattr(full, part), field))
    assert half.vector == full.vector
    known = calibration(h100, precision).efficiencies
    assert (full.matrix.sustained, full.half.sustained) == (known.matrix, known.matrix_half)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("h100-sxm", SYNCHRONOUS_SHARE),  # of 2022
        ("b200", SYNCHRONOUS_SHARE),
        ("mi300x", SYNCHRONOUS_SHARE),
        ("a100-80gb", 1.0),  # of 2020
        ("mi250x", 1.0),  # of 2021
        ("tpu-v5p", 1.0),  # of 2023, and no GPU
        ("wse-3", 1.0),
    ],
)
def test_attention_kernels_of_before_are_slower_on_gpus_that_copy_asynchronously(name, share):
    before, now = (chip_units(hardware.chip(name), "bf16", synchronous=old) for old in (True, False))
    for field in ("forward_efficiency", "backward_efficiency"):
        assert getattr(before.attention, field) == pytest.approx(share * getattr(now.attention, field))
    assert before.matrix == now.matrix


def test_what_a_framework_reaches_of_attention_and_moves_for_vector_kernels():
    chip = hardware.chip("h100-sxm")
    plain, made = chip_units(chip, "bf16"), chip_units(chip, "bf16", traffic=2.0, attention=0.8)
    assert made.attention.forward_efficiency == pytest.approx(0.8 * plain.attention.forward_efficiency)
    assert made.attention.backward_efficiency == pytest.approx(0.8 * plain.attention.backward_efficiency)
    assert made.vector.memory_bytes_per_s == pytest.approx(plain.vector.memory_bytes_per_s / 2)
    # products and attention stream as before
    assert (made.matrix, made.attention.memory_bytes_per_s) == (plain.matrix, plain.attention.memory_bytes_per_s)


@pytest.mark.parametrize("name", ["a100-80gb", "h100-sxm", "gb200", "tpu-v5p", "mi300x"])
def test_collectives_start_so_many_times_as_slowly_beyond_the_chips_own_links(name):
    chip = hardware.chip(name)
    known = calibration(chip, "bf16").efficiencies
    own, network = (tier_arrays(chip, tier) for tier in chip.tiers)
    assert (own.launch_s, own.efficiency) == (known.collective_launch_s, known.link)
    assert network.launch_s == pytest.approx(NETWORK_STARTS * known.collective_launch_s)
    assert network.efficiency == known.network
    assert NETWORK_STARTS > 1


def test_links_that_reach_no_further_than_the_chips_own_are_its_own():
    chip = hardware.chip("h100-sxm")
    half, whole, beyond = (tier_arrays(chip, replace(chip.tiers[1], size=size)) for size in (4, 8, 16))
    assert whole == half
    assert beyond.launch_s == pytest.approx(NETWORK_STARTS * whole.launch_s)
    assert tier_arrays(replace(chip, tiers=()), chip.tiers[1]) == whole
    thin = tier_arrays(chip, replace(chip.tiers[1], oversubscription=2.0))
    assert thin.bytes_per_s == pytest.approx(chip.tiers[1].bytes_per_s / 2)


@pytest.mark.parametrize(
    ("name", "precision", "basis", "group"),
    [
        ("a100-80gb", "bf16", "fitted", "ampere"),
        ("a100-80gb", "fp16", "fitted", "ampere"),
        ("a100-80gb", "fp8", "transfer", "ampere"),
        ("h100-sxm", "fp8", "fitted", "hopper"),
        ("h100-sxm", "fp4", "transfer", "hopper"),
        ("tpu-v4", "bf16", "transfer", "tpu-v5"),
        ("mi300x", "bf16", "assumed", "cdna3"),
        ("rtx4090-24gb", "bf16", "assumed", "gpu"),
        ("gaudi3", "fp8", "assumed", "gaudi3"),
        ("wse-3", "bf16", "assumed", "many_core"),
    ],
)
def test_what_a_calibration_rests_on(name, precision, basis, group):
    found = calibration(hardware.chip(name), precision)
    assert (found.basis, found.generation) == (basis, group)
    assert group in str(found)
    assert {"fitted": "fitted", "transfer": "transferred", "assumed": "assumed"}[basis] in str(found)


@pytest.mark.parametrize("name", CHIPS)
def test_only_chips_with_runs_are_called_fitted(name):
    generation = generation_of(name)
    for precision, row in (("bf16", "half"), ("fp8", "fp8"), ("fp4", "fp4")):
        basis = calibration(hardware.chip(name), precision).basis
        measured = {} if generation is None else shipped().generations[generation].model_dump()["measured"]
        if not measured:
            assert basis == "assumed"
        else:
            assert basis == ("fitted" if name in measured.get(row, ()) else "transfer")


def figures(**matrix):
    def figure(value):
        return {"value": value, "how": "made up"}

    others = {name: figure((number + 1) / 10) for number, name in enumerate(OTHERS)}
    return validate(GenerationFigures, {"matrix": {row: figure(v) for row, v in matrix.items()}, **others}, "made up")


def test_products_have_an_efficiency_for_each_precision_or_that_of_half():
    three, one = figures(half=0.7, fp8=0.6, fp4=0.5), figures(half=0.7)
    expected = {"bf16": 0.7, "fp16": 0.7, "fp32": 0.7, "fp8": 0.6, "fp4": 0.5}
    for precision, value in expected.items():
        assert (three.efficiencies(precision).matrix, three.efficiencies(precision).matrix_half) == (value, 0.7)
        assert (one.efficiencies(precision).matrix, one.efficiencies(precision).matrix_half) == (0.7, 0.7)
        for number, name in enumerate(OTHERS):
            assert getattr(three.efficiencies(precision), name) == (number + 1) / 10


def test_own_figures_come_first():
    own = {"matrix.half": 0.9, "memory": 0.33}
    bf16, fp8 = (figures(half=0.7, fp8=0.6).efficiencies(p, own) for p in ("bf16", "fp8"))
    assert (bf16.matrix, fp8.matrix, fp8.matrix_half, fp8.memory) == (0.9, 0.6, 0.9, 0.33)
    # a precision without a figure follows what is now known of half
    assert figures(half=0.7).efficiencies("fp8", own).matrix == 0.9
    assert figures(half=0.7, fp8=0.6).efficiencies("fp8", {"matrix.fp8": 0.8}).matrix == 0.8


def test_a_chip_with_measurements_of_its_own_says_so():
    chip = replace(hardware.chip("h100-sxm"), calibration=ChipCalibration((("memory", 0.5),), "our runs"))
    found = calibration(chip, "bf16")
    assert (found.basis, found.generation, found.source) == ("own", "hopper", "our runs")
    assert found.efficiencies.memory == 0.5
    assert "our runs" in str(found)


@pytest.mark.parametrize("name", CHIPS)
def test_nothing_is_sustained_beyond_a_peak(name):
    for precision in PRECISIONS:
        known = calibration(hardware.chip(name), precision).efficiencies
        for field in ("matrix", "matrix_half", *OTHERS):
            assert 0 < float(np.max(getattr(known, field))) <= 1


@pytest.mark.parametrize("name", CHIPS)
def test_arrays_keep_what_their_chip_keeps(name):
    chip = hardware.chip(name)
    for precision in PRECISIONS:
        found = chip_units(chip, precision)
        for matrix in (found.matrix, found.half):
            assert float(matrix.output_stationary) == (chip.dataflow == "output")
            assert float(matrix.core_sram_bytes) == chip.core_sram_bytes


def test_memories_on_the_chip_limit_at_the_bandwidth_they_have():
    def limits(**fields):
        found = chip_units(replace(hardware.chip("tpu-v4"), **fields), "bf16")
        assert found.half.core_sram_bytes_per_s == found.matrix.core_sram_bytes_per_s
        return float(found.matrix.shared_sram_bytes_per_s), float(found.matrix.core_sram_bytes_per_s)

    unknown = {"shared_sram_bytes_per_s": None, "core_sram_bytes_per_s": None}
    known = {"shared_sram_bytes_per_s": 4e12, "core_sram_bytes_per_s": 9e12}
    none = {"shared_sram_bytes": 0.0, "core_sram_bytes": 0.0}
    # it has two cores
    assert limits(**known) == (4e12, 18e12)
    assert limits(**unknown) == limits(**none, **known) == (np.inf, np.inf)


def test_a_chip_whose_results_stay_is_priced_so():
    units = chip_units(hardware.chip("gaudi2"), "bf16").matrix
    shape = Gemm(*(np.asarray(size) for size in (1.0, 300.0, 8192.0, 8192.0)))
    seconds = float(systolic_seconds(shape, units) - units.launch_s)
    # 2 · 32 tiles of results on two arrays of 256 × 256, 8,192 steps each
    assert seconds * float(units.clock_hz * units.sustained) == pytest.approx(32 * 8192 + 512, rel=1e-12)
