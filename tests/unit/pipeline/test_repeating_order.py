"""Orders of many micro-batches are those of a few, with periods inserted."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.pipeline import Pipeline, PipelineSchedule, WorkKind, WorkOrder, work_order
from dovetail.pipeline.repeating_order import period, shortened, stretches

PIPELINES = [
    Pipeline(PipelineSchedule.GPIPE, 3, 20),
    Pipeline(PipelineSchedule.ONE_F_ONE_B, 1, 20),
    Pipeline(PipelineSchedule.ONE_F_ONE_B, 6, 25),
    Pipeline(PipelineSchedule.INTERLEAVED, 4, 48, 2),
    Pipeline(PipelineSchedule.INTERLEAVED, 4, 55, 3),
    Pipeline(PipelineSchedule.INTERLEAVED, 3, 64, 2, 5),
    Pipeline(PipelineSchedule.ZB_H1, 5, 31),
    Pipeline(PipelineSchedule.DUAL_PIPE, 6, 36),
]


def with_periods(order: WorkOrder, stage: int, place: int, count: int) -> list[tuple[int, int, int, bool]]:
    """A stage's items with so many periods inserted ahead of the `place`-th of each of its stretches."""
    each, full = period(order.pipeline), list[tuple[int, int, int, bool]]()
    columns = (order.kind, order.microbatch, order.chunk, order.joined)
    half, more = order.pipeline.num_microbatches // 2, count * each.microbatches // 2
    items = [tuple(int(column[n]) for column in columns) for n in range(order.starts[stage], order.starts[stage + 1])]
    if order.pipeline.schedule is PipelineSchedule.DUAL_PIPE:
        items = [(kind, n + more * (n >= half), chunk, joined) for kind, n, chunk, joined in items]
    later = {True: 0, False: 0}
    at = {int(s.first[stage] - order.starts[stage]) + place for s in stretches(order)}
    for number, (kind, microbatch, chunk, joined) in enumerate(items):
        if number in at:
            repeated = items[number : number + each.items]
            for n in range(count):
                full += [(k, b + n * each.later, c, bool(j)) for k, b, c, j in repeated]
            for forward in {k == WorkKind.FORWARD for k, *_ in repeated}:
                later[forward] += count * each.later
        full.append((kind, microbatch + later[kind == WorkKind.FORWARD], chunk, bool(joined)))
    return full


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda p: f"{p.schedule.value}-{p.num_stages}-{p.num_microbatches}")
def test_inserted_periods_give_the_longer_order(pipeline):
    short = shortened(pipeline, 2 * period(pipeline).microbatches + 2 * pipeline.num_stages)
    assert short is not None
    assert short.num_microbatches < pipeline.num_microbatches
    count = (pipeline.num_microbatches - short.num_microbatches) // period(pipeline).microbatches
    order, expected = work_order(short), work_order(pipeline)
    assert short.microbatch_group_size == pipeline.microbatch_group_size or short.num_chunks == 1
    for stage in range(pipeline.num_stages):
        items = [(i.kind, i.microbatch, i.chunk, i.joined) for i in expected.items(stage)]
        for place in (0, 3 if pipeline.schedule is PipelineSchedule.DUAL_PIPE else 1):
            if not order.joined[stretches(order)[0].first[stage] + place - 1]:
                assert with_periods(order, stage, place, count) == items, (stage, place)


def test_steps_that_are_hardly_longer_have_no_shorter_one():
    assert shortened(Pipeline(PipelineSchedule.ONE_F_ONE_B, 4, 16), 16) is None
    assert shortened(Pipeline(PipelineSchedule.INTERLEAVED, 4, 19, 2, 5), 15) is None
    short = shortened(Pipeline(PipelineSchedule.INTERLEAVED, 4, 24, 2, 5), 15)
    assert short is not None
    assert short.num_microbatches == 19


def test_every_stage_has_its_stretches():
    for pipeline in PIPELINES:
        found = stretches(work_order(pipeline))
        assert len(found) == (2 if pipeline.schedule is PipelineSchedule.GPIPE else 1)
        for stretch in found:
            assert (np.asarray(stretch.end - stretch.first) >= 2 * period(pipeline).items).all()
