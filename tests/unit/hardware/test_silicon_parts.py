"""Area, power and cost by part: they add up to the figures that limits and objectives use, for chips and wafers."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import hardware
from dovetail.hardware.design import design_of
from dovetail.hardware.silicon import Silicon
from dovetail.hardware.silicon.cost import STACK_MM2, dies_per_wafer

FIGURES = {"area_mm2", "peak_power_w", "cost_usd", "system_cost_usd"}
CHIPS = {name: chip.technology for name in hardware.chip_names() if (chip := hardware.chip(name)).technology}


@pytest.fixture(scope="module", params=hardware.space_names())
def space(request):
    return hardware.space(request.param)


def test_the_parts_of_random_designs_add_up(space):
    indices = np.random.default_rng(29).integers(0, space.size, 500)
    designs = space.designs(indices)
    parts = space.silicon_parts(designs)
    assert set(parts) == FIGURES
    for figure, by_part in parts.items():
        assert all(value.shape == (500,) and (value >= 0).all() for value in by_part.values())
        total = space.values(figure, designs)
        np.testing.assert_allclose(np.sum(list(by_part.values()), axis=0), total, rtol=1e-12)


def test_one_design_has_the_parts_it_has_among_many(space):
    indices = np.random.default_rng(3).integers(0, space.size, 20)
    many = space.silicon_parts(space.designs(indices))
    one = space.silicon_parts(space.designs(indices[7:8]))
    for figure, by_part in many.items():
        assert list(one[figure]) == list(by_part)
        for name, values in by_part.items():
            assert one[figure][name][0] == pytest.approx(values[7], rel=1e-12)


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("end", ["low", "value", "high"])
def test_parts_of_chips_add_up_at_every_end(name, end):
    estimate = Silicon(design_of(hardware.chip(name)), hardware.technology(CHIPS[name] or ""), end)
    for figure, by_part in estimate.parts().items():
        assert sum(float(value) for value in by_part.values()) == pytest.approx(float(getattr(estimate, figure)))
    # the same parts of the dies in area and in cost, each at its part of the area
    area, cost = estimate.parts()["area_mm2"], estimate.parts()["cost_usd"]
    assert list(cost) == [*area, "memory", "package", "bonding"]
    assert float(cost["links"] / cost["tensor"]) == pytest.approx(float(area["links"] / area["tensor"]))


def test_what_a_package_costs_by_hand():
    chip = hardware.chip("b200")
    node = hardware.technology("5nm").numbers()
    estimate = Silicon(design_of(chip), hardware.technology("5nm"))
    die = float(estimate.area_mm2) / 2
    made = (node.wafer_price_usd / float(dies_per_wafer(np.asarray(die))) + die * node.die_test_usd_per_mm2) * 2
    dies = made / float(estimate.die_yield)
    memory = chip.hbm_bytes * node.hbm_price_usd_per_byte
    package = (2 * die + 8 * STACK_MM2) * node.package_price_usd_per_mm2
    whole = (dies + memory + package) / node.bond_yield**10
    parts = estimate.cost_parts
    assert float(parts["memory"]) == pytest.approx(memory)
    assert float(parts["bonding"]) == pytest.approx(whole - dies - memory - package)
    assert float(estimate.cost_usd) == pytest.approx(whole)


def test_a_space_without_a_technology_has_no_parts(refusal):
    document = {"name": "mine", "base": "mi355x", "vary": {"clock_hz": ["2 GHz", "2.4 GHz"]}}
    space = hardware.space_from(document, "mine.yaml")
    assert "needs a technology" in refusal(space.silicon_parts, space.designs([0]))
