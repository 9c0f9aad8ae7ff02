"""Bounds and the estimate of 1F1B against the exact step time: the ranges docs/explanation/pipeline.md states."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.pipeline import ChunkTimes, Pipeline, PipelineSchedule, lower_bound, step_time
from pipeline_bottleneck import bottleneck_bound, bottleneck_estimate

PLANS = 300
SIZES = [1, 2, 3, 4, 6, 8, 12, 16, 32, 64]

#: How stages differ, and the figures stated, over the exact step time: least `bottleneck_bound`, range of
#: `bottleneck_estimate`, least `lower_bound` with transfers of up to a tenth of a mean forward.
SPREADS = {
    "within 10 %": (lambda draw, size: draw.uniform(0.9, 1.1, size), 0.94, (1.00, 1.06), 0.98),
    "within 50 %": (lambda draw, size: draw.uniform(0.5, 1.5, size), 0.91, (1.00, 1.23), 0.98),
    "from 0 to 1": (lambda draw, size: draw.uniform(0.0, 1.0, size), 0.86, (0.92, 1.29), 0.95),
    "exponential": (lambda draw, size: draw.exponential(1.0, size), 0.67, (0.78, 1.30), 0.97),
}
STATED = 0.006  # two digits


def ratios(spread, transfer):
    draw = np.random.default_rng(0)
    found = []
    for p in SIZES:
        for m in SIZES:
            pipeline = Pipeline(PipelineSchedule.ONE_F_ONE_B, p, m)
            forward, backward = spread(draw, (PLANS, p)), 2 * spread(draw, (PLANS, p))
            links = transfer * draw.random((PLANS, p - 1)) * forward.mean()
            times = ChunkTimes(forward, backward, np.zeros(p), links)
            exact = step_time(pipeline, times)
            found.append([f(pipeline, times) / exact for f in (bottleneck_bound, bottleneck_estimate, lower_bound)])
    return np.concatenate(found, axis=1)


@pytest.mark.parametrize("name", SPREADS)
def test_stated_ranges_are_the_measured_ones(name):
    spread, least, (low, high), least_with_transfers = SPREADS[name]
    bound, estimate, tight = ratios(spread, 0.0)
    assert bound.min() == pytest.approx(least, abs=STATED)
    assert bound.max() <= 1 + 1e-12
    assert estimate.min() == pytest.approx(low, abs=STATED)
    assert estimate.max() == pytest.approx(high, abs=STATED)
    np.testing.assert_allclose(tight, 1.0, rtol=1e-11)
    assert ratios(spread, 0.1)[2].min() == pytest.approx(least_with_transfers, abs=STATED)


def test_ranges_have_no_floor():
    """Forwards that crowd one stage and backwards another: the wider the pipeline, the less the bottleneck says."""
    found = []
    for p in (4, 16, 64):
        pipeline = Pipeline(PipelineSchedule.ONE_F_ONE_B, p, p)
        forward, backward = np.zeros(p), np.zeros(p)
        forward[0], backward[1] = 1.0, 1.0
        times = ChunkTimes(forward, backward, np.zeros(p))
        exact = float(step_time(pipeline, times))
        found.append(float(bottleneck_bound(pipeline, times)) / exact)
        assert lower_bound(pipeline, times) == pytest.approx(exact, rel=1e-11)
        assert bottleneck_estimate(pipeline, times) == bottleneck_bound(pipeline, times)
    assert found == pytest.approx([5 / 7, 17 / 31, 65 / 127])


def test_the_estimate_is_up_to_a_third_high_where_backwards_take_twice_as_long():
    pipeline = Pipeline(PipelineSchedule.ONE_F_ONE_B, 64, 64)
    forward = np.array([3.0] + [1.0] * 63)
    times = ChunkTimes(forward, 2 * forward, np.zeros(64))
    assert step_time(pipeline, times) == 64 * 9
    assert float(bottleneck_estimate(pipeline, times)) / (64 * 9) == pytest.approx(1.328, abs=1e-3)


@pytest.mark.parametrize(
    ("schedule", "least_within_10", "least_within_50"),
    [
        (PipelineSchedule.INTERLEAVED, 0.95, 0.80),
        (PipelineSchedule.ZB_H1, 0.97, 0.90),
        (PipelineSchedule.DUAL_PIPE, 0.90, 0.85),
    ],
)
def test_other_schedules_lower_bounds_are_as_near_as_stated(schedule, least_within_10, least_within_50):
    draw = np.random.default_rng(0)
    for spread, least in ((0.1, least_within_10), (0.5, least_within_50)):
        for p in (2, 4, 8, 16):
            for rounds in (2, 3, 4, 8) if schedule is PipelineSchedule.DUAL_PIPE else (1, 2, 3, 4, 8):
                chunks = 2 if schedule is PipelineSchedule.INTERLEAVED else 1
                pipeline = Pipeline(schedule, p, rounds * p, chunks)
                f, b, w = draw.uniform(1 - spread, 1 + spread, (3, PLANS, pipeline.num_places))
                times = ChunkTimes(f, b, 0.8 * w, 0.05 * draw.random((PLANS, pipeline.num_links)))
                assert (lower_bound(pipeline, times) / step_time(pipeline, times)).min() > least
