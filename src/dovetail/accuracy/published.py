"""The published runs shipped with the package, and how the score that later versions must match is recorded."""

from __future__ import annotations

import datetime
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path

from dovetail.accuracy.rows import MeasuredRuns, read_runs
from dovetail.accuracy.scoreboard import Scoreboard


def published_runs() -> MeasuredRuns:
    """The measured runs from papers, benchmark tables and logs, each with its source."""
    with as_file(_data("published_runs.csv")) as path:
        return read_runs(path)


def write_scoreboard_record(path: Path | str, scoreboard: Scoreboard) -> None:
    """Writes the figures that later versions must match, with today's date."""
    regret, left_out = scoreboard.ranking.mean_regret, scoreboard.left_one_family_out
    assert regret is not None, "the published runs have plans to rank"
    assert left_out is not None, "the shipped numbers come with those fitted without each family"
    lines = (
        "# The shipped calibration's score on published_runs.csv, as fractions; written by write_scoreboard_record.",
        f"macro_mape: {scoreboard.macro.mape:.6f}",
        f"left_out_macro_mape: {left_out.macro.mape:.6f}",
        f"macro_p90: {scoreboard.macro.p90_ape:.6f}",
        f"left_out_macro_p90: {left_out.macro.p90_ape:.6f}",
        f"mean_regret: {regret:.6f}",
        f"date: {datetime.datetime.now(datetime.UTC).date().isoformat()}",
    )
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _data(name: str) -> Traversable:
    return files("dovetail.accuracy") / "data" / name
