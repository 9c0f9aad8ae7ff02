"""The accuracy page's part about simulation: both figures of every family, and groups where they differ."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.accuracy import MeasuredRun, MeasuredRuns, Prediction, published_runs, score
from dovetail.accuracy.simulated import Simulated, score_simulated
from dovetail.report.accuracy_page import BEGIN, END, write_accuracy_page
from dovetail.report.accuracy_tables import NONE
from dovetail.report.simulated_tables import simulated_tables

DATE = datetime.date(2031, 2, 3)


@pytest.fixture(scope="module")
def run() -> MeasuredRun:
    return replace(published_runs().runs[0], step_time_s=1.0)


def made(run: MeasuredRun, model: float, simulation: float, family: str) -> Simulated:
    of_model = Prediction(replace(run, family=family), model, None, fits=True, missing_share=0.0, provenance={})
    return Simulated(of_model, replace(of_model, step_time_s=simulation))


def cells(text: str, start: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_family_has_both_figures(run):
    text = simulated_tables(score_simulated([made(run, 1.2, 1.1, "ours"), made(run, 0.9, 1.3, "theirs")]))
    assert "**20.0 %** off (MAPE, mean over 2 families), where the model is 15.0 % off." in text
    assert cells(text, "ours |") == ["ours", "1", "20.0 %", "10.0 %", "+20.0 %", "+10.0 %", NONE, NONE]
    assert cells(text, "theirs |") == ["theirs", "1", "10.0 %", "30.0 %", "−10.0 %", "+30.0 %", NONE, NONE]
    assert cells(text, "**mean")[2:6] == ["15.0 %", "20.0 %", "+5.0 %", "+20.0 %"]
    helped, worse = text.split("Where it is further off")
    assert cells(helped.split("Where simulation helps")[1], "ours")[3:] == ["1", "20.0 %", "10.0 %", "−8.3 %"]
    assert cells(worse, "theirs")[3:] == ["1", "10.0 %", "30.0 %", "+44.4 %"]


def test_where_nothing_differs_no_group_is_named(run):
    text = simulated_tables(score_simulated([made(run, 1.2, 1.2, "ours")]))
    assert "helps" not in text
    assert "further off than" not in text


def test_the_page_of_tables_has_the_part_only_where_runs_were_simulated(run, tmp_path):
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    page, tables = (docs / "results" / name for name in ("accuracy.md", "accuracy-tables.md"))
    for path in (page, tables, tmp_path / "README.md"):
        path.write_text(f"{BEGIN}\n{END}\n")
    pair = made(run, 1.2, 1.1, "ours")
    measured = MeasuredRuns(1, 1, (pair.model.run,), ())
    scored = score(measured, [pair.model]), [pair.model], None, DATE
    write_accuracy_page(docs, measured, *scored)
    assert "## Simulated" not in tables.read_text()
    replayed = score_simulated([pair])
    write_accuracy_page(docs, measured, *scored, replayed)
    assert f"\n\n## Simulated\n\n{simulated_tables(replayed)}\n\n## What is scored\n" in tables.read_text()
    assert "Simulated" not in page.read_text()


def test_the_published_page_has_both_figures_of_every_family_of_the_tier():
    page = (Path(__file__).parents[3] / "docs" / "results" / "accuracy-tables.md").read_text(encoding="utf-8")
    _, part = page.split("## Simulated\n")
    part = part.split("\n## ")[0]
    families = {each.family for each in published_runs().runs if each.tier == "A"}
    assert [name for name in families if len(cells(part, f"{name} |")) != 8] == []
