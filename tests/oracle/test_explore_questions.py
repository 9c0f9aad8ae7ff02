"""Every form of question a study may ask, against every design planned by itself and the formula computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from question_brute_force import (
    Document,
    Planned,
    cost_of,
    name_of,
    planned,
    units_of,
    value_of,
)

from dovetail.exploration.resolving import study_of
from dovetail.exploration.result import StudyResult
from dovetail.exploration.study import Study

#: Sums are taken in another order here.
ROUNDING = 1e-9

READER = {"name": "reader", "model": "gpt2-1.5b", "seq_len": 512, "global_batch": 8}
WRITER = {"name": "writer", "model": "gpt3-1.3b", "seq_len": 256, "global_batch": 16, "weight": 3}
GPU = {
    "name": "gpu",
    "base": "h100-sxm",
    "vary": {"tensor_cores": [264, 528], "hbm_stacks": [4, 5], "clock_hz": ["1.2 GHz", "1.83 GHz"]},
}
ARRAY = {
    "name": "array",
    "base": "a100-80gb",
    "vary": {"tensor_cores": [432, 864], "clock_hz": ["1.1 GHz", "1.41 GHz"]},
}
ASKED: dict[str, Any] = {
    "name": "asked",
    "jobs": [READER],
    "hardware": GPU,
    "cluster": {"chips": 8, "framework": "ideal"},
    "plans": {
        "tensor_parallel": [1],
        "context_parallel": [1],
        "pipeline_parallel": [1],
        "virtual_stages": [1],
        "micro_batch": [1],
        "zero_stage": [0],
        "recompute": ["none"],
        "recompute_share": [1.0],
        "axis_order": ["tp-cp-dp-pp"],
        "partition": "even",
    },
    "objectives": ["step_time"],
}
TWO_JOBS = {**ASKED, "jobs": [READER, WRITER]}


def explored(study: Document) -> StudyResult:
    return Study(**vars(study_of(study, "study.yaml"))).run()


def place_of(study: Document, point: Document) -> tuple[str, int, int]:
    """Where a point of a result stands: its kind of hardware, design and number of chips."""
    kinds = study["hardware"] if isinstance(study["hardware"], list) else [study["hardware"]]
    kind = point.get("chip") or point.get("space") or kinds[0].get("name", kinds[0]["base"])
    return kind, point["design"], point["chips"]


def check(study: Document) -> tuple[StudyResult, list[Planned]]:
    """The best has the least figure of all designs, a front no more and no less than it must; figures are its own."""
    points = planned(study)
    units = units_of(study, points)
    able = {point.place: point for point in points if point.within}
    objectives = study["objectives"]
    costs = {
        place: tuple(cost_of(each, value_of(study, each, point, units)) for each in objectives)
        for place, point in able.items()
    }
    result = explored(study)
    assert result.certificate["status"] == "optimal"
    assert result.certificate["gap"] == 0
    found = result.pareto_front()
    for point in found:
        place = place_of(study, point)
        expected = {name_of(each): value_of(study, each, able[place], units) for each in objectives}
        assert point["objectives"] == pytest.approx(expected, rel=ROUNDING)
        steps = {name: plan.step_time_s for name, plan in able[place].plans.items()}
        assert {name: job["step_time_s"] for name, job in point["jobs"].items()} == steps
    check_front(costs, [costs[place_of(study, point)] for point in found])
    return result, points


def check_front(costs: dict[Any, tuple[float, ...]], front: Sequence[tuple[float, ...]]) -> None:
    """Every design is no better than a point; no point is beaten by a design."""
    assert len(set(front)) == len(front) > 0
    for each in costs.values():
        assert any(all(a <= b * (1 + ROUNDING) for a, b in zip(point, each, strict=True)) for point in front)
    for point in front:
        for each in costs.values():
            no_worse = all(b <= a for a, b in zip(point, each, strict=True))
            assert not (no_worse and any(b < a * (1 - ROUNDING) for a, b in zip(point, each, strict=True)))


def formula(text: str, better: str) -> dict[str, str]:
    return {"name": "own", "formula": text, "better": better}


DEAR = {"usd_per_kwh": 0.4, "pue": 1.3, "life_years": 6}
NAMED_OBJECTIVES: list[tuple[str, dict[str, Any]]] = [
    ("step_time", {}),
    ("tokens_per_joule", {}),
    ("tokens_per_dollar", {"life_years": 2}),
    ("tokens_per_dollar", DEAR),
    ("tokens_per_s_per_w", {}),
    ("tokens_per_s_per_mm2", {}),
    ("area", {}),
]


@pytest.mark.parametrize(("objective", "prices"), NAMED_OBJECTIVES)
def test_a_named_objective_is_its_formula(objective, prices):
    check({**ASKED, "objectives": [objective], "prices": prices})


FORMULAS = [
    ("tokens_per_s / cost_usd", "most"),
    ("step_s ** 2 * area_mm2", "least"),
    # it bends: below 41 ms all take as long
    ("max(step_s, 0.041) * peak_power_w + step_s", "least"),
    ("step_s * hbm_stacks if clock_hz > 1.5e9 else 2 * step_s * hbm_stacks", "least"),
]
MORE = [
    ("sqrt(step_s * energy_j) * total_price_usd", "least"),
    ("tokens_per_s ** 3 / (total_area_mm2 * total_power_w)", "most"),
    ("cost_usd * chips / hbm_stacks", "least"),
    ("1 / (energy_j * usd_per_joule + step_s * total_price_usd / life_s)", "most"),
]


@pytest.mark.parametrize(
    ("text", "better"), [*FORMULAS, *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE)]
)
def test_a_formula_of_ones_own_is_computed(text, better):
    check({**ASKED, "objectives": [formula(text, better)], "prices": DEAR})


def test_a_front_with_a_formula_holds_every_design_that_nothing_beats():
    own = formula("tokens_per_s / cost_usd", "most")
    result, _ = check({**ASKED, "objectives": ["step_time", own]})
    assert len(result.pareto_front()) > 1
    bent = formula("max(step_s, 0.041) * peak_power_w", "least")
    check({**ASKED, "objectives": [bent, "tokens_per_dollar"], "prices": DEAR})


@pytest.mark.parametrize("objective", [pytest.param("step_time", marks=pytest.mark.slow), "tokens_per_dollar"])
def test_the_best_of_two_kinds_of_hardware_in_two_numbers(objective):
    cluster = {"chips": [4, 8], "framework": "ideal"}
    study = {**ASKED, "hardware": [GPU, ARRAY], "cluster": cluster, "objectives": [objective], "prices": DEAR}
    _, points = check(study)
    assert len({(point.kind, point.chips) for point in points}) == 4


def test_a_front_over_two_kinds_of_hardware():
    study = {**ASKED, "hardware": [ARRAY, GPU], "objectives": ["tokens_per_s_per_mm2", "tokens_per_joule"]}
    check(study)


def check_references(study: Document, result: StudyResult, points: Sequence[Planned]) -> None:
    """Each chip to compare with has a row of its own figures."""
    units = units_of(study, points)
    chips = {point.place: point for point in points if point.reference}
    rows = {(row["chip"], 0, row["chips"]): row for row in result.document["references"]}
    assert rows.keys() == chips.keys()
    for place, row in rows.items():
        values = {name_of(each): value_of(study, each, chips[place], units) for each in study["objectives"]}
        assert row["objectives"] == pytest.approx(values, rel=ROUNDING)
        assert row["within_limits"] == chips[place].within


@pytest.mark.parametrize(
    ("limits", "wins"),
    [({}, True), ({"area_mm2": 850.0}, False)],
)
def test_a_chip_to_compare_with_wins_if_it_is_better_and_keeps_the_limits(limits, wins):
    study = {**ASKED, "hardware": ARRAY, "candidates": ["h100-sxm", "a100-40gb"], "limits": limits}
    result, points = check(study)
    check_references(study, result, points)
    (best,) = result.pareto_front()
    assert (best.get("chip") == "h100-sxm") == wins


@pytest.mark.parametrize(
    "objective",
    [
        "tokens_per_dollar",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("step_time", "tokens_per_joule", "area")),
    ],
)
def test_a_design_equal_to_a_chip_ties_with_it(objective):
    same = {"name": "same", "base": "h100-sxm", "vary": {"hbm_stacks": [5], "clock_hz": ["1.3 GHz", "1.83 GHz"]}}
    study = {**ASKED, "hardware": same, "candidates": ["h100-sxm"], "objectives": [objective], "prices": DEAR}
    result, points = check(study)
    check_references(study, result, points)
    chip, design = ([p for p in points if p.place == place] for place in (("h100-sxm", 0, 8), ("same", 1, 8)))
    assert value_of(study, objective, chip[0], {}) == value_of(study, objective, design[0], {})


MEANS: list[tuple[dict[str, str], str]] = [
    ({"mean": "geometric"}, "tokens_per_joule"),
    ({"relative_to": "own"}, "tokens_per_joule"),
]
MORE_MEANS = [
    ({"relative_to": "a100-80gb"}, "step_time"),
    ({"mean": "arithmetic"}, "step_time"),
    ({"mean": "arithmetic"}, "tokens_per_joule"),
    ({"mean": "geometric"}, "step_time"),
    ({"relative_to": "own"}, "step_time"),
    ({"relative_to": "a100-80gb"}, "tokens_per_dollar"),
    ({"mean": "geometric", "relative_to": "own"}, "step_time"),
    ({"mean": "geometric", "relative_to": "a100-80gb"}, "tokens_per_joule"),
]


@pytest.mark.parametrize(
    ("over_jobs", "objective"), [*MEANS, *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE_MEANS)]
)
def test_several_jobs_are_one_number(over_jobs, objective):
    few = {**GPU, "vary": {"tensor_cores": [264, 396, 528]}}
    study = {**TWO_JOBS, "hardware": few, "over_jobs": over_jobs, "objectives": [objective]}
    if over_jobs.get("relative_to") not in (None, "own"):
        study["candidates"] = [over_jobs["relative_to"]]
    check(study)


@pytest.mark.parametrize(
    "limits",
    [
        {"rack_power_w": 3500.0, "rack_chips": 8},
        {"domain_chips": 4},
        pytest.param({"rack_power_w": 1700.0, "rack_chips": 4, "domain_chips": 8}, marks=pytest.mark.slow),
        pytest.param({"total_power_w": 2500.0, "area_mm2": 840.0}, marks=pytest.mark.slow),
    ],
)
def test_limits_of_racks_and_domains_leave_out_designs(limits):
    study = {**ASKED, "cluster": {"chips": [4, 8], "framework": "ideal"}, "limits": limits}
    _, points = check(study)
    assert 0 < len(points) < 16, "some are left out"
