"""How far a predicted step time may be from a measured one, by the errors on published runs and what is assumed."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass

from dovetail.cost.calibration import calibration
from dovetail.cost.recorded_score import scoreboard_record
from dovetail.hardware import Cluster
from dovetail.models import Job

#: Nine in ten of normally distributed figures are within so many standard deviations.
NINE_IN_TEN = 1.645


@dataclass(frozen=True, slots=True)
class Interval:
    """Where nine in ten measured step times would be, by the errors on published runs and what is assumed."""

    low_s: float
    high_s: float
    error: float
    """nine in ten runs are predicted closer than this part of what was measured, mean over families"""
    left_out: bool
    """the error is that of runs whose family the calibration has not seen"""
    spread: float
    """the part of the error by which what products sustain may differ, where it is assumed for the chip; else 0"""
    date: datetime.date
    """of the scoreboard"""


def prediction_interval(step_time_s: float, job: Job, cluster: Cluster) -> Interval:
    """A chip with runs of its own is predicted as the fitted runs are, another as those of families left out.

    Where no run is known of its generation either, what is assumed of its products adds its spread.
    """
    record, known = scoreboard_record(), calibration(cluster.chip, job.precision)
    left_out = known.basis not in ("own", "fitted")
    spread = NINE_IN_TEN * known.spread
    error = math.hypot(record.left_out_macro_p90 if left_out else record.macro_p90, spread)
    # errors are relative to what was measured: measured = predicted / (1 ± error)
    return Interval(step_time_s / (1 + error), step_time_s / (1 - error), error, left_out, spread, record.date)
