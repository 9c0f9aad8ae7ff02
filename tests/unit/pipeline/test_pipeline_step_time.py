"""Step times of hand-checked pipelines, shapes of plans, bounds and estimates."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.pipeline import (
    ChunkTimes,
    Pipeline,
    PipelineSchedule,
    in_flight,
    lower_bound,
    peak_in_flight,
    step_time,
    work_order,
)
from pipeline_bottleneck import bottleneck_bound, bottleneck_estimate
from pipeline_closed_form import closed_form, published_dual_pipe_bubble

ONE_F_ONE_B = PipelineSchedule.ONE_F_ONE_B
EACH = [
    Pipeline(PipelineSchedule.GPIPE, 4, 6),
    Pipeline(ONE_F_ONE_B, 4, 6),
    Pipeline(PipelineSchedule.INTERLEAVED, 4, 8, 3),
    Pipeline(PipelineSchedule.ZB_H1, 4, 6),
    Pipeline(PipelineSchedule.DUAL_PIPE, 4, 8),
]


def equal(pipeline, f, b, w, transfer=0.0):
    ones = np.ones(pipeline.num_places)
    return float(step_time(pipeline, ChunkTimes(f * ones, b * ones, w * ones, transfer)))


def test_one_stage_works_without_pause():
    for schedule in (PipelineSchedule.GPIPE, ONE_F_ONE_B, PipelineSchedule.ZB_H1):
        assert equal(Pipeline(schedule, 1, 5), 1, 2, 3) == 30
    assert equal(Pipeline(PipelineSchedule.INTERLEAVED, 1, 5, 2), 1, 2, 3, transfer=7.0) == 60


def test_two_unequal_stages_by_hand():
    # stage 0: F 1, B 2; stage 1: F 3, B 1. F1@0 0-1, F1@1 1-4, B1@1 4-5, F2@1 5-8, B2@1 8-9; B1@0 5-7, B2@0 9-11
    pipeline = Pipeline(ONE_F_ONE_B, 2, 2)
    times = ChunkTimes([1.0, 3.0], [2.0, 1.0], [0.0, 0.0])
    assert step_time(pipeline, times) == 11
    # half a second on the link delays F1, B2 and with them all that follows
    assert step_time(pipeline, ChunkTimes([1.0, 3.0], [2.0, 1.0], [0.0, 0.0], 0.5)) == 12


def test_transfers_slow_even_the_steady_state_of_one_f_one_b():
    # stage 0 holds two microbatches: a round trip of t + t + 2 c serves both, so each takes t + c
    pipeline = Pipeline(ONE_F_ONE_B, 2, 1000)
    assert equal(pipeline, 1, 1, 1, transfer=0.1) / 1000 == pytest.approx(3.1, rel=1e-2)


@pytest.mark.parametrize("pipeline", EACH, ids=lambda p: p.schedule)
def test_plans_are_independent_whatever_their_shape(pipeline):
    draw = np.random.default_rng(0)
    f, b, w = draw.random((3, 5, 7, 3, pipeline.num_places))
    links = draw.random((7, 1, pipeline.num_links))
    whole = step_time(pipeline, ChunkTimes(f, b, w, links))
    assert whole.shape == (5, 7, 3)
    for at in [(0, 0, 0), (4, 6, 2), (2, 3, 1)]:
        single = step_time(pipeline, ChunkTimes(f[at], b[at], w[at], links[at[1], 0]))
        assert single.shape == ()
        assert whole[at] == pytest.approx(float(single), rel=1e-12)
    assert step_time(pipeline, ChunkTimes(f[:0], b[:0], w[:0], links)).shape == (0, 7, 3)


@pytest.mark.parametrize("pipeline", EACH, ids=lambda p: p.schedule)
def test_longer_work_never_makes_a_step_shorter(pipeline):
    draw = np.random.default_rng(1)
    f, b, w = draw.random((3, pipeline.num_places))
    before = float(step_time(pipeline, ChunkTimes(f, b, w, 0.1)))
    for part in (f, b, w):
        for place in range(pipeline.num_places):
            part[place] += 0.5
            after = float(step_time(pipeline, ChunkTimes(f, b, w, 0.1)))
            assert after >= before
            before = after


def test_times_must_fit_the_pipeline():
    pipeline = Pipeline(ONE_F_ONE_B, 3, 3)
    with pytest.raises(AssertionError, match="2 times for 3 chunks"):
        step_time(pipeline, ChunkTimes([1.0, 1.0], [1.0, 1.0], [1.0, 1.0]))
    with pytest.raises(AssertionError, match="3 times for 2 chunks or links"):
        step_time(pipeline, ChunkTimes([1.0] * 3, [1.0] * 3, [1.0] * 3, [1.0] * 3))


def test_the_estimate_is_no_bound_in_either_direction():
    pipeline = Pipeline(ONE_F_ONE_B, 4, 4)
    # the first stage works without pause; what the others do fits beside it
    high = ChunkTimes([3.0, 1.0, 1.0, 1.0], [3.0, 1.0, 1.0, 1.0], [0.0] * 4)
    assert step_time(pipeline, high) == 24
    assert bottleneck_estimate(pipeline, high) == 30
    # four slow forwards before four slow backwards at the next stage
    low = ChunkTimes([4.0, 0.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0], [0.0] * 4)
    assert step_time(pipeline, low) == 28
    assert bottleneck_estimate(pipeline, low) == bottleneck_bound(pipeline, low) == 20
    assert lower_bound(pipeline, low) == pytest.approx(28, rel=1e-11)


def test_zb_h1_leaves_the_range_of_its_closed_form():
    # weight gradients longer than forwards no longer fit where 1F1B would wait
    pipeline = Pipeline(PipelineSchedule.ZB_H1, 2, 20)
    assert np.isnan(closed_form(pipeline, 0.1, 0.8, 0.2))
    assert equal(pipeline, 0.1, 0.8, 0.2) > 20 * 1.1 + (0.1 + 0.8 - 0.2)


def test_dual_pipe_waits_as_published_where_forwards_are_as_long_as_input_gradients():
    pipeline = Pipeline(PipelineSchedule.DUAL_PIPE, 8, 20)
    # figure 5 of the report: all equal, so 20 microbatches of 3 and a bubble of (4 − 1)(3 + 2 − 3)
    assert equal(pipeline, 1, 1, 1) == 60 + published_dual_pipe_bubble(8, 3, 2, 1) == 66
    # otherwise not: input gradients twice as long as forwards
    assert published_dual_pipe_bubble(8, 4, 3, 1) == 12
    assert equal(pipeline, 1, 2, 1) == 80 + 11
    # and with forwards twice as long as input gradients
    assert published_dual_pipe_bubble(8, 4, 2, 1) == 9
    assert equal(pipeline, 2, 1, 1) == 80 + 12


def test_dual_pipe_is_the_same_seen_from_either_end():
    pipeline = Pipeline(PipelineSchedule.DUAL_PIPE, 6, 14)
    draw = np.random.default_rng(2)
    f, b, w = draw.random((3, 50, 6))
    links = 3 * draw.random((50, 5))
    for value in (step_time, lower_bound):
        seen = value(pipeline, ChunkTimes(f, b, w, links))
        np.testing.assert_allclose(value(pipeline, ChunkTimes(f, b, w, links[:, ::-1])), seen, rtol=1e-12)


def test_in_flight_as_published():
    assert in_flight(Pipeline(ONE_F_ONE_B, 4, 3)).tolist() == [3, 3, 2, 1]
    assert in_flight(Pipeline(PipelineSchedule.INTERLEAVED, 4, 8, 2)).tolist() == [11, 9, 7, 5]
    assert in_flight(Pipeline(PipelineSchedule.ZB_H1, 4, 8)).tolist() == [4] * 4
    assert in_flight(Pipeline(PipelineSchedule.DUAL_PIPE, 4, 8)).tolist() == [5] * 4


def test_chunks_in_flight_are_weighed():
    pipeline = Pipeline(PipelineSchedule.INTERLEAVED, 2, 2, 2)
    # stage 1 holds both microbatches of its first chunk (place 1) and one of its second (place 3)
    assert peak_in_flight(work_order(pipeline), [0.0, 10.0, 0.0, 1.0])[1] == 21
