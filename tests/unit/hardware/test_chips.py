"""The chips of the catalogue: complete, consistent, and their doubts written down."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace
from statistics import median

import pytest

from dovetail import hardware
from dovetail.cost.calibration import OTHERS, PRECISION_ROWS
from dovetail.hardware import Chip
from dovetail.hardware.chip import EFFICIENCY_NAMES, USABLE_SHARE, ChipCalibration, ChipSpec
from dovetail.hardware.design import design_of
from dovetail.hardware.write import chip_document

NAMES = [
    "a100-40gb", "a100-80gb", "a40", "a800-80gb", "ascend-910b", "ascend-910c", "b200", "b300", "dojo-d1", "gaudi2",
    "gaudi3", "gb200", "gb300", "gh200-141gb", "gh200-96gb", "groq-tsp1", "h100-96gb-hbm2e-500w", "h100-sxm", "h20",
    "h200-sxm", "h800-sxm", "ipu-mk2", "l40s", "mi210", "mi250x", "mi300x", "mi325x", "mi350x", "mi355x",
    "rtx3090-24gb", "rtx4090-24gb", "tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x", "trainium1",
    "trainium2", "trainium3", "v100-16gb", "v100-32gb", "wse-2", "wse-3",
]  # fmt: skip

#: Chips whose clock has no source independent of the published peak, or whose peak has none of the clock.
EXCEPTIONS = {
    "ascend-910b": "1.8 GHz gives 294.9 of the 313 TFLOPS it is named after",
    "ascend-910c": "as the Ascend 910B",
    "b200": "the clock follows from the peak; the driver's highest, 1,965 MHz, gives 2,383 TFLOPS",
    "b300": "as the B200",
    "gb300": "NVIDIA does not disclose the clock; taken from the GB200",
    "gaudi3": "the peak follows from the shipped clock; the white paper prints 1,835 TFLOPS",
    "groq-tsp1": "the nominal clock gives 184.3 of the published 188 TFLOPS",
    "h20": "the matrix rate is capped; clock and units follow from the peak",
    "ipu-mk2": "1.325, 1.33 and 1.35 GHz are quoted, none with a source at hand",
    "l40s": "the clock gives 366 of the published 362 TFLOPS",
    "mi350x": "the peak is computed from the clock",
    "tpu-v5p": "no source but the peak was found",
    "tpu-v6e": "no source but the peak was found",
    "tpu-v7x": "the clock is from a research model that may have it from the peak",
    "trainium1": "2.8 GHz gives 183.5 of the published 190 TFLOPS",
    "trainium2": "79 TFLOPS a core is 2.4 GHz and 629 TFLOPS a chip; 667 is published",
    "trainium3": "no source but the peak was found",
    "wse-2": "the peak is computed from the clock",
    "wse-3": "the clock is assumed and the peak computed from it",
}

TOLERANCE = 0.0035


def computed_over_published(chip: Chip) -> float:
    published = chip.dense_flops.bf16 or chip.dense_flops.fp16
    assert published is not None
    return 2 * chip.macs_per_cycle * chip.clock_hz / published


def test_the_catalogue_holds_these_chips():
    assert list(hardware.chip_names()) == NAMES


@pytest.mark.parametrize("name", [name for name in NAMES if name not in EXCEPTIONS])
def test_units_times_clock_is_the_published_peak(name):
    assert computed_over_published(hardware.chip(name)) == pytest.approx(1, abs=TOLERANCE)


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_exceptions_are_doubted_in_their_file(name):
    doubts = dict(hardware.chip(name).doubts)
    assert "clock_hz" in doubts


@pytest.mark.parametrize(
    ("name", "ratio"),
    [("ascend-910c", 0.9412), ("groq-tsp1", 0.9804), ("trainium1", 0.9658), ("trainium2", 0.9432), ("wse-3", 1.0)],
)
def test_how_far_exceptions_are_off(name, ratio):
    assert computed_over_published(hardware.chip(name)) == pytest.approx(ratio, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_chip_is_complete(name):
    chip = hardware.chip(name)
    assert chip.name == name
    assert chip.source
    assert chip.tiers
    assert chip.hbm_bytes > 0 or chip.sram_bytes > 0
    assert chip.technology is None or chip.technology in hardware.technology_names()
    rates = chip.dense_flops.published()
    assert chip.peak_flops("bf16" if "bf16" in rates else "fp16") > 5e13
    # wider numbers are never faster
    order = [rates[p] for p in ("fp32", "tf32", "bf16", "fp8", "fp4") if p in rates]
    assert order == sorted(order)
    # what is doubted has a value
    assert all(getattr(chip, field) not in (None, "") for field, _ in chip.doubts)


#: Figures of data sheets, so that a slip of the pen in a file is seen.
PUBLISHED = {
    "a100-80gb": {"hbm_bytes": 80 * 2**30, "hbm_bytes_per_s": 2.039e12, "link_bytes_per_s": 300e9, "area_mm2": 826},
    "a800-80gb": {"link_bytes_per_s": 200e9},
    "h100-sxm": {"hbm_bytes": 81559 * 2**20, "hbm_bytes_per_s": 3.35e12, "link_bytes_per_s": 450e9, "tdp_w": 700},
    "h200-sxm": {"hbm_bytes_per_s": 4.8e12, "hbm_stacks": 6},
    "h800-sxm": {"link_bytes_per_s": 200e9},
    "b200": {"link_bytes_per_s": 900e9, "macs_per_cycle": 606_208, "dies": 2},
    "gb200": {"link_bytes_per_s": 900e9, "clock_hz": 2.062e9},
    "mi300x": {"hbm_bytes": 192 * 2**30, "hbm_bytes_per_s": 5.3e12, "link_bytes_per_s": 448e9},
    "mi325x": {"hbm_bytes": 256e9, "hbm_bytes_per_s": 6e12, "link_bytes_per_s": 448e9, "tdp_w": 1000},
    "mi355x": {"hbm_bytes": 288e9, "hbm_bytes_per_s": 8e12, "link_bytes_per_s": 535.5e9, "macs_per_cycle": 524_288},
    "h20": {"hbm_bytes_per_s": 4e12, "link_bytes_per_s": 450e9, "vector_cores": 78, "tdp_w": 400},
    "gh200-96gb": {"hbm_bytes_per_s": 4e12, "macs_per_cycle": 270_336},
    "trainium3": {"hbm_bytes": 144 * 2**30, "hbm_bytes_per_s": 4.9e12, "link_bytes_per_s": 1280e9},
    "ascend-910c": {"hbm_bytes": 128e9, "hbm_bytes_per_s": 3.2e12, "link_bytes_per_s": 392e9},
    "tpu-v4": {"hbm_bytes": 32 * 2**30, "link_bytes_per_s": 300e9, "macs_per_cycle": 131_072},
    "tpu-v5p": {"hbm_bytes_per_s": 2.765e12, "link_bytes_per_s": 600e9},
    "trainium2": {"hbm_bytes": 96 * 2**30, "vector_cores": 8},
    "wse-3": {"hbm_bytes": 0, "vector_cores": 900_000},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_figures_of_data_sheets(name):
    chip = hardware.chip(name)
    assert {field: getattr(chip, field) for field in PUBLISHED[name]} == pytest.approx(PUBLISHED[name])


def test_on_chip_memory_adds_up():
    assert hardware.chip("a100-80gb").sram_bytes == 108 * 192 * 2**10 + 40 * 2**20
    assert hardware.chip("wse-2").sram_bytes == pytest.approx(40e9, rel=0.05)
    assert hardware.chip("ipu-mk2").sram_bytes == pytest.approx(900e6, rel=0.05)


def test_a_chip_can_be_hashed_and_sent_elsewhere():
    chip = hardware.chip("tpu-v4")
    assert hash(chip) == hash(hardware.chip("tpu-v4"))
    assert copy.deepcopy(chip) == chip
    assert pickle.dumps(chip)


def test_a_file_has_the_fields_of_a_chip():
    kept = {field.name for field in fields(Chip)}
    assert set(ChipSpec.model_fields) - {"hbm_usable_bytes"} == kept - {"hbm_usable_share"}


#: What programs say they get, in GiB.
USABLE = {"h100-sxm": 79.18, "a100-80gb": 79.14, "a100-40gb": 39.49, "h200-sxm": 139.8, "b200": 178.35, "tpu-v4": 30.75}


@pytest.mark.parametrize("name", USABLE)
def test_usable_memory_is_what_programs_get(name):
    chip = hardware.chip(name)
    assert chip.usable_basis == "read"
    assert chip.usable_bytes == pytest.approx(USABLE[name] * 2**30)
    # it goes with the memory: half of it leaves half
    assert replace(chip, hbm_bytes=chip.hbm_bytes / 2).usable_bytes == pytest.approx(chip.usable_bytes / 2)
    assert ChipSpec.model_validate(chip_document(chip)).chip().usable_bytes == chip.usable_bytes


def test_without_a_figure_gpus_leave_the_median_and_others_everything():
    read = [hardware.chip(name) for name in NAMES if hardware.chip(name).usable_basis == "read"]
    shares = [chip.usable_bytes / chip.hbm_bytes for chip in read if chip.kind == "gpu" and chip.hbm_bytes > 40e9]
    assert pytest.approx(median(shares), abs=5e-4) == USABLE_SHARE
    unknown = hardware.chip("h100-96gb-hbm2e-500w")
    assert (unknown.usable_basis, unknown.usable_bytes) == ("assumed", USABLE_SHARE * unknown.hbm_bytes)
    for name in ("trainium2", "wse-3", "dojo-d1"):
        chip = hardware.chip(name)
        assert (chip.usable_basis, chip.usable_bytes) == ("assumed", chip.memory_bytes)
    # a design leaves programs the share that its base does
    assert design_of(hardware.chip("tpu-v4")).chip(0, "mine").usable_bytes == hardware.chip("tpu-v4").usable_bytes


def test_a_precision_without_figures_is_refused(refusal):
    assert "did you mean 'bf16'" in refusal(hardware.chip("tpu-v4").peak_flops, "bf61")
    assert "fp8" in refusal(hardware.chip("a100-80gb").peak_flops, "fp8")
    assert hardware.chip("h100-sxm").peak_flops("fp8") == 1979e12


def test_a_chip_file_of_ones_own(tmp_path, refusal):
    path = tmp_path / "chip.yaml"
    path.write_text(
        "{name: mine, kind: systolic, year: 2027, node: N3, clock_hz: 1 GHz, tensor_cores: 4, rows: 128, cols: 256,\n"
        "dataflow: output, dense_flops: {bf16: 262 TFLOPS}, vector_cores: 2, vector_lanes: 1024,\n"
        "core_sram_bytes: 32 MiB, hbm_bytes: 64 GB, hbm_bytes_per_s: 2 TB/s}"
    )
    chip = hardware.chip(str(path))
    assert chip.macs_per_cycle == 4 * 128 * 256
    assert chip.title == "mine"
    assert chip.hbm_bytes == 64e9
    assert chip.link_bytes_per_s == 0
    assert hardware.cluster(chip, chips=1).tiers == ()
    assert "no network" in refusal(hardware.cluster, chip, chips=2)


def test_a_chips_own_calibration_is_hashed_and_sent_with_it():
    fields_of = {"values": {"memory": 0.8, "matrix.half": 0.7}, "source": "six runs"}
    document = chip_document(hardware.chip("h100-sxm"))
    first, second = (
        ChipSpec.model_validate({**document, "calibration": {**fields_of, "values": values}}).chip()
        for values in ({"memory": 0.8, "matrix.half": 0.7}, {"matrix.half": 0.7, "memory": 0.8})
    )
    assert first.calibration == ChipCalibration((("matrix.half", 0.7), ("memory", 0.8)), "six runs")
    assert hash(first) == hash(second)
    assert pickle.loads(pickle.dumps(first)) == second  # noqa: S301
    assert first != hardware.chip("h100-sxm")
    assert replace(first, calibration=None) == hardware.chip("h100-sxm")


def test_a_chip_may_carry_every_number_of_a_calibration():
    known = {*OTHERS, *(f"matrix.{row}" for row in PRECISION_ROWS.values())}
    assert set(EFFICIENCY_NAMES) == known
