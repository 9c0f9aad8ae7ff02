"""Scores files of measured runs with what ships and writes the accuracy page, dated today: `just accuracy`."""

import datetime
import sys
from pathlib import Path

from dovetail.accuracy import Prediction, left_out_predictions, predict, read_runs, score
from dovetail.accuracy.simulated import TIER, score_simulated, simulate_runs
from dovetail.report.accuracy_page import write_accuracy_page


def main(docs: Path, *runs: Path) -> None:
    """Writes the page and its plots into a folder of documents, and the table into the README beside it."""
    measured = read_runs(*runs)
    answers = predict(measured.runs)
    left_out = left_out_predictions(answers)
    replayed = simulate_runs(a for a in answers if isinstance(a, Prediction) and a.run.tier == TIER)
    today = datetime.datetime.now(datetime.UTC).date()
    scored = score(measured, answers, left_out), answers, left_out
    write_accuracy_page(docs, measured, *scored, today, score_simulated(replayed))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
