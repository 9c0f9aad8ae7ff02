"""Reasons of studies against all designs planned by hand: runner-ups, gains, limits, parts, and the step's parts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from study_brute_force import every_design

import dovetail as dt
from dovetail import frameworks
from dovetail.documents import to_yaml
from dovetail.explanation.study_reasons import PointReasons, StudyReasons, study_reasons
from dovetail.exploration.study import Study
from dovetail.hardware import Chip, Cluster
from dovetail.hardware.catalogue import space_from
from dovetail.hardware.network import fit_tiers

ROUNDING = 1e-9
STUDY: dict[str, Any] = {
    "name": "written",
    "jobs": [
        {"model": "gpt2-1.5b", "seq_len": 1024, "global_batch": 64, "weight": 3},
        {"name": "reader", "model": "bert-large", "seq_len": 512, "global_batch": 64},
    ],
    "hardware": {
        "base": "h100-sxm",
        "vary": {"hbm_stacks": [4, 5], "tensor_cores": [264, 528], "clock_hz": ["1.2 GHz", "1.5 GHz", "1.8 GHz"]},
        "limits": ["hbm_stacks > 4 or clock_hz < 1.7 * GHz", "clock_hz <= 1.9 * GHz"],
    },
    "cluster": {"chips": [16, 32], "framework": "ideal"},
    "plans": {
        "tensor_parallel": [1],
        "context_parallel": [1],
        "pipeline_parallel": [1],
        "micro_batch": [1],
        "zero_stage": [0],
        "recompute": ["none"],
    },
    "limits": {"area_mm2": 840.0, "total_power_w": 18000.0},
    "objectives": ["tokens_per_dollar"],
}


def reasons_of(study: dict[str, Any], folder: Any, **options: Any) -> tuple[dt.Study, StudyReasons]:
    path = folder / "study.yaml"
    path.write_text(to_yaml(study))
    loaded = Study.load(path)
    return loaded, study_reasons(loaded.run(folder / "run"), **options)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    return reasons_of(STUDY, tmp_path_factory.mktemp("reasons"))


def test_runner_ups_are_the_next_best_of_all_designs(answered):
    _, reasons = answered
    (point,) = reasons.points
    every = sorted(every_design(STUDY).tried, key=lambda each: -each.values["tokens_per_dollar"])
    best, *others = [each.values["tokens_per_dollar"] for each in every]
    assert point.objectives["tokens_per_dollar"] == pytest.approx(best, rel=ROUNDING)
    values = {(each.design, each.chips): each.values["tokens_per_dollar"] for each in every}
    told = point.runner_ups
    shown = [each.objectives["tokens_per_dollar"] for each in told.designs]
    assert shown == sorted(shown, reverse=True)
    for each in told.designs:
        assert each.objectives["tokens_per_dollar"] == pytest.approx(
            values[each.numbers["design"], each.numbers["chips"]], rel=ROUNDING
        )
        assert each.losses["tokens_per_dollar"] == pytest.approx(best / each.objectives["tokens_per_dollar"] - 1)
    # no design that is not told is better than what is said of all others
    assert told.others_lose is not None
    untold = {(each.numbers["design"], each.numbers["chips"]) for each in told.designs}
    untold.add((point.numbers["design"], point.numbers["chips"]))
    rest = [value for key, value in values.items() if key not in untold]
    assert all(best / value - 1 >= told.others_lose - ROUNDING for value in rest if value < shown[-1])
    assert shown[0] == pytest.approx(others[0], rel=ROUNDING)


def test_runner_ups_say_in_which_variables_they_differ(answered):
    study, reasons = answered
    (point,) = reasons.points
    space = study.space

    def described(numbers: Any) -> dict[str, Any]:
        designs = space.designs([numbers["design"]])
        return {**{name: float(designs.value(name)[0]) for name in space.variables}, "chips": numbers["chips"]}

    best = described(point.numbers)
    for each in point.runner_ups.designs:
        here = described(each.numbers)
        assert each.differs == {name: (best[name], here[name]) for name in best if best[name] != here[name]}


def planned(study: dict[str, Any], chip: Chip, chips: int, price: float) -> float | None:
    """Tokens per dollar of a chip with the fastest plans, worked out by hand."""
    seconds = tokens = 0.0
    for asked in study["jobs"]:
        job = dt.Job(dt.models.load(asked["model"]), seq_len=asked["seq_len"], global_batch=asked["global_batch"])
        space = dt.Space(**{name: tuple(value) for name, value in study["plans"].items()})
        cluster = Cluster("by hand", chip, chips, fit_tiers(chip.tiers, chips, "by hand"))
        best = dt.plan(job, cluster, frameworks.load("ideal"), space=space).evaluation
        if best is None:
            return None
        weight = asked.get("weight", 1.0) / 4
        seconds, tokens = seconds + weight * best.step_time_s, tokens + weight * job.tokens_per_step
    return tokens / (chips * price * seconds / (4 * 365.25 * 86400))


def test_gains_are_those_of_changed_designs_planned_by_hand(answered):
    _, reasons = answered
    (point,) = reasons.points
    chips = point.numbers["chips"]
    whole = space_from({"name": "by-hand", **STUDY["hardware"]}, "by hand")
    own = {name: float(whole.designs([point.numbers["design"]]).value(name)[0]) for name in whole.variables}
    seen, broken = set[str](), set[str]()
    for change in point.gains.changes:
        values = {**own, **{name: after for name, (_, after) in change.values.items() if name != "chips"}}
        number = int(change.values["chips"][1]) if "chips" in change.values else chips
        space = space_from(
            {"name": "one", "base": "h100-sxm", "vary": {n: [int(v) if v == int(v) and n != "clock_hz" else v]
             for n, v in values.items()}}, "one",
        )  # fmt: skip
        designs = space.designs([0])
        price = float(space.values("system_cost_usd", designs)[0])
        figure = planned(STUDY, space.chip(0), number, price)
        assert (change.gains is None) == (figure is None)
        if figure is not None and change.gains is not None:
            expected = figure / point.objectives["tokens_per_dollar"] - 1
            assert change.gains["tokens_per_dollar"] == pytest.approx(expected, abs=1e-9)
        area, power = (float(space.values(name, designs)[0]) for name in ("area_mm2", "peak_power_w"))
        either, clock = STUDY["hardware"]["limits"]
        within = {
            "area_mm2": area <= 840,
            "total_power_w": power * number <= 18000,
            either: values["hbm_stacks"] > 4 or values["clock_hz"] < 1.7e9,
            clock: values["clock_hz"] <= 1.9e9,
        }
        assert set(change.breaks) == {name for name, is_within in within.items() if not is_within}
        broken |= set(change.breaks)
        assert change.more["area_mm2"] == pytest.approx(area - point.silicon["area_mm2"])
        seen.add(change.words)
    assert {"tensor_cores +10 %", "clock_hz +10 %"} <= seen
    assert any(words.startswith("chips next") for words in seen)
    assert broken, "some change breaks a limit"


def test_a_limit_on_searches_leaves_changes_out(answered, tmp_path):
    _, reasons = answered
    assert reasons.searches > 4
    _, fewer = reasons_of(STUDY, tmp_path, most_searches=4)
    (point,) = fewer.points
    assert fewer.searches <= 4
    assert point.gains.left_out
    told = [each.words for each in point.gains.changes]
    (whole,) = reasons.points
    assert {*told, *point.gains.left_out} == {each.words for each in whole.gains.changes}


def test_parts_add_up_and_limits_are_used_as_far_as_they_say(answered):
    _, reasons = answered
    (point,) = reasons.points
    for name, parts in point.parts.items():
        assert sum(parts.values()) == pytest.approx(point.silicon[name])
    limits = {limit.name: limit for limit in point.limits}
    area, power = limits["area_mm2"], limits["total_power_w"]
    assert (area.used, area.limit) == (pytest.approx(point.silicon["area_mm2"]), 840)
    assert power.used == pytest.approx(point.silicon["peak_power_w"] * point.numbers["chips"])
    assert power.share == pytest.approx(power.used / 18000)
    either, clock = (limits[text] for text in STUDY["hardware"]["limits"])
    assert (either.within, either.share) == (True, None)
    assert (clock.limit, clock.within) == (1.9e9, True)
    check_stops(point)


def check_stops(point: PointReasons) -> None:
    """Limits stop what gains and breaks them."""
    for limit in point.limits:
        expected = [c.words for c in point.gains.changes if c.largest_gain >= 0.001 and limit.name in c.breaks]
        assert list(limit.stops) == expected


@pytest.mark.slow
def test_wafers_have_reasons_too(tmp_path):
    study = {
        "name": "wafers",
        "jobs": [{"model": "gpt3-1.3b", "seq_len": 1024, "global_batch": 24}],
        "hardware": {
            "wafer": "watos-like",
            "set": {"die_width_mm": "24 mm", "vector_cores": 128, "power_limit_w": "4 kW", "core_sram_bytes": "1 MiB"},
            "vary": {"grid_rows": [1, 3], "grid_cols": [2, 4], "hbm_stacks": [0, 1], "spare_dies": [0, 3]},
            "derive": {"tensor_cores": "vector_cores"},
        },
        "cluster": {"framework": "megatron"},
        "plans": {**STUDY["plans"], "recompute": ["none", "full"], "zero_stage": [0, 1]},
    }
    _, reasons = reasons_of(study, tmp_path)
    (point,) = json.loads(json.dumps(reasons.as_json, allow_nan=False))["points"]
    assert {"grid_rows", "grid_cols", "hbm_stacks"} <= {each["name"] for each in point["gains"]["changes"]}
    assert {limit["name"] for limit in point["limits"]} >= {"die_share <= 1", "power_share <= 1"}
    assert all(limit["within"] for limit in point["limits"])


def test_the_parts_of_a_step_are_the_step_and_operators_its_computation(answered):
    _, reasons = answered
    (point,) = reasons.points
    assert point.jobs.keys() == {"gpt2-1.5b", "reader"}
    for job in point.jobs.values():
        assert sum(job.seconds.values()) == pytest.approx(job.step_time_s)
        assert sum(job.bound_by.values()) == pytest.approx(1)
        assert all(0 <= each.roof_share <= 1 for each in job.operators)
        longest = [each.seconds for each in job.operators]
        assert longest == sorted(longest, reverse=True)


@pytest.mark.slow
def test_what_a_change_gains_of_the_worst_regret_is_that_of_each_scenario_alone(tmp_path):
    followed = "a100-80gb"
    hardware = {**STUDY["hardware"], "limits": []}
    alone = {**STUDY, "objectives": ["step_time"], "jobs": STUDY["jobs"][:1], "hardware": hardware}
    alone["cluster"] = {**STUDY["cluster"], "chips": 16}
    study, reasons = reasons_of({**alone, "scenarios": [{"name": "other", "calibrated_as": followed}]}, tmp_path)
    (point,) = reasons.points
    own = {name: float(study.space.designs([point.numbers["design"]]).value(name)[0]) for name in hardware["vary"]}

    def best_s(asked: dict[str, Any]) -> float:
        (tmp_path / "alone.yaml").write_text(to_yaml({**alone, "hardware": asked, "limits": {}}))
        return Study.load(tmp_path / "alone.yaml").run().document["best"]["objectives"]["step_time"]

    kinds = [hardware, {**hardware, "calibrated_as": followed}]
    optima = [best_of(alone | {"hardware": kind}, tmp_path) for kind in kinds]
    for change in point.gains.changes:
        values = {**own, **{name: after for name, (_, after) in change.values.items()}}
        vary = {name: [value if name == "clock_hz" else int(value)] for name, value in values.items()}
        worst = max(best_s({**kind, "vary": vary}) / best for kind, best in zip(kinds, optima, strict=True))
        assert change.objectives is not None
        assert change.objectives["worst_ratio"] == pytest.approx(worst, rel=ROUNDING)
        assert change.gains is not None
        assert change.gains["worst_ratio"] == pytest.approx(point.objectives["worst_ratio"] / worst - 1, abs=1e-9)


def best_of(study: dict[str, Any], folder: Any) -> float:
    """The best step time within the limits."""
    (folder / "best.yaml").write_text(to_yaml(study))
    return Study.load(folder / "best.yaml").run().document["best"]["objectives"]["step_time"]
