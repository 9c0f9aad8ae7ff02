"""Runs that fitted or ran out of memory, and peaks of Megatron: figures of the model that may not get worse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.accuracy import read_runs
from dovetail.accuracy.outcomes import PredictedOutcome, predict_outcomes
from dovetail.cli import main

SHARED = Path(__file__).parents[2] / "../shared/data"
#: Measured, with half a point to spare.
MOST_OOM_CALLED_FITS, MOST_FITS_CALLED_OOM, MOST_BRIER = 0.29, 0.018, 0.06
MiB = 2**20


def collected(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"../shared/data/{name} is not here")
    return path


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.echo", lambda text="", **_: printed.append(text))
        with pytest.raises(SystemExit) as ended:
            main(["validate", "--runs", str(collected("fit_outcomes.csv")), "--json"])
    assert ended.value.code == 0
    return json.loads("\n".join(printed))


def test_nearly_every_outcome_is_expressed(answer):
    fit, refused = answer["fit"], len(answer["rows"]["refused"])
    assert fit["rows"] >= 0.85 * (fit["rows"] + refused)
    called = ("fits_called_fits", "fits_called_oom", "oom_called_fits", "oom_called_oom")
    assert sum(fit[name] for name in called) == fit["rows"]


def test_mistakes_with_the_family_left_out(answer):
    fit = answer["fit"]
    assert fit["macro_oom_called_fits"] <= MOST_OOM_CALLED_FITS
    assert fit["macro_fits_called_oom"] <= MOST_FITS_CALLED_OOM
    assert fit["brier"] <= MOST_BRIER


def test_p_fits_is_about_how_often_runs_fit(answer):
    for each in answer["fit"]["reliability"]:
        if each["rows"] >= 20:
            assert each["fits_share"] == pytest.approx(each["mean_probability"], abs=0.17)


@pytest.mark.slow
def test_peaks_of_megatrons_functional_tests():
    answers = predict_outcomes(read_runs(collected("megatron_golden_peaks.csv")).outcomes)
    predicted = [a for a in answers if isinstance(a, PredictedOutcome) and a.memory_ratio is not None]
    wide = [p for p in predicted if p.outcome.task.job.model.hidden >= 1024]
    small = [p for p in predicted if p not in wide]
    assert len(wide) == 3
    assert all(p.memory_ratio == pytest.approx(1, abs=0.05) for p in wide)
    off = [abs((p.memory_ratio or 0) - 1) * (p.outcome.peak_memory_bytes or 0) for p in small]
    assert sum(bytes_off <= 200 * MiB for bytes_off in off) >= 0.88 * len(off)
