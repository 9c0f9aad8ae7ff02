"""Chips as designs: those of the catalogue come back as they were, and what varies varies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail import hardware
from dovetail.hardware.design import VARIABLES, design_of

#: What nobody publishes of a design.
OWN = {
    "area_mm2": None, "tdp_w": None, "price_usd": None, "rent_usd_per_h": None, "doubts": (), "calibration": None,
}  # fmt: skip


@pytest.mark.parametrize("name", hardware.chip_names())
def test_a_chip_of_the_catalogue_is_an_instance_of_the_parametric_one(name):
    chip = hardware.chip(name)
    again = design_of(chip).chip(0, name)
    # peaks are products of floats
    published = chip.dense_flops.published()
    assert again.dense_flops.published() == pytest.approx(published, rel=1e-12)
    assert replace(again, dense_flops=chip.dense_flops, title=chip.title) == replace(chip, calibrated_as=chip, **OWN)


def test_designs_differ_in_what_is_varied_alone():
    base = design_of(hardware.chip("tpu-v4"))
    many = base.varied({"tensor_cores": np.array([4.0, 16.0]), "hbm_stacks": np.array([2.0, 8.0])})
    assert many.shape == (2,)
    half, twice = many.chip(0, "half"), many.chip(1, "twice")
    assert (half.hbm_bytes, twice.hbm_bytes) == (16 * 2**30, 64 * 2**30)
    assert (half.hbm_bytes_per_s, twice.hbm_bytes_per_s) == pytest.approx((0.6e12, 2.4e12))
    assert (half.dense_flops.bf16, twice.dense_flops.bf16) == pytest.approx((137.5e12, 550e12))
    assert (half.hbm_stacks, twice.hbm_stacks) == (2, 8)
    assert half.vector_cores == twice.vector_cores == 2
    assert {"rows": twice.rows, "cols": twice.cols, "dataflow": twice.dataflow} == {
        "rows": 128, "cols": 128, "dataflow": "weight",
    }  # fmt: skip


def test_links_are_the_innermost_tier():
    chip = design_of(hardware.chip("h100-sxm")).varied({"link_ports": np.asarray(9.0)}).chip(0, "fewer")
    assert chip.tiers[0].bytes_per_s == pytest.approx(225e9)
    assert chip.tiers[1:] == hardware.chip("h100-sxm").tiers[1:]


def test_narrow_formats_come_and_go():
    wide = design_of(hardware.chip("tpu-v4"))
    assert wide.chip(0, "wide").dense_flops.fp8 is None
    narrow = wide.varied({"narrowest_bits": np.asarray(8.0)}).chip(0, "narrow")
    assert narrow.dense_flops.fp8 == pytest.approx(550e12)
    none = design_of(hardware.chip("h100-sxm")).varied({"narrowest_bits": np.asarray(16.0)}).chip(0, "none")
    assert none.dense_flops.fp8 is None


def test_both_dataflows():
    chip = design_of(hardware.chip("tpu-v4")).varied({"output_stationary": np.asarray(1.0)}).chip(0, "output")
    assert chip.dataflow == "output"


def test_matrix_units_that_are_no_array_count_as_the_squarest():
    design = design_of(hardware.chip("h100-sxm"))
    assert (float(design.rows), float(design.cols)) == (16, 32)


def test_every_variable_is_an_array():
    design = design_of(hardware.chip("dojo-d1"))
    assert all(isinstance(design.value(name), np.ndarray) for name in VARIABLES)
    assert float(design.hbm_bytes) == 0
