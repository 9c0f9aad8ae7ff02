"""The scoreboard: figures over hand-made predictions, what kinds of memory count, what is refused."""

from __future__ import annotations

import datetime
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import read, run

from dovetail.accuracy import (
    MeasuredRun,
    MeasuredRuns,
    Prediction,
    Refusal,
    errors_of,
    predict,
    prediction_of,
    score,
    write_scoreboard_record,
)
from dovetail.accuracy.scoreboard import Scoreboard, fields, reasons
from dovetail.cost.recorded_score import scoreboard_record
from dovetail.errors import InputError
from dovetail.step.evaluate import evaluate

FIGURES = {"mape", "median_ape", "p90_ape", "bias"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> MeasuredRun:
    return run(tmp_path_factory.mktemp("runs"), peak_memory_bytes="1e10", memory_kind="reserved")


def made(plain: MeasuredRun, ratio: float, id_: str = "", family: str = "ours", **changes: float | None) -> Prediction:
    """A prediction of the plain run that is off by a ratio."""
    measured = replace(plain, id=id_, family=family)
    values: dict[str, float | None] = {"memory_bytes": None, "missing_share": 0.0} | changes
    return Prediction(measured, ratio * plain.step_time_s, fits=True, provenance={}, **values)  # type: ignore[arg-type]


def board(*answers: Prediction | Refusal, **options: object) -> Scoreboard:
    runs = tuple(a.run for a in answers if isinstance(a, Prediction))
    return score(MeasuredRuns(len(answers) + 2, len(answers), runs, ()), answers, **options)  # type: ignore[arg-type]


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=30))
def test_figures_over_ratios(ratios):
    found = errors_of(ratios)
    sizes = sorted(abs(ratio - 1) for ratio in ratios)
    last = len(sizes) - 1

    def quantile(share: float) -> float:
        below = int(share * last)
        above = min(below + 1, last)
        return sizes[below] + (share * last - below) * (sizes[above] - sizes[below])

    assert found.rows == len(ratios)
    assert found.mape == pytest.approx(sum(sizes) / len(sizes))
    assert found.median_ape == pytest.approx(quantile(0.5), abs=1e-12)
    assert found.p90_ape == pytest.approx(quantile(0.9), abs=1e-12)
    assert found.bias == pytest.approx(sum(ratios) / len(ratios) - 1, abs=1e-12)


def test_the_headline_gives_every_family_the_same_weight(plain):
    many = [made(plain, 1.1, family="large") for _ in range(9)]
    found = board(*many, made(plain, 0.5, family="small"))
    assert found.step_time.mape == pytest.approx((9 * 0.1 + 0.5) / 10)
    assert found.macro.mape == pytest.approx((0.1 + 0.5) / 2)
    assert found.macro.bias == pytest.approx((0.1 - 0.5) / 2)
    assert (found.families, found.macro.rows) == (2, 10)
    assert {name: part.rows for name, part in found.by["family"].items()} == {"large": 9, "small": 1}


def test_memory_is_scored_per_kind(plain):
    device = replace(plain, memory_kind="device")
    answers = [
        made(plain, 1.0, memory_bytes=1.2e10),
        made(plain, 1.0, memory_bytes=0.6e10),
        replace(made(plain, 1.0, memory_bytes=2e10), run=device),
        made(plain, 1.0),
    ]
    found = board(*answers).memory
    assert set(found) == {"reserved", "device"}
    assert (found["reserved"].rows, found["device"].rows) == (2, 1)
    assert found["reserved"].mape == pytest.approx(0.3)
    assert found["reserved"].bias == pytest.approx(-0.1)
    assert found["device"].mape == pytest.approx(1.0)


def test_what_a_measurement_sees_of_memory(plain):
    task = plain.task
    evaluation = evaluate(task.plan, task.job, task.cluster, task.framework, energy=False)
    stages = (
        {"weights": 50.0, "allocator": 1.0, "context": 2.0},
        {"weights": 40.0, "allocator": 30.0, "context": 2.0},
        {"weights": 10.0, "allocator": 5.0, "context": 90.0},
    )
    evaluation = replace(evaluation, memory_by_stage=stages, usable_bytes=84.0)
    kinds = ("allocated", "reserved", "device")
    seen = [prediction_of(replace(plain, memory_kind=kind), evaluation).memory_bytes for kind in kinds]
    assert seen == [50.0, 70.0, 105.0]
    assert prediction_of(replace(plain, memory_kind=None), evaluation).memory_bytes is None
    assert prediction_of(plain, evaluation).missing_share == pytest.approx((105 - 84) / 84)


def test_a_prediction_is_the_evaluation_of_the_runs_plan(plain):
    (found,) = predict([plain])
    assert isinstance(found, Prediction)
    task = plain.task
    evaluation = evaluate(task.plan, task.job, task.cluster, task.framework, energy=False)
    assert found.step_time_s == pytest.approx(evaluation.step_time_s, rel=1e-12)
    assert found.fits == evaluation.fits
    assert found.step_time_ratio == pytest.approx(evaluation.step_time_s / 1.5)
    assert found.memory_bytes == pytest.approx(
        max(sum(parts.values()) - parts["context"] for parts in evaluation.memory_by_stage)
    )
    assert found.provenance == evaluation.provenance


def test_a_run_that_cannot_be_evaluated_is_refused(plain, monkeypatch):
    def refuse(*_: object) -> None:
        raise InputError("plan", "is odd", "make it even")

    monkeypatch.setattr(sys.modules[predict.__module__], "step_at", refuse)
    assert predict([plain]) == (Refusal("plain", "ours", "plan: is odd; make it even."),)


def test_refusals_of_reading_and_of_evaluating_stand_together(plain, tmp_path):
    measured = read(tmp_path, {"id": "good"}, {"id": "unread", "chip": "abacus"}, {"id": "skipped", "tier": "C"})
    answer = Refusal("unevaluated", "ours", "odd.")
    found = score(measured, [made(plain, 1.0, "good"), answer])
    assert (found.rows_read, found.rows_used) == (3, 1)
    assert [r.id for r in found.refused] == ["unread", "unevaluated"]
    assert fields(found)["rows"]["refused"][1] == {"id": "unevaluated", "reason": "odd."}


def test_reasons_are_counted(plain):
    refused = [Refusal(id_, "ours", reason) for id_, reason in (("a", "x"), ("b", "y"), ("c", "y"))]
    assert reasons(refused) == [("y", ("b", "c")), ("x", ("a",))]


def test_nothing_to_score_is_one_sentence(tmp_path, refusal):
    assert "tier" in refusal(score, read(tmp_path, {"tier": "C"}), ())
    assert "abacus" in refusal(score, read(tmp_path, {"chip": "abacus"}), ())


def test_runs_said_not_to_fit_count_beyond_a_tolerance(plain):
    shares = {"fits": 0.0, "nearly": 0.02, "beyond": 0.021, "far": 1.5}
    found = board(*(made(plain, 1.0, id_, missing_share=share) for id_, share in shares.items()))
    assert found.called_infeasible == {"beyond": 0.021, "far": 1.5}
    assert found.by["chip"]["a100-80gb"].called_infeasible == 2


def test_the_worst_groups_come_first_and_are_ten(plain):
    found = board(*(made(plain, 1 + number / 100, family=f"family {number}") for number in range(12)))
    assert [group.family for group in found.worst] == [f"family {number}" for number in range(11, 1, -1)]
    assert (found.worst[0].chip, found.worst[0].model) == ("a100-80gb", "GPT-small")
    assert found.worst[0].step_time.mape == pytest.approx(0.11)


def test_runs_are_split_by_what_is_asked_for(plain):
    published_model = replace(plain, architecture="llama-3-8b", family="")
    found = board(made(plain, 1.2), replace(made(plain, 1.2), run=published_model))
    names = {key: list(parts) for key, parts in found.by.items()}
    assert names == {
        "family": ["ours", "unnamed"],
        "chip": ["a100-80gb"],
        "framework": ["megatron-2022"],
        "model": ["GPT-small", "llama-3-8b"],
    }
    answer = fields(found, "model")
    assert answer["grouped_by"] == "model"
    assert answer["by"].keys() == {"GPT-small", "llama-3-8b"}


def test_json_has_the_fields_others_rely_on(plain):
    answer = fields(board(made(plain, 1.2, memory_bytes=1e10), Refusal("a", "ours", "odd.")))
    assert answer["rows"].keys() >= {"read", "used", "refused"}
    assert answer["step_time"].keys() >= FIGURES
    assert answer["macro"].keys() >= FIGURES
    assert answer["memory"]["reserved"].keys() >= FIGURES
    assert answer["ranking"].keys() >= {"groups", "mean_regret", "max_regret", "kendall_tau"}
    assert answer["by"]["ours"]["rows"] == 1
    assert answer["by"]["ours"]["step_time"]["mape"] == pytest.approx(0.2)
    assert "left_one_family_out" not in answer


def test_families_left_out_of_a_fit_are_scored_beside(plain):
    answers = [made(plain, 1.0, "a", "large"), made(plain, 1.0, "b", "large"), made(plain, 1.0, "c", "small")]
    left_out = {
        p.run.id: made(plain, ratio, p.run.id, p.run.family) for p, ratio in zip(answers, (1.1, 1.3, 2.0), strict=True)
    }
    found = fields(board(*answers, left_out=left_out))
    assert found["macro"]["mape"] == pytest.approx(0.0)
    assert found["left_one_family_out"]["step_time"]["mape"] == pytest.approx(1.4 / 3)
    assert found["left_one_family_out"]["macro"]["mape"] == pytest.approx((0.2 + 1.0) / 2)


def test_a_record_is_read_as_written(plain, tmp_path):
    plans = [replace(plain.task, plan=replace(plain.task.plan, micro_batch=size)) for size in (1, 2, 4)]
    answers = [replace(made(plain, 1.25), run=replace(plain, task=task)) for task in plans]
    left_out = {plain.id: made(plain, 1.5)}
    write_scoreboard_record(tmp_path / "scoreboard.yaml", board(*answers, left_out=left_out))
    record = scoreboard_record(tmp_path / "scoreboard.yaml")
    assert (record.macro_mape, record.left_out_macro_mape, record.mean_regret) == (0.25, 0.5, 0.0)
    assert (record.macro_p90, record.left_out_macro_p90) == (0.25, 0.5)
    assert abs(record.date - datetime.datetime.now(datetime.UTC).date()) <= datetime.timedelta(days=1)


def test_a_family_alone_on_its_chip_or_framework_is_transfer(plain):
    task = plain.task
    elsewhere = replace(task, cluster=replace(task.cluster, chip=replace(task.cluster.chip, name="other-chip")))
    runs = [("a", "one", task), ("b", "two", task), ("c", "two", elsewhere), ("d", "three", elsewhere)]
    answers = [
        replace(made(plain, 1.0, id_, family), run=replace(plain, id=id_, family=family, task=own))
        for id_, family, own in [*runs, ("e", "four", replace(task, framework=replace(task.framework, name="own")))]
    ]
    by = board(*answers).by["family"]
    assert {name: part.transfer for name, part in by.items()} == {"one": 0, "two": 0, "three": 0, "four": 1}
