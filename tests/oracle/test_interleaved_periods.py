"""Interleaved pipelines timed by the period of their order take the longest path through the order written out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dovetail.compilation.kernel import CompiledFunction
from dovetail.pipeline import ChunkTimes, Pipeline, PipelineSchedule, WorkKind, step_time, work_order
from dovetail.pipeline.interleaved_kernels import interleaved
from dovetail.pipeline.interleaved_order import SENDS, SENT, TAKEN, TAKES, operations_run, periodic_order
from dovetail.pipeline.step_time import longest_path_s

#: Seconds of chunks: alike, nearly alike (circuits of nearly the same mean), unequal, wild, with ties and zeros.
TIMES = (
    lambda draw, shape: np.ones(shape),
    lambda draw, shape: 1 + 1e-6 * draw.random(shape),
    lambda draw, shape: 1 + 1e-3 * draw.random(shape),
    lambda draw, shape: 0.9 + 0.2 * draw.random(shape),
    lambda draw, shape: draw.random(shape),
    lambda draw, shape: draw.exponential(1.0, shape) ** 3,
    lambda draw, shape: 10 ** draw.uniform(-3, 3, shape),
    lambda draw, shape: draw.integers(0, 4, shape).astype(float),
)
#: Of a transfer, beside a chunk: none, a little, as long, and so long that round trips decide.
TRANSFERS = (0.0, 0.02, 1.0, 8.0)


def random_pipeline(draw, most_runs):
    """From 1 to 64 stages and 2 to 16 chunks, groups of all sizes allowed; many short ones, some long."""
    while True:
        p, v = int(min(64, 2 ** draw.uniform(0, 6.1))), int(draw.integers(2, 17))
        m = int(2 ** draw.uniform(0, 10))
        if p * v * m > most_runs:
            continue
        allowed = [size for size in range(p, m + 1) if m % size == 0 or m % size >= p]
        group = int(allowed[int(len(allowed) * draw.random() ** 2)]) if allowed and draw.random() < 0.5 else None
        return Pipeline(PipelineSchedule.INTERLEAVED, p, m, v, group)


def check(seed, number, plans, most_runs):
    draw = np.random.default_rng(seed)
    periodic = 0
    for case in range(number):
        pipeline = random_pipeline(draw, most_runs)
        of = TIMES[case % len(TIMES)]
        forward, backward = (of(draw, (plans, pipeline.num_places)) for _ in range(2))
        transfer = of(draw, (plans, pipeline.num_links)) * TRANSFERS[case // len(TIMES) % len(TRANSFERS)]
        times = ChunkTimes(forward, 2 * backward, 0 * backward, transfer)
        expected = longest_path_s(pipeline, times.columns(pipeline))
        np.testing.assert_allclose(step_time(pipeline, times), expected, rtol=1e-12, atol=0, err_msg=str(pipeline))
        periodic += pipeline.num_microbatches >= 6 * pipeline.microbatch_group_size
    return periodic


def test_periods_add_up_to_the_longest_path():
    assert check(seed=0, number=96, plans=3, most_runs=6000) > 10


@pytest.mark.parametrize("seed", range(4))
def test_stages_that_are_nearly_equal_move_on_evenly_until_one_decides(seed):
    draw = np.random.default_rng(seed)
    pipeline = Pipeline(PipelineSchedule.INTERLEAVED, 4, 160, 2)
    forward, backward = 1 + 1e-3 * draw.random((2, pipeline.num_places))
    times = ChunkTimes(forward, 2 * backward, 0 * forward, 0.02)
    expected = longest_path_s(pipeline, times.columns(pipeline))
    np.testing.assert_allclose(step_time(pipeline, times), expected[0], rtol=1e-12, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_periods_add_up_to_the_longest_path_of_ten_thousand(seed):
    assert check(seed, number=1000, plans=2, most_runs=60000) > 100


def written_out(order):
    """All operations of all periods, with the messages they take and send."""
    head, period, end = np.split(order.operations, [order.first, order.last])
    periods = [moved(period, order, number) for number in range(order.periods)]
    return np.concatenate([head, *periods, moved(end, order, max(order.periods - 1, 0))])


def moved(operations, order, periods):
    operations = operations.copy()
    for link, number in ((TAKES, TAKEN), (SENDS, SENT)):
        has = operations[:, link] >= 0
        operations[has, number] += periods * order.in_period[operations[has, link]]
    return operations


@pytest.mark.parametrize(
    ("p", "m", "v", "group"),
    [(2, 40, 3, 2), (2, 42, 2, 5), (4, 44, 2, 4), (5, 47, 3, 6), (8, 98, 4, 9), (3, 2, 2, 2), (7, 7, 16, 7)],
)
def test_the_period_says_what_the_work_order_says(p, m, v, group):
    """Every stage does the same in the same sequence, and every message goes from a chunk run to the one it is for."""
    pipeline = Pipeline(PipelineSchedule.INTERLEAVED, p, m, v, group)
    order, expected = periodic_order(p, m, v, group), work_order(pipeline)
    assert (order.periods > 0) == (m > 7)
    operations = written_out(order)
    places = pipeline.num_places
    expected_row = np.where(expected.kind == WorkKind.FORWARD, 0, places) + expected.place
    sent: dict[tuple[int, int], tuple[int, int, int]] = {}
    position = expected.starts[:-1].copy()
    for stage, row, takes, taken, sends, number in operations.tolist():
        item = position[stage]
        position[stage] += 1
        assert expected_row[item] == row
        microbatch, backward = expected.microbatch[item], row >= places
        place = row - places if backward else row
        before = place + 1 if backward else place - 1
        if takes >= 0:
            assert sent.pop((takes, taken)) == (int(microbatch), backward, before)
        else:
            assert before in (-1, places)
        if sends >= 0:
            sent[sends, number] = (int(microbatch), backward, place)
    assert not sent
    assert (position == expected.starts[1:]).all()


@pytest.mark.parametrize("seed", range(len(TIMES)))
def test_a_step_is_the_same_compiled_or_not(seed):
    draw = np.random.default_rng(seed)
    for number in range(4):
        p, v, m = int(draw.integers(1, 5)), 2, int(draw.integers(4, 40))
        forward, backward = (TIMES[seed](draw, (p * v, 3)) for _ in range(2))
        transfer = TRANSFERS[number] * TIMES[seed](draw, (2 * p, 3))
        assert isinstance(interleaved, CompiledFunction)
        found = interleaved.plain()(forward, backward, transfer, m, v, p)
        np.testing.assert_array_equal(found, interleaved(forward, backward, transfer, m, v, p))


def test_operations_are_counted_before_the_order_is_made():
    draw = np.random.default_rng(0)
    for _ in range(100):
        pipeline = random_pipeline(draw, 6000)
        sizes = pipeline.num_stages, pipeline.num_microbatches, pipeline.num_chunks, pipeline.microbatch_group_size
        if pipeline.num_stages > 1:
            order = periodic_order(*sizes)
            run = len(order.operations) + 2 * (order.last - order.first)
            assert run <= operations_run(*(np.array([size]) for size in sizes))[0] <= 8 * run


def test_the_order_is_no_longer_for_more_microbatches():
    lengths = [len(periodic_order(8, 8 * groups, 4, 8).operations) for groups in (8, 64, 512)]
    assert all(one == other for one, other in pairwise(lengths))
