"""Studies against every design of small spaces, each planned by itself: the best, and the whole front."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from random_studies import random_study
from study_brute_force import SMALL, Answers, Document, every_design

import dovetail as dt
from dovetail.documents import to_yaml
from dovetail.exploration.result import StudyResult
from dovetail.exploration.study import Study
from dovetail.plans.plan_file import task_of

#: Every design is planned: spaces are small in CI, larger on command.
FEW_DESIGNS, MANY_DESIGNS = 24, 300
#: Sums are taken in another order here.
ROUNDING = 1e-9

#: A study that is written out and not drawn: two jobs, two numbers of chips, limits, links of the chip itself.
WRITTEN: dict[str, Any] = {
    "name": "written",
    "jobs": [
        {"model": "gpt2-1.5b", "seq_len": 1024, "global_batch": 64, "weight": 3},
        {"name": "reader", "model": "llama-3.2-1b", "seq_len": 512, "global_batch": 64},
    ],
    "hardware": {
        "base": "h100-sxm",
        "vary": {
            "hbm_stacks": [3, 5],
            "link_ports": [6, 18],
            "tensor_cores": [264, 528],
            "clock_hz": ["1.2 GHz", "1.5 GHz", "1.8 GHz"],
        },
        "limits": ["hbm_stacks > 3 or clock_hz < 1.7 * GHz"],
    },
    "cluster": {"chips": [16, 32], "framework": "megatron"},
    "plans": {
        "tensor_parallel": [1, 2],
        "context_parallel": [1],
        "pipeline_parallel": [1],
        "micro_batch": [1],
        "zero_stage": [0],
        "recompute": ["none"],
    },
    "limits": {"area_mm2": 840.0, "total_power_w": 18000.0},
    "objectives": ["step_time", "tokens_per_joule", "tokens_per_dollar", "area"],
}


def explored(study: Document, folder: Path, **search: int) -> StudyResult:
    path = folder / "study.yaml"
    path.write_text(to_yaml({**study, "search": {**study.get("search", {}), **search}}))
    return Study.load(path).run()


def no_worse(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(mine <= theirs * (1 + ROUNDING) for mine, theirs in zip(one, other, strict=True))


def better_in_one(one: Sequence[float], other: Sequence[float]) -> bool:
    return any(mine < theirs * (1 - ROUNDING) for mine, theirs in zip(one, other, strict=True))


def costs_of(point: dict[str, Any]) -> tuple[float, ...]:
    return tuple(value if name in SMALL else 1 / value for name, value in point["objectives"].items())


def check(study: Document, answers: Answers, result: StudyResult) -> None:
    """Nothing better exists, nothing is missing, and every figure is that of the design itself."""
    objectives, found = study["objectives"], result.pareto_front()
    designs = {(each.design, each.chips): each for each in answers.tried}
    points = [costs_of(point) for point in found]
    for point in found:
        tried = designs[point["design"], point["chips"]]
        assert list(point["objectives"]) == list(objectives)
        assert point["objectives"] == pytest.approx({name: tried.values[name] for name in objectives}, rel=ROUNDING)
        assert {name: job["step_time_s"] for name, job in point["jobs"].items()} == pytest.approx(tried.step_s)
    for tried in answers.tried:
        costs = tried.costs(objectives)
        assert any(no_worse(point, costs) for point in points), f"{tried} is not on the front, nor beaten"
    for position, point in enumerate(points):
        others = [*points[:position], *points[position + 1 :]]
        beaten = [other for other in others if no_worse(other, point) and better_in_one(other, point)]
        assert not beaten, f"{point} is on the front beside {beaten}"
        assert point not in others
    check_counts(answers, result)


def check_counts(answers: Answers, result: StudyResult) -> None:
    counts, certificate = result.document["counts"], result.certificate
    assert counts["kept"] == answers.kept
    assert counts["designs"] >= counts["kept"] >= counts["physical"] >= counts.get("profile", 0)
    assert counts["kept"] >= counts["searched"] >= counts["evaluated"] >= len(result.pareto_front())
    assert certificate["status"] == ("optimal" if answers.tried else "infeasible")
    assert certificate["gap"] == (0.0 if answers.tried else None)


def fronts(results: Sequence[StudyResult]) -> list[list[tuple[float, ...]]]:
    return [sorted(costs_of(point) for point in result.pareto_front()) for result in results]


@pytest.fixture(scope="module")
def answers() -> Answers:
    """Of the study that is written out, tried once for all tests: objectives differ between them, designs do not."""
    return every_design(WRITTEN)


@pytest.mark.parametrize(
    "objectives",
    [
        ("step_time",),
        ("tokens_per_joule",),
        ("tokens_per_dollar",),
        ("area",),
        ("step_time", "area"),
        ("tokens_per_dollar", "tokens_per_joule"),
        ("area", "step_time", "tokens_per_joule"),
        ("step_time", "tokens_per_joule", "tokens_per_dollar", "area"),
    ],
)
def test_the_front_is_that_of_all_designs(objectives, answers, tmp_path):
    study = {**WRITTEN, "objectives": list(objectives)}
    assert 30 <= len(answers.tried) <= answers.kept <= 45
    check(study, answers, explored(study, tmp_path))


def test_neither_window_nor_batch_changes_the_front(answers, tmp_path):
    study = {**WRITTEN, "objectives": ["step_time", "area"]}
    results = [explored(study, tmp_path, window=window, batch=batch) for window, batch in ((1, 1), (2, 5), (50, 50))]
    found = fronts(results)
    assert found[0] == found[1] == found[2]
    assert len({result.document["counts"]["searched"] for result in results}) > 1, "they would differ if anything did"
    check(study, answers, results[0])


#: The slowest of these links alone would make every step longer than it is.
LINKS = {"link_ports": [1, 18], "link_port_bytes_per_s": ["0.2 GB/s", "25 GB/s"], "clock_hz": ["1.2 GHz", "1.8 GHz"]}
FAST = {"name": "fast", "topology": "switch", "bytes_per_s": "800 GB/s", "latency_s": "1 us"}


@pytest.mark.parametrize("tiers", [None, [FAST]])
def test_the_links_of_a_chip_count_unless_the_study_has_a_network(tiers, tmp_path):
    cluster = {"chips": 16, "framework": "megatron"} | ({} if tiers is None else {"tiers": tiers})
    study = {**WRITTEN, "cluster": cluster, "hardware": {"base": "h100-sxm", "vary": LINKS}, "limits": {}}
    answers = every_design(study)
    assert len({round(each.values["step_time"], 9) for each in answers.tried}) == (2 if tiers else 8)
    for objectives in (["step_time"], ["step_time", "tokens_per_dollar"], ["tokens_per_joule", "area"]):
        asked = {**study, "objectives": objectives}
        check(asked, answers, explored(asked, tmp_path))


def sampled(study: Document, folder: Path, method: str, evaluations: int) -> StudyResult:
    search = {"method": method, "evaluations": evaluations, "batch": 3}
    return explored({**study, "cluster": {**study["cluster"], "chips": 16}, "search": search}, folder)


@pytest.mark.parametrize("method", ["random", "evolutionary"])
def test_samples_of_all_designs_give_the_front_of_all_designs(method, answers, tmp_path):
    study = {**WRITTEN, "objectives": ["step_time", "area"]}
    result = sampled(study, tmp_path, method, 1000)
    tried = [each for each in answers.tried if each.chips == 16]
    points = [costs_of(point) for point in result.pareto_front()]
    for each in tried:
        assert any(no_worse(point, each.costs(study["objectives"])) for point in points)
    designs = {each.design: each.values for each in tried}
    for point in result.pareto_front():
        assert point["objectives"] == pytest.approx(
            {name: designs[point["design"]][name] for name in point["objectives"]}
        )


@pytest.mark.parametrize("objective", ["step_time", "tokens_per_joule"])
def test_what_some_designs_prove_of_all_is_true(objective, answers, tmp_path):
    study = {**WRITTEN, "objectives": [objective]}
    result = sampled(study, tmp_path, "random", 3)
    costs = [each.costs([objective])[0] for each in answers.tried if each.chips == 16]
    (found,) = costs_of(result.pareto_front()[0])
    certificate = result.certificate
    shown = certificate["lower_bound"]
    # of what a design costs at least nothing is known: no number is said to bound tokens per joule
    bound = shown if objective in SMALL else 0.0 if shown is None else 1 / shown
    assert bound <= min(costs) <= found * (1 + ROUNDING)
    assert certificate["status"] == "feasible"
    assert certificate["gap"] == pytest.approx(1 - bound / found)


#: One objective to four, every kind of limit; in some no plan fits on most designs, or formats differ between them.
SEEDS = (0, 1, 2, 3, 12, 13)
MORE_SEEDS = (6, 9, 11, 15, 16, 17, 21)


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MORE_SEEDS)])
def test_random_studies_are_answered_as_by_trying_all_designs(seed, tmp_path):
    study = random_study(seed, FEW_DESIGNS)
    check(study, every_design(study), explored(study, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 112))
def test_larger_random_studies_are_answered_as_by_trying_all_designs(seed, tmp_path):
    study = random_study(seed, MANY_DESIGNS)
    results = [explored(study, tmp_path), explored(study, tmp_path, window=1, batch=1)]
    check(study, every_design(study), results[0])
    assert fronts(results)[0] == fronts(results)[1]


def test_a_plan_of_the_front_takes_as_long_as_it_says(tmp_path):
    study = random_study(3, 8)
    result = explored(study, tmp_path)
    point = result.pareto_front()[0]
    for name, found in point["jobs"].items():
        task = task_of(result.plan_file(point, name), "point")
        again = dt.evaluate(task.plan, task.job, task.cluster, task.framework)
        assert again.fits
        assert again.step_time_s == found["step_time_s"]
        assert found["lower_bound_s"] <= found["step_time_s"]
