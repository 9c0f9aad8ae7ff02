"""Least worst regret against every design tried in every scenario."""

from __future__ import annotations

from typing import Any

import pytest
from question_brute_force import Document, worst_regrets
from test_explore_questions import ARRAY, ASKED, GPU, ROUNDING, TWO_JOBS, explored, formula, place_of

FEW = {**GPU, "vary": {"tensor_cores": [264, 528], "hbm_stacks": [3, 5]}}
CHEAP = {"name": "cheap", "prices": {"usd_per_kwh": 0.02}}
DEAR = {"name": "dear", "prices": {"usd_per_kwh": 1.5, "pue": 1.5, "life_years": 8}}
POOR = {"name": "poor", "coefficients": "high"}
RICH = {"name": "rich", "coefficients": "low"}
LATE = {"name": "late", "technology": "7nm"}
OTHER = {"name": "other", "calibrated_as": "mi300x"}


def check(study: Document) -> None:
    """The best design's worst regret is the least of all, and every regret is what trying all designs tells."""
    regrets = worst_regrets(study)
    worst = {place: max(each.values()) for place, each in regrets.items()}
    result = explored(study)
    best, certificate = result.document["best"], result.certificate
    place = place_of(study, best)
    assert 1 + best["worst_regret"] == pytest.approx(1 + min(worst.values()), rel=ROUNDING)
    assert 1 + worst[place] == pytest.approx(1 + min(worst.values()), rel=ROUNDING)
    assert list(best["regrets"]) == ["as given", *(scenario["name"] for scenario in study["scenarios"])]
    assert best["regrets"] == pytest.approx(regrets[place], abs=ROUNDING)
    assert best["worst_regret"] == max(best["regrets"].values())
    assert certificate["status"] == "optimal"
    assert certificate["gap"] == 0
    assert certificate["lower_bound"] <= best["worst_regret"]
    assert [each["name"] for each in result.document["scenarios"]] == list(best["regrets"])


SCENARIOS = [[OTHER, DEAR]]
MORE = [[CHEAP, DEAR], [OTHER, POOR], [POOR, RICH], [LATE], [LATE, OTHER, DEAR, CHEAP]]


@pytest.mark.parametrize(
    "scenarios",
    [*SCENARIOS, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)],
    ids=lambda each: each[0]["name"],
)
def test_the_least_worst_regret_is_that_of_trying_all_designs(scenarios):
    study: dict[str, Any] = {**ASKED, "hardware": FEW, "objectives": ["tokens_per_dollar"], "scenarios": scenarios}
    check({**study, "prices": {"usd_per_kwh": 0.2}})


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective", ["step_time", "tokens_per_joule", formula("max(step_s, 0.041) * cost_usd", "least")]
)
def test_a_chip_to_compare_with_may_have_the_least_worst_regret(objective):
    study = {**ASKED, "hardware": [ARRAY, FEW], "objectives": [objective], "candidates": ["h100-sxm", "a100-40gb"]}
    check({**study, "scenarios": [OTHER, POOR]})


@pytest.mark.slow
def test_designs_that_break_a_limit_in_a_scenario_are_left_out():
    study = {**ASKED, "hardware": FEW, "objectives": ["tokens_per_joule"], "scenarios": [POOR, LATE]}
    check({**study, "limits": {"area_mm2": 1300.0}})


@pytest.mark.slow
def test_regret_of_several_jobs_together():
    study = {**TWO_JOBS, "hardware": FEW, "objectives": ["tokens_per_dollar"], "scenarios": [OTHER, DEAR]}
    check({**study, "over_jobs": {"mean": "geometric"}})
