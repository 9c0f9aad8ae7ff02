"""Simulated pipelines of kernels alone take what closed forms and plain graphs say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_steps import kernel_step, link_delays
from pipeline_copies import longest_path_with_copies
from pipeline_graph import Times, longest_path, pipelines, plan_times, random_times

from dovetail.pipeline import Pipeline, PipelineSchedule, WorkKind, work_order
from dovetail.simulation.task_graph import run
from pipeline_closed_form import closed_form

SCHEDULES = list(PipelineSchedule)
SEEDS = st.integers(0, 2**32 - 1)
FEW, ALL = (1, 2, 3, 8), (1, 2, 3, 4, 7, 8, 13, 16, 31, 32, 48, 64)
LARGEST = [
    Pipeline(PipelineSchedule.GPIPE, 64, 64),
    Pipeline(PipelineSchedule.ONE_F_ONE_B, 64, 64),
    Pipeline(PipelineSchedule.INTERLEAVED, 64, 64, 2),
    Pipeline(PipelineSchedule.ZB_H1, 64, 64),
    Pipeline(PipelineSchedule.DUAL_PIPE, 32, 64),
]
#: forward, input and weight gradients of an equal chunk: within the range of all closed forms, with sums that round
EQUAL = ((1.0, 1.0, 1.0), (0.7, 0.9, 0.3), (0.1, 1.3, 0.1), (1.7, 0.2, 0.0))


def grid(schedule: PipelineSchedule, sizes) -> list[Pipeline]:
    """All pipelines of these stages and microbatches that the schedule has a closed form for."""
    if schedule is PipelineSchedule.DUAL_PIPE:
        return [
            Pipeline(schedule, p, m) for p in sizes for m in (2 * p, 2 * p + 2, 64) if p % 2 == 0 and 2 * p <= m <= 64
        ]
    if schedule is PipelineSchedule.INTERLEAVED:
        return [Pipeline(schedule, p, m, v) for p in sizes for m in sizes for v in (2, 3) if m >= p]
    short = schedule is PipelineSchedule.ZB_H1
    return [Pipeline(schedule, p, m) for p in sizes for m in sizes if m >= p or not short]


def seconds_of(pipeline: Pipeline, times: Times, **network) -> float:
    return run(kernel_step(pipeline, times, **network).graph).seconds


def check_closed_form(pipeline: Pipeline, f: float, b: float, w: float) -> None:
    n = pipeline.num_places
    times = Times([f] * n, [b] * n, [w] * n, [0.0] * pipeline.num_links, None)
    expected = float(closed_form(pipeline, f, b, w))
    assert not np.isnan(expected)
    assert seconds_of(pipeline, times) == pytest.approx(expected, rel=1e-9), pipeline


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_equal_stages_take_the_closed_form(schedule):
    found = grid(schedule, FEW)
    assert len(found) > 3
    for pipeline in found:
        for times in EQUAL:
            check_closed_form(pipeline, *times)


@pytest.mark.parametrize("pipeline", LARGEST, ids=lambda p: p.schedule.value)
def test_the_largest_of_equal_stages_take_the_closed_form(pipeline):
    check_closed_form(pipeline, *EQUAL[1])


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_equal_stages_take_the_closed_form_at_all_sizes(schedule):
    for pipeline in grid(schedule, ALL):
        check_closed_form(pipeline, *EQUAL[1])


def check_longest_path(pipeline: Pipeline, seed: int) -> None:
    times = plan_times(random_times(pipeline, seed, plans=1, transfers=False), 0)
    # kernels of a pair take turns and nothing travels meanwhile: both together take as long as one after the other
    times.pairs = None
    expected = longest_path(work_order(pipeline), times)
    assert seconds_of(pipeline, times) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=15)
@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data(), seed=SEEDS)
def test_unequal_stages_take_the_longest_path(schedule, data, seed):
    check_longest_path(data.draw(pipelines(schedule, most=16)), seed)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data(), seed=SEEDS)
def test_unequal_stages_take_the_longest_path_at_all_sizes(schedule, data, seed):
    check_longest_path(data.draw(pipelines(schedule)), seed)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", LARGEST, ids=lambda p: p.schedule.value)
def test_the_largest_of_unequal_stages_take_the_longest_path(pipeline):
    for seed in range(5):
        check_longest_path(pipeline, seed)


def drawn_nodes(data, pipeline: Pipeline) -> int:
    p = pipeline.num_stages
    return data.draw(st.sampled_from([n for n in range(1, p + 1) if p % n == 0]))


@settings(max_examples=15)
@pytest.mark.parametrize("schedule", [s for s in SCHEDULES if s is not PipelineSchedule.DUAL_PIPE])
@given(data=st.data(), seed=SEEDS, parts=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_transfers_shorter_than_kernels_delay_as_the_longest_path_says(schedule, data, seed, parts):
    # each is there before the next one of its way is ready; DualPipe's pairs hand over two at once
    pipeline = data.draw(pipelines(schedule, most=12))
    times = plan_times(random_times(pipeline, seed, plans=1, transfers=False), 0)
    shortest = min(*times.forward, *times.of_input, *times.of_weight, 1e9)
    node, delays_s = drawn_nodes(data, pipeline), (shortest * parts[0], shortest * parts[1])
    times.links = link_delays(pipeline, node, delays_s)
    expected = longest_path(work_order(pipeline), times)
    assert seconds_of(pipeline, times, node=node, delays_s=delays_s) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=15)
@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data(), seed=SEEDS, delays_s=st.tuples(st.floats(0, 3), st.floats(0, 3)), sending=st.booleans())
def test_long_transfers_of_a_way_follow_each_other(schedule, data, seed, delays_s, sending):
    pipeline = data.draw(pipelines(schedule, most=12))
    times = plan_times(random_times(pipeline, seed, plans=1, transfers=False), 0)
    node = drawn_nodes(data, pipeline)
    times.links, times.pairs = link_delays(pipeline, node, delays_s), None
    expected = longest_path_with_copies(work_order(pipeline), times, sending=sending)
    found = seconds_of(pipeline, times, node=node, delays_s=delays_s, sending=sending)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_pair_of_kernels_takes_as_long_as_both():
    pipeline = Pipeline(PipelineSchedule.DUAL_PIPE, 4, 12)
    times = plan_times(random_times(pipeline, 5, plans=1, transfers=False), 0)
    tasks, order = kernel_step(pipeline, times), work_order(pipeline)
    timeline = run(tasks.graph)
    (first,) = np.nonzero(order.joined)
    assert len(first) > 10
    for item in first.tolist():
        assert (tasks.begin[item] == tasks.begin[item + 1]).all()
        assert (tasks.end[item] == tasks.end[item + 1]).all()
        assert [order.kind[item], order.kind[item + 1]] == [WorkKind.FORWARD, WorkKind.BACKWARD]
        one, other = order.place[item], order.place[item + 1]
        both = times.forward[one] + times.of_input[other] + times.of_weight[other]
        took = timeline.end_s[tasks.end[item, 0]] - timeline.start_s[tasks.begin[item, 0]]
        assert took == pytest.approx(both, rel=1e-9)
