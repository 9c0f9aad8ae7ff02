"""Technologies: values between their ends, and areas and energies that agree with real chips."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import pytest

from dovetail import hardware
from dovetail.documents import validate
from dovetail.hardware import Coefficient, Technology
from dovetail.hardware.design import design_of
from dovetail.hardware.silicon import Silicon
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


NODES = ("7nm", "5nm", "3nm", "2nm")


@pytest.mark.parametrize(("coarse", "fine"), list(pairwise(NODES)))
def test_a_finer_node_is_denser_and_uses_less_energy_on_dearer_wafers(coarse, fine):
    before, after = (coefficients(hardware.technology(name)) for name in (coarse, fine))
    smaller = {name for name in before if name.endswith("area_mm2")} | {"mac_energy_j", "vector_energy_j"}
    smaller |= {"core_sram_energy_j_per_byte", "shared_sram_energy_j_per_byte", "noc_area_mm2_per_byte_per_s"}
    for name in smaller - {"hbm_phy_area_mm2", "host_area_mm2"}:
        assert after[name].value < before[name].value, name
        assert after[name].low <= before[name].low, name
        assert after[name].high <= before[name].high, name
    # cells of memory have all but stopped shrinking
    for name in ("sram_area_mm2_per_byte", "core_sram_area_mm2_per_byte"):
        assert after[name].value <= before[name].value, name
    assert after["logic_transistors_per_mm2"].value > before["logic_transistors_per_mm2"].value
    for end in ("low", "value", "high"):
        assert getattr(after["wafer_price_usd"], end) > getattr(before["wafer_price_usd"], end)


@pytest.mark.parametrize("end", ["low", "value", "high"])
def test_the_same_chip_on_a_finer_node_is_smaller_and_cooler(end):
    design = design_of(hardware.chip("h100-sxm"))
    estimates = [Silicon(design, hardware.technology(name), end) for name in NODES]
    for coarse, fine in pairwise(estimates):
        assert fine.area_mm2 < coarse.area_mm2
        assert fine.peak_power_w < coarse.peak_power_w


def test_controllers_and_links_are_published_transistors_over_the_density():
    for name in ("5nm", "3nm", "2nm"):
        node = hardware.technology(name).numbers()
        density = node.logic_transistors_per_mm2
        assert node.hbm_controller_area_mm2 == pytest.approx(552.743e6 / density, rel=5e-3)
        assert node.link_area_mm2_per_byte_per_s == pytest.approx((0.965 + 86.628e6 / density) / 25e9, rel=5e-3)


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
