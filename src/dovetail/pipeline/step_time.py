"""The step time of a pipeline: the exact longest path through its order, many plans at once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.compilation import worth_compiling
from dovetail.frozen import frozen
from dovetail.pipeline.chunk_times import ChunkTimes, Columns
from dovetail.pipeline.interleaved_kernels import interleaved
from dovetail.pipeline.longest_path_kernels import (
    fill_and_drain,
    gpipe,
    longest_path,
    one_f_one_b,
    topological_order,
)
from dovetail.pipeline.work_order import WorkKind, needs, work_order
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule


def step_time(pipeline: Pipeline, times: ChunkTimes) -> Floats:
    """Seconds from the first forward to the last gradient, of every plan; exact for the schedule's order."""
    columns = times.columns(pipeline)
    if pipeline.schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B):
        kernel = one_f_one_b if columns.transfer.any() else fill_and_drain
        kernel = gpipe if pipeline.schedule is PipelineSchedule.GPIPE else kernel
        steps = worth_compiling(kernel, columns.forward.size * pipeline.num_microbatches)(
            columns.forward, columns.backward, columns.transfer, pipeline.num_microbatches
        )
    elif pipeline.schedule is PipelineSchedule.INTERLEAVED:
        sizes = pipeline.num_microbatches, pipeline.num_chunks, pipeline.microbatch_group_size
        steps = worth_compiling(interleaved, columns.forward.size * pipeline.num_microbatches)(
            columns.forward, columns.backward, columns.transfer, *sizes
        )
    else:
        steps = longest_path_s(pipeline, columns)
    return steps.reshape(columns.plans)


def longest_path_s(pipeline: Pipeline, columns: Columns) -> Floats:
    """Seconds of the longest path through the explicit order, of every column: what `step_time` is by definition."""
    steps, _ = _run(pipeline, columns)
    return steps


def item_times(pipeline: Pipeline, times: ChunkTimes) -> tuple[Floats, Floats]:
    """Start and end of every item of `work_order(pipeline)` under one plan's times."""
    columns = times.columns(pipeline)
    assert columns.plans == (), "one plan at a time"
    program = compiled(pipeline)
    _, ends = _run(pipeline, columns)
    starts = ends - columns.work()[program.row, 0]
    operations = np.empty_like(program.operation)
    operations[program.operation] = np.arange(len(operations))
    of_item = operations[program.operation_of_item]
    return starts[of_item], ends[of_item]


@frozen
class Program:
    """An order made ready to run: operations (items, joined pairs as one) in topological order."""

    #: the operation in the order's own numbering
    operation: Ints
    operation_of_item: Ints
    stage: Ints
    row: Ints
    #: up to two operations that are needed, and the links they come over; 0 is none, others are numbered from 1
    need: Ints
    link: Ints


@lru_cache(maxsize=64)
def compiled(pipeline: Pipeline) -> Program:
    """The program of the pipeline's order."""
    order = work_order(pipeline)
    required = needs(order)
    follows = np.append(False, order.joined[:-1])
    (head,) = np.nonzero(~follows)
    partner = np.where(order.joined[head], head + 1, head)
    operation_of_item = np.cumsum(~follows) - 1
    both = np.stack([head, partner], axis=1)
    need = np.where(required.item[both] >= 0, operation_of_item[required.item[both]], -1)
    starts = np.append(operation_of_item[order.starts[:-1]], len(head))
    operation = worth_compiling(topological_order, len(head))(starts, need)
    assert len(operation) == len(head), f"stages wait for each other forever in {pipeline}"
    number = np.empty(len(head) + 1, np.int64)
    number[operation] = np.arange(1, len(head) + 1)
    number[-1] = 0  # where need is -1
    kinds = np.where(order.joined[head], len(WorkKind), order.kind[head])
    row = kinds * pipeline.num_places + order.place[head]
    link = required.link[both] + 1
    return Program(
        operation, operation_of_item, order.stage[head][operation], row[operation], number[need[operation]],
        link[operation],
    )  # fmt: skip


def _run(pipeline: Pipeline, columns: Columns) -> tuple[Floats, Floats]:
    program = compiled(pipeline)
    transfer = np.concatenate([np.zeros((1, columns.transfer.shape[1])), columns.transfer])
    path = worth_compiling(longest_path, len(program.row) * columns.transfer.shape[1])
    return path(program.stage, program.need, program.link, program.row, pipeline.num_stages, columns.work(), transfer)
