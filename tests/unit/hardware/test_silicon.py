"""The silicon model: parts that add up, more of anything never smaller, cooler or cheaper, and figures by hand."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import hardware
from dovetail.hardware.design import Designs, design_of
from dovetail.hardware.silicon import ESTIMATES, PEAK, TYPICAL, Silicon
from dovetail.hardware.silicon.cost import dies_per_wafer

BASES = ("tpu-v4", "h100-sxm", "dojo-d1", "mi250x")

#: A resource, and the values of it that designs are drawn from.
RESOURCES = {
    "tensor_cores": (1, 4096),
    "rows": (2, 512),
    "cols": (2, 512),
    "vector_cores": (1, 4096),
    "vector_lanes": (1, 2048),
    "clock_hz": (2e8, 3e9),
    "core_sram_bytes": (0, 2**26),
    "core_sram_bytes_per_s": (1e9, 1e13),
    "shared_sram_bytes": (2**20, 2**30),
    "shared_sram_bytes_per_s": (1e11, 1e14),
    "hbm_stacks": (0, 16),
    "hbm_stack_bytes": (2**30, 2**36),
    "hbm_stack_bytes_per_s": (1e11, 2e12),
    "link_ports": (1, 64),
    "link_port_bytes_per_s": (1e9, 1e12),
}


def estimate(designs: Designs, end: str = "value") -> Silicon:
    technology = designs.base.technology
    assert technology is not None
    return Silicon(designs, hardware.technology(technology), end)  # pyright: ignore[reportArgumentType]


def pairs(name: str) -> st.SearchStrategy[tuple[Designs, float]]:
    low, high = RESOURCES[name]
    values = st.fixed_dictionaries({other: st.floats(*ends) for other, ends in RESOURCES.items()})
    made = st.builds(
        lambda base, drawn: design_of(hardware.chip(base)).varied({n: np.asarray(v) for n, v in drawn.items()}),
        st.sampled_from(BASES),
        values,
    )
    return st.tuples(made, st.floats(low, high))


@pytest.mark.parametrize("name", RESOURCES)
@given(st.data())
def test_more_of_a_resource_never_takes_less(name, data):
    one, other = data.draw(pairs(name))
    ends = sorted((float(one.value(name)), other))
    less, more = (estimate(one.varied({name: np.asarray(value)})) for value in ends)
    for figure in ("area_mm2", "peak_power_w", "typical_power_w", "cost_usd", "system_cost_usd"):
        small, large = float(getattr(less, figure)), float(getattr(more, figure))
        assert small <= large * (1 + 1e-12), figure
    assert float(more.die_yield) <= float(less.die_yield) * (1 + 1e-12)


@pytest.mark.parametrize("name", [name for name in hardware.chip_names() if hardware.chip(name).technology])
def test_figures_lie_between_their_ends(name):
    chip = design_of(hardware.chip(name))
    low, value, high = (estimate(chip, end) for end in ("low", "value", "high"))
    for figure in ("area_mm2", "peak_power_w", "typical_power_w", "cost_usd", "system_cost_usd"):
        assert float(getattr(low, figure)) < float(getattr(value, figure)) < float(getattr(high, figure)), figure


@pytest.mark.parametrize("times", [0.5, 1, 2])
def test_a_design_made_a_chip_takes_the_same_silicon(times):
    chip = hardware.chip("h100-sxm")
    changed = {name: np.asarray(times * getattr(chip, name)) for name in ("vector_cores", "tensor_cores")}
    designs = design_of(chip).varied(changed)
    one, again = estimate(designs), estimate(design_of(designs.chip(0, "x")))
    assert float(again.area_mm2) == pytest.approx(float(one.area_mm2), rel=1e-12)
    assert float(again.cost_usd) == pytest.approx(float(one.cost_usd), rel=1e-12)


def test_an_estimate_can_be_sent_elsewhere():
    found = estimate(design_of(hardware.chip("tpu-v4")))
    assert found.area_mm2 == copy.deepcopy(found).area_mm2 == pickle.loads(pickle.dumps(found)).area_mm2  # noqa: S301


def test_arrays_equal_one_by_one():
    base = design_of(hardware.chip("tpu-v4"))
    cores, stacks = np.array([1.0, 8.0, 64.0]), np.array([1.0, 2.0, 8.0])
    many = estimate(base.varied({"tensor_cores": cores, "hbm_stacks": stacks}))
    for position in range(3):
        alone = estimate(base.varied({"tensor_cores": cores[position], "hbm_stacks": stacks[position]}))
        for figure in ESTIMATES:
            together = np.broadcast_to(getattr(many, figure), (3,))
            # powers of arrays may end in another bit than those of numbers
            assert float(together[position]) == pytest.approx(float(getattr(alone, figure)), rel=1e-12), figure


def test_parts_add_up():
    found = estimate(design_of(hardware.chip("h100-sxm")))
    assert sum(float(part) for part in found.area_parts.values()) == pytest.approx(float(found.area_mm2))
    for activity, total in ((PEAK, found.peak_power_w), (TYPICAL, found.typical_power_w)):
        assert sum(float(part) for part in found.power_parts(activity).values()) == pytest.approx(float(total))


def test_areas_by_hand():
    parts = estimate(design_of(hardware.chip("tpu-v4"))).area_parts
    assert float(parts["tensor"]) == pytest.approx(8 * 128 * 128 * 850e-6)
    assert float(parts["shared memory"]) == pytest.approx(128 * 2**20 * 0.834e-6)
    assert float(parts["memory interface"]) == pytest.approx(4 * (10.45 + 5.74))
    assert float(parts["links"]) == pytest.approx(300e9 * 1.065e-10)


def test_edge_and_reticle_by_hand():
    found = estimate(design_of(hardware.chip("tpu-v4")))
    needed = 4 * 8 + 300e9 * 1.67e-11
    assert float(found.shoreline_share) == pytest.approx(needed / (4 * float(found.area_mm2) ** 0.5))
    assert float(found.reticle_share) == pytest.approx(float(found.area_mm2) / 858)


def test_units_that_are_switched_off_take_area_but_no_power():
    chip = hardware.chip("a100-80gb")
    whole = estimate(design_of(chip))
    bare = estimate(design_of(replace(chip, on_die=type(chip.on_die)())))
    assert float(whole.area_parts["vector"]) == pytest.approx(float(bare.area_parts["vector"]) * 128 / 108)
    assert float(whole.power_parts(PEAK)["tensor"]) == float(bare.power_parts(PEAK)["tensor"])


def test_spare_cores_save_dies():
    chip = hardware.chip("h100-sxm")
    spare, bare = (estimate(design_of(c)) for c in (chip, replace(chip, on_die=type(chip.on_die)())))
    assert float(spare.area_mm2) > float(bare.area_mm2)
    assert float(spare.die_yield) > float(bare.die_yield)


def test_yield_of_the_negative_binomial_by_hand():
    found = estimate(design_of(hardware.chip("tpu-v4")))
    assert float(found.die_yield) == pytest.approx((1 + float(found.area_mm2) * 0.00095 / 3) ** -3)


def test_dies_of_a_wafer():
    # 70,686 mm2 over 800 less 942 mm of rim over the diagonal of 40 mm
    assert float(dies_per_wafer(np.asarray(800.0))) == pytest.approx(88.36 - 23.56, abs=0.01)
    assert float(dies_per_wafer(np.asarray(46225.0))) == 1


def test_two_dies_are_each_smaller_and_need_links_between_them():
    chip = design_of(hardware.chip("tpu-v4"))
    one, two = (estimate(chip.varied({"dies": np.asarray(float(n))})) for n in (1, 2))
    assert float(two.area_mm2) > float(one.area_mm2)
    assert float(two.die_area_mm2) < float(one.die_area_mm2)
    assert float(two.die_yield) > float(one.die_yield)


def test_power_grows_with_the_square_of_the_clock():
    chip = design_of(hardware.chip("h100-sxm"))
    slow, fast = (estimate(chip.varied({"clock_hz": np.asarray(hz)})).power_parts(PEAK) for hz in (1.2e9, 2.4e9))
    assert float(fast["tensor"]) == pytest.approx(4 * float(slow["tensor"]))


def test_a_technology_without_a_coefficient_is_refused(refusal):
    designs = design_of(hardware.chip("tpu-v4"))
    found = refusal(lambda: Silicon(designs, hardware.technology("22nm")).area_mm2)
    assert found.startswith("technology 22nm: ")
    assert "is missing" in found
