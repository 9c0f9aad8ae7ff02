"""Physical rules about wafers: small ones by hand, more is never easier, what is wrong with published ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dovetail as dt
from dovetail.errors import InputError
from dovetail.hardware import Wafer
from dovetail.hardware.silicon import PEAK, Silicon, wafer_check
from dovetail.hardware.silicon.wafer_check import RULES, Finding, check
from dovetail.hardware.silicon.wafer_estimate import WaferSilicon
from dovetail.hardware.silicon.wafer_geometry import pitches_mm, stack_columns, wire_mm
from dovetail.hardware.silicon.wafer_yield import harvested_yield, sites_yield
from dovetail.hardware.technology import End
from dovetail.hardware.wafer_design import wafer_design_of

_EXACT = {"source": "us", "status": "assumed"}

DIE: dict[str, Any] = {
    "name": "die", "kind": "many_core", "year": 2025, "node": "7 nm", "technology": "7nm", "clock_hz": "1 GHz",
    "tensor_cores": 100, "macs_per_core": 64, "dense_flops": {"bf16": "12.8 TFLOPS"}, "vector_cores": 100,
    "vector_lanes": 8, "core_sram_bytes": "256 KiB", "hbm_bytes": "40 GB", "hbm_bytes_per_s": "1 TB/s", "hbm_stacks": 3,
    "link_reach": "package",
}  # fmt: skip
JOINED: dict[str, Any] = {
    "name": "plain", "monolithic": False, "source": "us",
    "wire_reach_mm": {"value": 40, **_EXACT},
    "link_shoreline_mm_per_byte_per_s": {"value": 5e-12, **_EXACT},
    "link_energy_j_per_byte": {"value": 8e-12, **_EXACT},
    "link_yield": {"value": 0.99, **_EXACT},
    "bond_yield": {"value": 0.98, **_EXACT},
    "fatal_share": {"value": 1, **_EXACT},
}  # fmt: skip
PLAIN: dict[str, Any] = {
    "name": "small", "die": DIE, "integration": JOINED, "rows": 2, "cols": 3, "die_width_mm": 20, "die_height_mm": 24,
    "width_mm": 120, "height_mm": 60, "gap_mm": 1, "d2d_bytes_per_s": "1 TB/s", "power_limit_w": "1 kW",
}  # fmt: skip


def wafer(**changes: Any) -> Wafer:
    return dt.hardware.wafer_from(PLAIN | changes, "small")


def checked(one: Wafer) -> tuple[Finding, ...]:
    return check(one, dt.hardware.technology_of(one))


def estimate(one: Wafer, end: End = "value") -> WaferSilicon:
    return wafer_check.estimate(one, dt.hardware.technology_of(one), end)


def findings(one: Wafer) -> dict[str, Finding]:
    return {finding.rule: finding for finding in checked(one)}


def test_geometry_by_hand():
    # 24 mm hold two stacks of 10 mm: the third stands in a second column, west of the die
    designs = wafer_design_of(wafer())
    assert [float(n) for n in stack_columns(designs)] == [1, 1]
    assert [float(n) for n in pitches_mm(designs)] == [20 + 1 + 2 * (11 + 1), 24 + 1]
    found = findings(wafer())
    # the grid is 3 x 45 - 1 wide and 2 x 25 - 1 high
    assert found["area"].value == pytest.approx(max(134 / 120, 49 / 60))
    assert not found["area"].passes
    assert found["wire"].value == pytest.approx(45 / 40)
    assert found["reticle"].value == pytest.approx(max(20 / 26, 24 / 33))
    # the east edge has a link of 5 mm and two interfaces of 8 mm
    assert found["shoreline"].value == pytest.approx((5 + 16) / 24)
    assert found["shoreline"].passes


def test_no_memory_takes_no_room():
    bare = {key: value for key, value in DIE.items() if key != "hbm_stacks"} | {"hbm_bytes": 0, "hbm_bytes_per_s": 0}
    designs = wafer_design_of(wafer(die=bare))
    assert [float(n) for n in pitches_mm(designs)] == [21, 25]
    found = findings(wafer(die=bare))
    assert found["area"].value == pytest.approx(max(62 / 120, 49 / 60))
    assert found["shoreline"].value == pytest.approx(5 / 20)
    assert found["wire"].value == pytest.approx(25 / 40)
    # one row and one column: a lone die has no wires
    assert findings(wafer(die=bare, rows=1, cols=1))["wire"].value == 0
    assert findings(wafer(die=bare, rows=1, cols=2))["wire"].value == pytest.approx(21 / 40)


def test_a_lone_die_has_wires_to_its_memory():
    # half the die, the gap, half the stack
    assert float(wire_mm(wafer_design_of(wafer(rows=1, cols=1)))) == pytest.approx(10 + 1 + 5.5)
    # five stacks: three columns, of which two lie east
    five = wafer(rows=1, cols=1, die=DIE | {"hbm_stacks": 5})
    assert float(wire_mm(wafer_design_of(five))) == pytest.approx(10 + 1 + 11 + 1 + 5.5)


def test_what_leaves_the_wafer_stands_on_its_rim():
    found = findings(wafer(edge_bytes_per_s="12 TB/s"))["shoreline"]
    # 60 GB/s a mm on 2 x (3 x 20 + 2 x 24) mm
    assert found.value == pytest.approx(12e12 * 1.67e-11 / 216)
    assert found.value > (5 + 16) / 24


def test_the_store_stands_on_the_rim_beside_the_links_to_other_wafers():
    without = findings(wafer(edge_bytes_per_s="12 TB/s"))["shoreline"]
    store = {"store_bytes": "1 TB", "store_bytes_per_s": "3 TB/s"}
    both = findings(wafer(edge_bytes_per_s="12 TB/s", **store))["shoreline"]
    assert both.value == pytest.approx(without.value * 15 / 12)
    assert "251 mm of 216 mm of rim for links off the wafer and to its store" in both.sentence
    assert "and to its store" not in without.sentence
    # alone it takes less of the rim than the links of a die take of its edge
    alone = findings(wafer(**store))["shoreline"]
    assert alone.value == pytest.approx((5 + 16) / 24)
    assert "50 mm of 216 mm of rim" in alone.sentence


def _joined(name: str, **changes: Any) -> Wafer:
    """A wafer of the catalogue with other cores, memory or links of its dies."""
    one = dt.hardware.wafer(name)
    d2d = changes.pop("d2d_bytes_per_s", one.d2d_bytes_per_s)
    return replace(one, die=replace(one.die, **changes), d2d_bytes_per_s=d2d)


def test_what_the_buildable_wafers_give_up_is_what_their_doubts_say():
    one, template = dt.hardware.wafer("watos-buildable"), dt.hardware.wafer("watos-like")
    for name in ("dies", "rows", "cols", "die_width_mm", "die_height_mm", "power_limit_w", "integration"):
        assert getattr(one, name) == getattr(template, name)
    assert (one.die.hbm_bytes, one.die.hbm_bytes_per_s, one.die.hbm_stacks) == (70e9, 2e12, 2)
    assert (one.die.clock_hz, one.die.technology) == (template.die.clock_hz, template.die.technology)
    # 2.2 TB/s is the most that two stacks leave, 4 TB/s what one stack and 130 cores do
    assert findings(_joined(one.name, d2d_bytes_per_s=2.2e12))["shoreline"].passes
    assert not findings(_joined(one.name, d2d_bytes_per_s=2.3e12))["shoreline"].passes
    fewer = {"hbm_stacks": 1, "hbm_bytes": 35e9, "hbm_bytes_per_s": 1e12, "d2d_bytes_per_s": 4e12}
    cores = {number: {"tensor_cores": number, "vector_cores": number} for number in (130, 140, 192, 210)}
    assert all(finding.passes for finding in checked(_joined(one.name, **fewer, **cores[130])))
    assert not findings(_joined(one.name, **fewer, **cores[140]))["die"].passes
    assert not findings(_joined(one.name, **cores[210]))["die"].passes
    # with every die working it has the power it needs; its yield rests on the spare dies
    whole = estimate(replace(one, spare_dies=0))
    assert float(whole.wafer_power_w) == pytest.approx(16.2e3, rel=5e-3)
    assert float(whole.wafer_yield) == pytest.approx(0.18, abs=0.005)
    assert float(estimate(one).wafer_yield) == pytest.approx(0.77, abs=0.005)


def test_the_rim_of_the_buildable_tile():
    one, tile = dt.hardware.wafer("dojo-buildable"), dt.hardware.wafer("dojo-tile")
    assert (one.die, one.d2d_bytes_per_s, one.power_limit_w) == (tile.die, tile.d2d_bytes_per_s, tile.power_limit_w)
    assert (one.store_bytes, one.store_bytes_per_s) == (20 * 32e9, pytest.approx(20 * 0.8e12))
    assert "468 mm of 508 mm of rim" in findings(one)["shoreline"].sentence
    # what Tesla has does not fit, with its store or without
    for changes in ({}, {"store_bytes": 0.0, "store_bytes_per_s": 0.0}):
        assert not findings(replace(tile, **changes))["shoreline"].passes
    assert not findings(replace(one, edge_bytes_per_s=15e12))["shoreline"].passes


def test_a_die_may_lie_either_way_on_the_reticle():
    assert findings(wafer(die_width_mm=33, die_height_mm=26))["reticle"].passes
    assert findings(wafer(die_width_mm=26, die_height_mm=33))["reticle"].passes
    assert not findings(wafer(die_width_mm=27, die_height_mm=27))["reticle"].passes
    assert not findings(wafer(die_width_mm=5, die_height_mm=33.1))["reticle"].passes


def test_silicon_and_power_are_those_of_the_die():
    found, one = estimate(wafer()), wafer()
    die = Silicon(wafer_design_of(one), dt.hardware.technology("7nm"))
    assert float(found.die_share) == pytest.approx(float(die.area_mm2) / 480)
    parts = die.power_parts(PEAK)
    parts["links"] = np.asarray(4e12 * 8e-12)
    assert float(found.wafer_power_w) == pytest.approx(6 * float(sum(parts.values())))
    assert findings(one)["power"].value == pytest.approx(float(found.wafer_power_w) / 1000)
    # a spare die is one that may be dead: it needs no power
    assert float(estimate(replace(one, spare_dies=2)).wafer_power_w) == pytest.approx(4 * float(found.peak_power_w))


def test_published_figures_go_before_estimates():
    known = wafer(die=DIE | {"area_mm2": 300, "tdp_w": 90})
    for end in ("value", "low", "high"):
        found = estimate(known, end=end)
        assert float(found.die_area_mm2) == pytest.approx(300)
        assert float(found.die_power_w) == pytest.approx(90)
        assert float(found.peak_power_w) == pytest.approx(90 + 1e12 * found.numbers.hbm_energy_j_per_byte)
    area = findings(wafer(die=DIE | {"area_mm2": 300}))
    assert area["die"].value == pytest.approx(300 / 480)
    # leakage goes with the area that is published
    more = 6 * 0.07 * (300 - float(estimate(wafer()).area_mm2)) / 1000
    assert area["power"].value == pytest.approx(findings(wafer())["power"].value + more)


def test_yield_by_hand():
    one = wafer()
    found = estimate(one)
    assert found.site_yield == pytest.approx(0.98**4)  # a die and three stacks
    assert findings(one)["yield"].value == pytest.approx(0.5 / 0.98**24)
    spare = findings(replace(one, spare_dies=1))["yield"]
    p = 0.98**4
    assert spare.value == pytest.approx(0.5 / (p**6 + 6 * p**5 * (1 - p)))
    stays = wafer(integration=JOINED | {"monolithic": True})
    area = float(found.area_mm2)
    works = (1 + area * 0.00095 / 3) ** -3
    assert float(estimate(stays).die_yield) == pytest.approx(works)
    assert findings(stays)["yield"].value == pytest.approx(0.5 / works**6)
    assert float(found.monolithic_yield) == pytest.approx(works**6)
    assert float(estimate(stays).known_good_yield) == pytest.approx(0.99**24)  # the technology's bonds


def test_spare_cores_save_dies():
    more = estimate(wafer(die=DIE | {"on_die": {"vector_cores": 104}}))
    assert float(more.unharvested_yield) < float(more.die_yield) < 1
    parts = more.area_parts
    cores = sum(float(parts[name]) for name in ("tensor", "vector", "core memory")) * 0.00095
    rest = float(more.area_mm2) * 0.00095 - cores
    assert float(more.die_yield) == pytest.approx(_by_integration(cores, rest, 4, 3.0), rel=1e-6)


def _by_integration(cores: float, rest: float, spare: int, alpha: float) -> float:
    """No defect in the rest and at most so many in cores, over a gamma-distributed rate of mean one."""
    rates = np.linspace(0, 12, 20_001)
    weight = alpha**alpha / math.gamma(alpha) * rates ** (alpha - 1) * np.exp(-alpha * rates)
    few = sum((cores * rates) ** j * np.exp(-cores * rates) / math.factorial(j) for j in range(spare + 1))
    return float(np.trapezoid(weight * few * np.exp(-rest * rates), rates))


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 3), st.floats(0, 2), st.integers(0, 8), st.sampled_from([2.0, 3.0]))
def test_harvesting_is_the_mixed_poisson_distribution(cores, rest, spare, alpha):
    found = float(harvested_yield(np.asarray(cores), np.asarray(rest), np.asarray(spare), alpha))
    assert found == pytest.approx(_by_integration(cores, rest, spare, alpha), rel=1e-5)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.05, 1), st.integers(1, 60), st.integers(0, 20))
def test_spare_dies_are_the_binomial_tail(works, sites, spare):
    exact = sum(math.comb(sites, k) * (1 - works) ** k * works ** (sites - k) for k in range(min(spare, sites) + 1))
    assert float(sites_yield(np.asarray(works), np.asarray(sites), np.asarray(spare))) == pytest.approx(exact, rel=1e-9)


def test_spare_dies_of_arrays():
    works, sites, spare = np.asarray([0.9, 0.5, 1.0]), np.asarray([4.0, 4000.0, 10.0]), np.asarray([0.0, 2100.0, 3.0])
    found = sites_yield(works, sites, spare)
    assert found[0] == pytest.approx(0.9**4)
    assert found[1] == pytest.approx(0.9992, abs=3e-4)  # half of 4,000 and three deviations more
    assert found[2] == 1


#: A change of the file, and the rules it makes no easier.
HARDER: list[tuple[dict[str, Any], set[str]]] = [
    ({"rows": 3}, {"area", "power", "yield"}),
    ({"cols": 4}, {"area", "power", "yield"}),
    ({"die_width_mm": 22}, {"area", "reticle", "wire"}),
    ({"gap_mm": 2}, {"area", "wire"}),
    ({"d2d_bytes_per_s": "2 TB/s"}, {"shoreline", "power", "die"}),
    ({"edge_bytes_per_s": "90 TB/s"}, {"shoreline"}),
    ({"die": DIE | {"hbm_stacks": 5}}, {"area", "wire", "shoreline", "die", "yield"}),
    ({"die": DIE | {"clock_hz": "2 GHz", "dense_flops": {"bf16": "25.6 TFLOPS"}}}, {"power"}),
    ({"die": DIE | {"core_sram_bytes": "1 MiB"}}, {"die", "power"}),
    ({"die": DIE | {"tensor_cores": 200, "vector_cores": 200, "dense_flops": {"bf16": 2.56e13}}}, {"die", "power"}),
    ({"power_limit_w": 900}, {"power"}),
    ({"width_mm": 100}, {"area"}),
    ({"least_yield": 0.9}, {"yield"}),
]


@pytest.mark.parametrize(("change", "rules"), HARDER, ids=lambda part: str(sorted(part))[:40])
def test_more_is_never_easier(change, rules):
    before, after = findings(wafer()), findings(wafer(**change))
    # a higher die carries less on each millimetre of its edge, a wider rim more: those are not listed
    assert {rule for rule in RULES if after[rule].value > before[rule].value} >= rules
    assert not {rule for rule in rules if after[rule].value < before[rule].value}


@pytest.mark.parametrize("name", dt.hardware.wafer_names())
def test_the_value_lies_between_the_ends(name):
    for finding in checked(dt.hardware.wafer(name)):
        assert finding.low <= finding.value * (1 + 1e-9)
        assert finding.value <= finding.high * (1 + 1e-9)
        assert finding.passes == (finding.value <= finding.limit)
        assert finding.certain == ((finding.low <= 1) == (finding.high <= 1))
        assert finding.sentence
        assert finding.source


#: What the check finds infeasible, and what of that no choice of coefficients mends.
INFEASIBLE = {
    "wse-3-like": (set(), set()),
    "watos-buildable": (set(), set()),
    "dojo-buildable": (set(), set()),
    "dojo-tile": ({"shoreline"}, set()),
    "watos-like": ({"die", "shoreline", "power", "yield"}, set()),
    "temp-like": ({"die", "shoreline", "power", "yield"}, {"power"}),
}


@pytest.mark.parametrize("name", INFEASIBLE)
def test_what_is_wrong_with_published_wafers(name):
    found = checked(dt.hardware.wafer(name))
    broken = {finding.rule for finding in found if not finding.passes}
    assert (broken, {f.rule for f in found if not f.passes and f.certain}) == INFEASIBLE[name]


@pytest.mark.parametrize("name", [*(n for n in dt.hardware.wafer_names() if n.endswith("buildable")), "wse-3-like"])
def test_wafers_of_the_studies_keep_every_rule(name):
    assert all(finding.passes for finding in checked(dt.hardware.wafer(name)))
    assert any("Ours" in why or "ours" in why or "from memory" in why for _, why in dt.hardware.wafer(name).doubts)


def test_48_dies_of_900_watts_are_43_kilowatts():
    one = dt.hardware.wafer("temp-like")
    found = estimate(one)
    assert one.dies * float(found.die_power_w) == pytest.approx(43.2e3)
    assert findings(one)["power"].sentence.startswith("48 dies of 964 W with memory and links are 46.3 kW of 23 kW")
    assert findings(dt.hardware.wafer("dojo-tile"))["power"].value == pytest.approx(25 * 400 / 15_000)


def test_a_few_spare_dies_mend_the_yield():
    one = dt.hardware.wafer("watos-like")
    assert not findings(one)["yield"].passes
    assert findings(replace(one, spare_dies=4))["yield"].passes


def test_the_check_needs_a_technology():
    bare = {key: value for key, value in DIE.items() if key != "technology"}
    with pytest.raises(InputError, match=r"^wafer small: die.technology: is missing; give the die a technology"):
        dt.hardware.technology_of(wafer(die=bare))
    assert check(wafer(die=bare), dt.hardware.technology("5nm"))
