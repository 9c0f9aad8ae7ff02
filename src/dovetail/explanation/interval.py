"""How far a predicted step time may be from a measured one, by the errors on published runs."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from dovetail.cost.calibration import calibration
from dovetail.cost.recorded_score import scoreboard_record
from dovetail.hardware import Cluster
from dovetail.models import Job


@dataclass(frozen=True, slots=True)
class Interval:
    """Where nine in ten measured step times would be, by the errors on published runs."""

    low_s: float
    high_s: float
    error: float
    """nine in ten runs are predicted closer than this part of what was measured, mean over families"""
    left_out: bool
    """the error is that of runs whose family the calibration has not seen"""
    date: datetime.date
    """of the scoreboard"""


def prediction_interval(step_time_s: float, job: Job, cluster: Cluster) -> Interval:
    """A chip with runs of its own is predicted as the fitted runs are, another as those of families left out."""
    record = scoreboard_record()
    left_out = calibration(cluster.chip, job.precision).basis not in ("own", "fitted")
    error = record.left_out_macro_p90 if left_out else record.macro_p90
    # errors are relative to what was measured: measured = predicted / (1 ± error)
    return Interval(step_time_s / (1 + error), step_time_s / (1 - error), error, left_out, record.date)
