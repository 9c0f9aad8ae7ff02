"""Predictions against measured runs: reads runs as jobs, clusters and plans, and scores the predictions."""

from dovetail.accuracy.error_figures import Errors, errors_of, macro_average
from dovetail.accuracy.predict import Prediction, left_out_predictions, predict, prediction_of
from dovetail.accuracy.published import published_runs, write_scoreboard_record
from dovetail.accuracy.ranking import Ranking, rank
from dovetail.accuracy.rows import MeasuredRun, MeasuredRuns, Refusal, read_runs
from dovetail.accuracy.scoreboard import Scoreboard, score

__all__ = [
    "Errors",
    "MeasuredRun",
    "MeasuredRuns",
    "Prediction",
    "Ranking",
    "Refusal",
    "Scoreboard",
    "errors_of",
    "left_out_predictions",
    "macro_average",
    "predict",
    "prediction_of",
    "published_runs",
    "rank",
    "read_runs",
    "score",
    "write_scoreboard_record",
]
