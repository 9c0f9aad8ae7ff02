"""How far predictions with the shipped calibration are from published runs, as last recorded beside it."""

from __future__ import annotations

import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable

from dovetail.documents import Spec, parse_document, validate


class ScoreboardRecord(Spec):
    """Figures of a scoreboard over the published runs, as fractions."""

    macro_mape: float
    """of step time, mean over families"""
    left_out_macro_mape: float
    """the same with every family predicted by a fit to the others"""
    macro_p90: float
    """90th percentile, mean over families"""
    left_out_macro_p90: float
    mean_regret: float
    """over groups of plans measured under equal conditions"""
    date: datetime.date


def scoreboard_record(file: Traversable | None = None) -> ScoreboardRecord:
    """The last recorded score of the shipped calibration on the published runs, or the record in another file."""
    shipped = files("dovetail.cost") / "data" / "scoreboard.yaml"
    text = (file or shipped).read_text(encoding="utf-8")
    return validate(ScoreboardRecord, parse_document(text, "scoreboard"), "scoreboard")
