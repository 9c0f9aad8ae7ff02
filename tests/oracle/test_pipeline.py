"""Step times are the longest path through the explicit order, in-flight counts its maxima, bounds hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_graph import DeadlockError, ends, longest_path, pipelines, plan_times, random_times

from dovetail.pipeline import (
    ChunkTimes,
    Pipeline,
    PipelineSchedule,
    WorkKind,
    in_flight,
    item_times,
    lower_bound,
    peak_in_flight,
    step_time,
    work_order,
)
from dovetail.pipeline.in_flight import in_flight_of_chunk, peak_saved_by_stage
from dovetail.pipeline.longest_path_kernels import fill_and_drain, one_f_one_b
from dovetail.plans.pipeline_schedule import SCHEDULE_CODES
from pipeline_bottleneck import bottleneck_bound
from pipeline_closed_form import closed_form

SCHEDULES = list(PipelineSchedule)
SEEDS = st.integers(0, 2**32 - 1)
LARGEST = [
    Pipeline(PipelineSchedule.GPIPE, 64, 64),
    Pipeline(PipelineSchedule.ONE_F_ONE_B, 64, 64),
    Pipeline(PipelineSchedule.INTERLEAVED, 64, 64, 2),
    Pipeline(PipelineSchedule.ZB_H1, 64, 64),
    Pipeline(PipelineSchedule.DUAL_PIPE, 32, 64),
    Pipeline(PipelineSchedule.DUAL_PIPE, 64, 128),
]


def check_step_time(pipeline, seed):
    times, plan = random_times(pipeline, seed, plans=2), seed % 2
    expected = longest_path(work_order(pipeline), plan_times(times, plan))
    assert step_time(pipeline, times)[plan] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data(), seed=SEEDS)
def test_step_time_is_the_longest_path(schedule, data, seed):
    check_step_time(data.draw(pipelines(schedule)), seed)


@pytest.mark.parametrize("pipeline", LARGEST, ids=lambda p: f"{p.schedule}-{p.num_stages}")
def test_step_time_is_the_longest_path_of_the_largest(pipeline):
    for seed in range(5):
        check_step_time(pipeline, seed)


@given(data=st.data(), schedule=st.sampled_from(SCHEDULES), seed=SEEDS)
def test_items_start_and_end_where_the_graph_says(data, schedule, seed):
    pipeline = data.draw(pipelines(schedule, most=16))
    order, times = work_order(pipeline), random_times(pipeline, seed, plans=1)
    one = plan_times(times, 0)
    single = ChunkTimes(one.forward, one.of_input, one.of_weight, one.links, one.pairs)
    start, end = item_times(pipeline, single)
    expected = ends(order, one)
    for (stage, index), seconds in expected.items():
        assert end[order.starts[stage] + index] == pytest.approx(seconds, rel=1e-9, abs=1e-12)
    (joined,) = np.nonzero(order.joined)
    assert (end[joined] == end[joined + 1]).all()
    assert (start >= -1e-9).all()
    assert end.max() == pytest.approx(float(step_time(pipeline, single)), rel=1e-9)


@given(p=st.integers(1, 64), m=st.integers(1, 64), seed=SEEDS)
def test_one_f_one_b_without_transfers_fills_stays_and_drains(p, m, seed):
    # ten thousand instances: the closed form against the recurrence, which is checked against the graph above
    pipeline = Pipeline(PipelineSchedule.ONE_F_ONE_B, p, m)
    columns = random_times(pipeline, seed, plans=50, transfers=False).columns(pipeline)
    expected = one_f_one_b(columns.forward, columns.backward, columns.transfer, m)
    found = fill_and_drain(columns.forward, columns.backward, columns.transfer, m)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@given(data=st.data(), schedule=st.sampled_from(SCHEDULES), seed=SEEDS)
def test_a_lower_bound_is_never_above_the_step_time(data, schedule, seed):
    pipeline = data.draw(pipelines(schedule))
    times = random_times(pipeline, seed, plans=20)
    bound = lower_bound(pipeline, times)
    assert (bound <= step_time(pipeline, times)).all()
    if schedule is PipelineSchedule.ONE_F_ONE_B:
        assert (bottleneck_bound(pipeline, times) <= bound * (1 + 1e-11)).all()


@given(
    data=st.data(), schedule=st.sampled_from(SCHEDULES), seed=SEEDS,
    f=st.floats(0.01, 1), b=st.floats(0.01, 1), w=st.floats(0.0, 1), overlap=st.floats(0, 1),
)  # fmt: skip
def test_closed_forms_are_the_step_time_of_equal_chunks(data, schedule, seed, f, b, w, overlap):
    pipeline = data.draw(pipelines(schedule))
    if seed % 2:
        w *= min(f, b)
    pair = max(f, b + w) + overlap * min(f, b + w)
    found = float(closed_form(pipeline, f, b, w, pair))
    ones = np.ones(pipeline.num_places)
    exact = float(step_time(pipeline, ChunkTimes(f * ones, b * ones, w * ones, 0.0, pair * ones)))
    in_range = w <= min(f, b) if schedule in (PipelineSchedule.ZB_H1, PipelineSchedule.DUAL_PIPE) else True
    if schedule in (PipelineSchedule.ZB_H1, PipelineSchedule.INTERLEAVED):
        in_range = in_range and pipeline.num_microbatches >= pipeline.num_stages
    assert np.isnan(found) == (not in_range)
    if in_range:
        assert found == pytest.approx(exact, rel=1e-9)


@given(data=st.data(), schedule=st.sampled_from(SCHEDULES))
def test_in_flight_is_the_maximum_over_the_order(data, schedule):
    pipeline = data.draw(pipelines(schedule))
    order = work_order(pipeline)
    counted = []
    for stage in range(pipeline.num_stages):
        held = most = 0
        for item in order.items(stage):
            held += item.kind is WorkKind.FORWARD
            most = max(most, held)
            held -= item.kind in (WorkKind.BACKWARD, WorkKind.WEIGHT_GRADIENT)
        assert held == 0
        counted.append(most)
    assert in_flight(pipeline).tolist() == counted
    assert peak_in_flight(order).tolist() == counted


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data(), seed=SEEDS)
def test_what_unequal_chunks_save_is_the_peak_over_the_order(schedule, data, seed):
    pipeline = data.draw(pipelines(schedule))
    draw = np.random.default_rng(seed)
    saved = draw.choice([0.0, 1.0, 10.0], pipeline.num_places) + draw.random(pipeline.num_places)
    counted = peak_in_flight(work_order(pipeline), saved)
    assert peak_saved_by_stage(pipeline, saved) == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize("schedule", [PipelineSchedule.INTERLEAVED, PipelineSchedule.DUAL_PIPE])
@given(data=st.data())
def test_chunks_of_a_stage_share_what_it_has_in_flight(schedule, data):
    """And no chunk between the first and the last has fewer than both: bounds ask for these two alone."""
    pipeline = data.draw(pipelines(schedule))
    sizes = pipeline.num_stages, pipeline.num_microbatches, pipeline.num_chunks, pipeline.microbatch_group_size
    chunks = pipeline.places().shape[1]
    for stage, runs in enumerate(in_flight(pipeline)):
        by_chunk = [in_flight_of_chunk(SCHEDULE_CODES[schedule], *sizes, stage, chunk) for chunk in range(chunks)]
        assert sum(by_chunk) == runs
        assert min(by_chunk) == min(by_chunk[0], by_chunk[-1])


@given(data=st.data(), schedule=st.sampled_from(SCHEDULES))
def test_each_stage_does_everything_once(data, schedule):
    pipeline = data.draw(pipelines(schedule))
    order = work_order(pipeline)
    half = pipeline.num_microbatches // 2
    for stage in range(pipeline.num_stages):
        items = order.items(stage)
        runs = [(i.microbatch, i.chunk) for i in items if i.kind is WorkKind.FORWARD]
        if schedule is PipelineSchedule.DUAL_PIPE:
            expected = {(i, int(i >= half)) for i in range(2 * half)}
        else:
            expected = {(i, c) for i in range(pipeline.num_microbatches) for c in range(pipeline.num_chunks)}
        assert set(runs) == expected
        assert len(runs) == len(expected)
        gradients = sorted(
            (i.microbatch, i.chunk, part)
            for i in items
            for part in {
                WorkKind.FORWARD: "", WorkKind.BACKWARD: "IW", WorkKind.INPUT_GRADIENT: "I",
                WorkKind.WEIGHT_GRADIENT: "W",
            }[i.kind]
        )  # fmt: skip
        assert gradients == sorted((*run, part) for run in runs for part in "IW")


def test_a_deadlock_is_found():
    pipeline = Pipeline(PipelineSchedule.ONE_F_ONE_B, 3, 4)
    order = work_order(pipeline)
    times = plan_times(random_times(pipeline, 0, 1), 0)
    longest_path(order, times)
    # the last stage waits for a second microbatch, which the stage before it starts after the first one's return
    kind, microbatch = order.kind.copy(), order.microbatch.copy()
    at = order.starts[1]
    kind[at : at + 3], microbatch[at : at + 3] = [0, 1, 0], [0, 0, 1]
    at = order.starts[2]
    kind[at : at + 3], microbatch[at : at + 3] = [0, 0, 1], [0, 1, 0]
    with pytest.raises(DeadlockError):
        longest_path(replace(order, kind=kind, microbatch=microbatch), times)
