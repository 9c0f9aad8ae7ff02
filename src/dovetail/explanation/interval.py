"""How far a predicted step time may be from a measured one, by the errors on published runs and what is assumed."""

from __future__ import annotations

import datetime
import math

from dovetail.cost.calibration import calibration
from dovetail.cost.recorded_score import scoreboard_record
from dovetail.cost.step_errors import errors_of_class, scale_of
from dovetail.frozen import frozen
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.hardware import Cluster
from dovetail.models import Job

#: Nine in ten of normally distributed figures are within so many standard deviations.
NINE_IN_TEN = 1.645


@frozen
class Interval:
    """Where nine in ten measured step times would be, by the errors on published runs and what is assumed."""

    low_s: float
    high_s: float
    runs: int
    """published runs whose errors it has, each predicted without those of its source"""
    of: str
    """what the job and these runs have in common; empty: nothing in particular"""
    spread: float
    """the part by which what products sustain may differ, where it is assumed for the chip; else 0"""
    date: datetime.date
    """of the scoreboard"""


def prediction_interval(step_time_s: float, job: Job, cluster: Cluster, framework: str) -> Interval:
    """Measured over predicted step time of the runs most like a job, each predicted without those of its source.

    Where no run is known of a chip's generation, what is assumed of its products adds its spread.
    """
    known = calibration(cluster.chip, job.precision)
    experts = any(EXPERT_TOKENS in o.dims for layer in job.graph().layers.values() for o in layer.operators)
    seen = "fitted" if known.basis in ("own", "fitted") else "transfer"
    alike = errors_of_class((seen, framework, experts, scale_of(cluster.chips)))
    low, high, spread = math.log(alike.low), math.log(alike.high), NINE_IN_TEN * known.spread
    middle, half = (low + high) / 2, math.hypot((high - low) / 2, spread)
    return Interval(
        step_time_s * math.exp(middle - half),
        step_time_s * math.exp(middle + half),
        alike.rows,
        alike.words,
        spread,
        scoreboard_record().date,
    )
