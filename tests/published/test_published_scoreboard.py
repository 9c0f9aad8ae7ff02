"""The published runs that come with the package, and the score that no change may worsen unseen."""

from __future__ import annotations

import csv
import json
import re
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from dovetail.accuracy import left_out_predictions, predict, read_runs, score
from dovetail.accuracy.predict import Prediction
from dovetail.accuracy.ranking import plan_groups, regret
from dovetail.accuracy.rows import NEEDED, OPTIONAL, USABLE
from dovetail.cli import main
from dovetail.cost.recorded_score import scoreboard_record
from dovetail.step.ties import RATIO_ERROR, TIE_MARGIN

COMMITTED = files("dovetail.accuracy") / "data" / "published_runs.csv"
#: Where they were collected, with more columns and the runs that are not ours to hand on.
DATA = Path(__file__).parents[2] / "../shared/data"
COLLECTED = (DATA / "training_runs.csv", DATA / "training_runs_2.csv")
ABSENT = "../shared/data/training_runs.csv and training_runs_2.csv are not beside the repository"

MAX_BYTES = 600_000
#: By how much a figure may get worse: half a point.
TOLERANCE = 0.005


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    return list(csv.DictReader(COMMITTED.read_text(encoding="utf-8").splitlines()))


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """What the command says of the published runs."""
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.echo", lambda text="", **_: printed.append(text))
        with pytest.raises(SystemExit) as ended:
            main(["validate", "--json"])
    assert ended.value.code == 0
    return json.loads("\n".join(printed))


def test_every_run_has_a_source(rows):
    assert len(rows) > 400
    assert [row["id"] for row in rows if not row["source"] or not row["source_url"]] == []
    assert len({row["id"] for row in rows}) == len(rows)


def test_only_runs_that_are_scored_and_may_be_handed_on_are_committed(rows):
    assert {row["tier"] for row in rows} <= set(USABLE)
    assert [row["id"] for row in rows if "vtrain" in row["source_family"].casefold()] == []
    assert len({row["source_family"] for row in rows}) >= 14


def test_only_columns_that_are_read_are_committed(rows):
    of_outcomes = {"outcome", "train_kind", "optimizer", "memory_features", "memory_scope"}
    assert rows[0].keys() == {*NEEDED, *OPTIONAL, "source", "source_url"} - of_outcomes


def test_no_cell_names_a_place_on_a_machine(rows):
    path = re.compile(r"(^|[\s\"'(=])(/[a-z]|~/|[A-Z]:\\)")
    assert [(row["id"], cell) for row in rows for cell in row.values() if path.search(cell)] == []


def test_the_file_is_small():
    assert len(COMMITTED.read_bytes()) < MAX_BYTES


def test_cells_are_as_collected(rows):
    if not all(path.exists() for path in COLLECTED):
        pytest.skip(ABSENT)
    collected = [
        {column: row[column] for column in rows[0]}
        for path in COLLECTED
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        if row["tier"] in USABLE and not row["source_family"].startswith("vtrain-")
    ]
    assert rows == collected


def test_nearly_every_run_is_predicted(rows, answer):
    assert answer["rows"]["read"] == len(rows)
    assert answer["rows"]["used"] + len(answer["rows"]["refused"]) == len(rows)
    assert answer["rows"]["used"] >= 0.98 * len(rows)


def test_accuracy_is_no_worse_than_recorded(answer):
    record = scoreboard_record()
    assert answer["macro"]["mape"] <= record.macro_mape + TOLERANCE
    assert answer["left_one_family_out"]["macro"]["mape"] <= record.left_out_macro_mape + TOLERANCE
    assert answer["ranking"]["mean_regret"] <= record.mean_regret + TOLERANCE


def test_the_tie_margin_is_what_was_measured(answer):
    measured = answer["tie_margin"]["measured"]
    assert measured["left_out_median_ape"] == pytest.approx(RATIO_ERROR, abs=TOLERANCE)
    assert (measured["groups"], measured["pairs"]) == (48, 315)
    assert answer["tie_margin"]["margin"] == TIE_MARGIN == min(RATIO_ERROR, 0.03)


def test_plans_are_chosen_alike_from_8_to_1024_chips():
    if not all(path.exists() for path in COLLECTED):
        pytest.skip(ABSENT)
    runs = [run for run in read_runs(*COLLECTED).runs if run.id.startswith("internevo-7b-")]
    assert {8, 1024} <= {run.task.cluster.chips for run in runs}
    regrets = [
        regret(group) for group in plan_groups((each for each in predict(runs) if isinstance(each, Prediction)), 2)
    ]
    assert len(regrets) == 11
    assert fmean(regrets) < 0.01
    assert max(regrets) < 0.05


@pytest.mark.slow
def test_the_tie_margin_holds_for_all_collected_runs():
    if not all(path.exists() for path in COLLECTED):
        pytest.skip(ABSENT)
    measured = read_runs(*COLLECTED)
    answers = predict(measured.runs)
    ratios = score(measured, answers, left_out_predictions(answers)).ratios
    assert ratios is not None
    assert ratios.groups >= 44
    assert ratios.left_out_median_ape >= TIE_MARGIN
