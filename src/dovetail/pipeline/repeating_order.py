"""What repeats in a schedule's order: its period, the stretches of items that follow it, and shorter pipelines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.arrays import Bools, Ints
from dovetail.frozen import frozen
from dovetail.pipeline.work_order import WorkOrder
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule


@frozen
class Period:
    """Between filling and draining every stage repeats its items, with later micro-batches each time."""

    #: of all streams together
    microbatches: int
    #: of a stage, in each stretch that repeats
    items: int
    #: how much later the micro-batches of an item are one period on
    later: int


@frozen
class Stretch:
    """By stage, the items first[i] to end[i] that follow the period."""

    first: Ints
    end: Ints

    def shifted(self, items: int, count: int) -> Ints:
        """For each of `count` items the one so many after it in its stretch; -1 where there is none."""
        target = np.full(count, -1)
        for first, end in zip(self.first.tolist(), self.end.tolist(), strict=True):
            target[first : end - items] = np.arange(first + items, end)
        return target

    def inside(self, count: int) -> Bools:
        """Of `count` items those of the stretch."""
        return self.shifted(0, count) >= 0


def period(pipeline: Pipeline) -> Period:
    """The period of a schedule: one micro-batch, a group of them, or one of each direction."""
    match pipeline.schedule:
        case PipelineSchedule.GPIPE:
            return Period(1, 1, 1)
        case PipelineSchedule.ONE_F_ONE_B:
            return Period(1, 2, 1)
        case PipelineSchedule.ZB_H1:
            return Period(1, 3, 1)
        case PipelineSchedule.INTERLEAVED:
            group = pipeline.microbatch_group_size
            return Period(group, 2 * group * pipeline.num_chunks, group)
        case PipelineSchedule.DUAL_PIPE:
            return Period(2, 4, 1)


def shortened(pipeline: Pipeline, enough: int) -> Pipeline | None:
    """The same with whole periods less, of at least so many micro-batches; None where there are no more than that."""
    every = period(pipeline).microbatches
    left_out = (pipeline.num_microbatches - enough) // every * every
    if left_out <= 0:
        return None
    group = pipeline.microbatch_group_size if pipeline.schedule is PipelineSchedule.INTERLEAVED else None
    return replace(pipeline, num_microbatches=pipeline.num_microbatches - left_out, group_size=group)


def filling(pipeline: Pipeline) -> int:
    """Micro-batches, no fewer than come into the pipeline before the first leaves it."""
    p = pipeline.num_stages
    if pipeline.schedule is PipelineSchedule.INTERLEAVED:
        return -(-2 * p // pipeline.num_chunks) + pipeline.microbatch_group_size
    return 2 * p if pipeline.schedule is PipelineSchedule.DUAL_PIPE else p


def stretches(order: WorkOrder) -> tuple[Stretch, ...]:
    """The stretches that every stage has, in the order in which they come; none where a stage is too short for one.

    GPipe has two, of forwards and of backwards; the others one of both.
    """
    each = period(order.pipeline)
    follows = np.zeros(len(order.kind), bool)
    if len(follows) > each.items:
        here, there = slice(None, -each.items), slice(each.items, None)
        follows[here] = order.microbatch[there] - order.microbatch[here] == each.later
        second = np.append(False, order.joined[:-1])  # of two that run together
        for column in (order.kind, order.chunk, order.joined, second, order.stage):
            follows[here] &= column[there] == column[here]
    wanted = 2 if order.pipeline.schedule is PipelineSchedule.GPIPE else 1
    by_stage: list[list[tuple[int, int]]] = []
    for low, high in zip(order.starts[:-1].tolist(), order.starts[1:].tolist(), strict=True):
        edges = np.diff(np.concatenate(([False], follows[low:high], [False])).astype(np.int64))
        begins, ends = np.nonzero(edges > 0)[0] + low, np.nonzero(edges < 0)[0] + low
        # at the end of an order single items may happen to follow the period too
        longest = np.sort(np.argsort(begins - ends, kind="stable")[:wanted])
        by_stage.append([(int(begins[n]), int(ends[n]) + each.items) for n in longest])
    if any(len(found) != wanted for found in by_stage):
        return ()
    bounds = np.array(by_stage, np.int64)
    return tuple(Stretch(bounds[:, n, 0], bounds[:, n, 1]) for n in range(wanted))
