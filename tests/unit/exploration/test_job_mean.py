"""Means over jobs, and what they leave one job: against sums and products written out."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.exploration.job_mean import JobMean

Kind = Literal["arithmetic", "geometric"]

KINDS = st.sampled_from(["arithmetic", "geometric"])
SECONDS = st.floats(1e-6, 1e6)
ROUNDING = 1e-9


def mean_of(kind: Kind, asked: list[tuple[float, float, float]]) -> tuple[JobMean, list[float]]:
    """A mean of jobs, each with its weight, its unit and seconds."""
    weights, units, seconds = zip(*asked, strict=True)
    return JobMean(kind, tuple(weight / sum(weights) for weight in weights), tuple(units)), list(seconds)


def by_hand(mean: JobMean, seconds: list[float]) -> float:
    terms = list(zip(seconds, mean.units, mean.weights, strict=True))
    if mean.kind == "arithmetic":
        return sum(weight * second / unit for second, unit, weight in terms)
    return math.prod((second / unit) ** weight for second, unit, weight in terms)


JOBS = st.lists(st.tuples(st.floats(0.01, 100), st.floats(1e-3, 1e3), SECONDS), min_size=1, max_size=5)


@settings(max_examples=60)
@given(kind=KINDS, asked=JOBS, factor=st.floats(1.0, 10.0))
def test_a_mean_is_that_written_out(kind, asked, factor):
    mean, seconds = mean_of(kind, asked)
    rows = np.array([seconds, [factor * second for second in seconds]])
    found = mean.of(rows)
    assert found == pytest.approx([by_hand(mean, row) for row in rows.tolist()], rel=ROUNDING)
    assert found[1] == pytest.approx(factor * found[0], rel=ROUNDING)
    assert mean.of(np.array([[math.inf, *seconds[1:]]])) == math.inf


@settings(max_examples=60)
@given(kind=KINDS, asked=JOBS, slack=st.floats(0.5, 4.0), data=st.data())
def test_what_is_left_for_a_job_keeps_the_mean_in_time(kind, asked, slack, data):
    mean, least = mean_of(kind, asked)
    number = data.draw(st.integers(0, len(least) - 1))
    latest = slack * by_hand(mean, least)
    (left,) = mean.left(np.array([latest]), np.array([least]), number)

    def with_job(seconds: float) -> float:
        return by_hand(mean, [*least[:number], seconds, *least[number + 1 :]])

    # a job that counts for little is rounded with all others
    rounding = ROUNDING * (latest + by_hand(mean, least)) * mean.units[number] / mean.weights[number]
    if kind == "geometric":
        rounding = ROUNDING * left / mean.weights[number]
    if left - rounding > 0:
        assert with_job(left - rounding) <= latest
    assert left + rounding <= 0 or with_job(left + rounding) >= latest


@pytest.mark.parametrize("kind", ["arithmetic", "geometric"])
def test_jobs_that_do_not_fit_or_take_no_time(kind):
    mean = JobMean(kind, (0.25, 0.75), (1.0, 2.0))
    latest, least = np.array([3.0, 3.0, np.inf]), np.array([[1.0, np.inf], [1.0, 0.0], [1.0, 1.0]])
    found = mean.left(latest, least, 0).tolist()
    assert found[0] == -math.inf, "the other job does not fit"
    assert found[1] == (12.0 if kind == "arithmetic" else math.inf)
    assert found[2] == math.inf, "anything is in time"
