"""Technologies: values between their ends, and areas and energies that agree with real chips."""

from __future__ import annotations

from dataclasses import fields

import pytest

from dovetail import hardware
from dovetail.documents import validate
from dovetail.hardware import Coefficient, Technology
from dovetail.hardware.technology import TechnologySpec


def coefficients(technology: Technology) -> dict[str, Coefficient]:
    every = {field.name: getattr(technology, field.name) for field in fields(technology)}
    return {name: value for name, value in every.items() if isinstance(value, Coefficient)}


@pytest.mark.parametrize("name", hardware.technology_names())
def test_a_coefficient_lies_between_its_ends_and_has_a_source(name):
    found = coefficients(hardware.technology(name))
    assert found
    for coefficient in found.values():
        assert 0 < coefficient.low <= coefficient.value <= coefficient.high
        assert coefficient.source
        assert coefficient.status


def test_a_finer_node_is_not_worse():
    coarse, fine = (coefficients(hardware.technology(name)) for name in ("7nm", "5nm"))
    for name in ("mac_area_mm2", "sram_area_mm2_per_byte", "mac_energy_j", "core_sram_energy_j_per_byte"):
        assert fine[name].value < coarse[name].value
    assert fine["wafer_price_usd"].value > coarse["wafer_price_usd"].value


@pytest.mark.parametrize(("chip", "technology"), [("a100-80gb", "7nm"), ("h100-sxm", "5nm"), ("tpu-v4", "7nm")])
def test_datapath_energy_is_below_the_power_of_the_chip(chip, technology):
    mac = hardware.technology(technology).mac_energy_j
    part = hardware.chip(chip)
    assert mac is not None
    assert part.tdp_w is not None
    assert mac.value * part.macs_per_cycle * part.clock_hz < part.tdp_w


def test_on_chip_memory_fits_the_die_at_the_low_end():
    sram = hardware.technology("7nm").sram_area_mm2_per_byte
    chip = hardware.chip("ipu-mk2")
    assert sram is not None
    assert chip.area_mm2 is not None
    assert sram.low * chip.sram_bytes < 1.1 * chip.area_mm2


def test_values_have_units():
    area, energy = hardware.technology("7nm").mac_area_mm2, hardware.technology("7nm").hbm_energy_j_per_byte
    assert area is not None
    assert energy is not None
    assert (area.value, area.low) == pytest.approx((850e-6, 263e-6))
    assert energy.value == pytest.approx(31.4e-12)


def test_a_value_outside_its_ends_is_refused(refusal):
    document = {
        "name": "mine", "node_nm": 3.0,
        "mac_energy_j": {"value": "2 pJ", "low": "3 pJ", "source": "a guess", "status": "assumed"},
    }  # fmt: skip
    assert "mac_energy_j.value" in refusal(validate, TechnologySpec, document, "mine.yaml")


def test_a_file_has_the_fields_of_a_technology():
    assert set(TechnologySpec.model_fields) == {field.name for field in fields(Technology)}


def test_a_field_nobody_knows_is_refused_by_the_nearest(refusal):
    assert "did you mean 'mac_area_mm2'" in refusal(
        validate, TechnologySpec, {"name": "t", "node_nm": 7.0, "mac_area": 3.0}, "t.yaml"
    )


@pytest.mark.parametrize(("name", "value"), [("bond_yield", 1.5), ("other_area_share", 2.0), ("bond_yield", 1e-200)])
def test_a_part_is_a_part(name, value, refusal):
    document = {"name": "t", "node_nm": 7.0, name: {"value": value, "source": "a guess", "status": "assumed"}}
    assert name in refusal(validate, TechnologySpec, document, "t.yaml")
