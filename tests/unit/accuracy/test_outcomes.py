"""Outcomes: rows that fitted or ran out of memory, and the score of P(fits) with a family left out."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from small_runs import read, reason

from dovetail.accuracy.outcomes import PredictedOutcome, fit_fields, predict_outcomes, score_outcomes
from dovetail.accuracy.rows import MeasuredOutcome
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import evaluate


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> MeasuredOutcome:
    (outcome,) = read(tmp_path_factory.mktemp("ran"), {"outcome": "fits"}).outcomes
    return outcome


def predicted(outcome: MeasuredOutcome, family: str, *, fits: bool, margin: float, left_out: float) -> PredictedOutcome:
    said = replace(outcome, family=family, outcome="fits" if fits else "oom")
    return PredictedOutcome(said, 0.5, margin, None, left_out)


def test_a_row_with_an_outcome_needs_no_speed_and_one_with_both_counts_as_both(tmp_path):
    silent = {"outcome": "oom", "step_time_s": "", "tokens_per_s_per_chip": "", "tflops_per_chip": ""}
    measured = read(tmp_path, silent)
    assert (len(measured.runs), len(measured.refused)) == (0, 0)
    assert [each.outcome for each in measured.outcomes] == ["oom"]
    both = read(tmp_path, {"outcome": "fits", "step_time_s": "3"})
    assert (len(both.runs), len(both.outcomes)) == (1, 1)
    # what ran out of memory has no step time to predict
    assert read(tmp_path, {"outcome": "oom", "step_time_s": "3"}).runs == ()


def test_wrong_words_and_what_is_not_modelled_are_refused(tmp_path):
    assert "outcome: is 'maybe'" in reason(tmp_path, outcome="maybe")
    tiled = reason(tmp_path, outcome="fits", memory_features="tiled MLP")
    assert "memory_features: has a tiled MLP" in tiled
    assert "offload: is 'some of it'" in reason(tmp_path, outcome="fits", offload="some of it")
    assert "train_kind: is lora; rank and targets" in reason(tmp_path, outcome="fits", train_kind="lora")


def test_p_fits_is_the_evaluations_and_a_half_where_the_chip_is_just_full(ran):
    (answer,) = predict_outcomes([ran])
    assert isinstance(answer, PredictedOutcome)
    task = ran.task
    evaluation = evaluate(task.plan, task.job, task.cluster, task.framework)
    assert answer.probability == evaluation.fit_probability
    inside = evaluation.peak_bytes - evaluation.outside_bytes
    assert answer.margin == pytest.approx((evaluation.usable_bytes - evaluation.peak_bytes) / inside)
    assert evaluation.fit_probability == pytest.approx(logistic(answer.margin / evaluation.memory_error))
    assert (evaluation.fit_probability >= 0.98) == (
        evaluation.peak_bytes <= memory_limit(task.cluster.chip, task.framework)
    )


def test_counts_brier_and_means_over_families(ran):
    rows = [
        predicted(ran, "a", fits=True, margin=0.2, left_out=0.9),
        predicted(ran, "a", fits=True, margin=-0.1, left_out=0.4),
        predicted(ran, "a", fits=False, margin=0.1, left_out=0.6),
        predicted(ran, "b", fits=False, margin=-0.3, left_out=0.1),
        predicted(ran, "b", fits=True, margin=0.3, left_out=0.99),
    ]
    found = score_outcomes(rows)
    assert found is not None
    called = found.fits_called_fits, found.fits_called_oom, found.oom_called_fits, found.oom_called_oom
    assert called == (2, 1, 1, 1)
    assert found.brier == pytest.approx((0.1**2 + 0.6**2 + 0.6**2 + 0.1**2 + 0.01**2) / 5)
    assert found.macro_fits_called_oom == pytest.approx((1 / 2 + 0 / 1) / 2)
    assert found.macro_oom_called_fits == pytest.approx((1 / 1 + 0 / 1) / 2)
    assert sum(each.rows for each in found.reliability) == 5
    fields = fit_fields(found)
    assert fields is not None
    assert {"rows", "fits_called_fits", "fits_called_oom", "oom_called_fits", "oom_called_oom", "brier"} <= set(fields)
    assert score_outcomes([]) is None


def test_the_scale_of_errors_is_found_and_a_family_has_no_say_in_its_own(ran, monkeypatch):
    draw, scale = random.Random(1), 0.05  # noqa: S311
    margins: dict[str, float] = {}

    def drawn(family: str, number: int, *, wrong: bool) -> MeasuredOutcome:
        margin = draw.uniform(-0.25, 0.25)
        fits = draw.random() < logistic(margin / scale)
        name = f"{family}{number}"
        margins[name] = margin
        return replace(ran, id=name, family=family, outcome="fits" if fits is not wrong else "oom")

    honest = [drawn(family, number, wrong=False) for family in "abc" for number in range(400)]
    liar = [drawn("liar", number, wrong=True) for number in range(400)]
    monkeypatch.setattr("dovetail.accuracy.outcomes._margin", lambda _: 0.0)
    monkeypatch.setattr(
        "dovetail.accuracy.outcomes._predicted", lambda each: PredictedOutcome(each, 0.5, margins[each.id], None)
    )
    alone = [p for p in predict_outcomes(honest) if isinstance(p, PredictedOutcome)]
    score = score_outcomes(alone)
    assert score is not None
    assert score.error == pytest.approx(scale, rel=0.15)
    with_liar = [p for p in predict_outcomes([*honest, *liar]) if isinstance(p, PredictedOutcome)]
    fooled = {p.outcome.id: p.left_out for p in with_liar}
    # the others alone make P of the liar's rows; it spoils that of theirs
    for name in ("liar0", "liar1", "liar2"):
        assert fooled[name] == pytest.approx(logistic(margins[name] / score.error), abs=1e-6)
    assert abs(fooled["a0"] - 0.5) < abs(next(p.left_out for p in alone if p.outcome.id == "a0") - 0.5)
