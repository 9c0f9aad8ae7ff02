"""What no step of a pipeline can take less than, without running through its order; for pruning a search."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dovetail.arrays import ROUNDING, Bools, Floats, Ints
from dovetail.frozen import frozen
from dovetail.pipeline.chunk_times import ChunkTimes, Columns
from dovetail.pipeline.step_time import step_time
from dovetail.pipeline.work_order import WorkKind, work_order
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule


def lower_bound(pipeline: Pipeline, times: ChunkTimes) -> Floats:
    """Seconds that a step takes at least, of every plan.

    For GPipe, and for 1F1B without transfers, this is the step time but for the rounding taken off.
    """
    columns = times.columns(pipeline)
    if pipeline.schedule is PipelineSchedule.GPIPE:
        bound = step_time(pipeline, times).reshape(-1)
    elif pipeline.schedule is PipelineSchedule.ONE_F_ONE_B:
        from dovetail.pipeline.longest_path_kernels import fill_and_drain

        bound = fill_and_drain(columns.forward, columns.backward, columns.transfer, pipeline.num_microbatches)
    else:
        bound = _one_stage_paths(_outline(pipeline), columns).max(axis=0)
    return bound.reshape(columns.plans) * (1 - ROUNDING)


def stage_bounds(pipeline: Pipeline, times: ChunkTimes) -> Floats:
    """The same by each stage alone (first axis), for schedules that interleave or split: all it does is counted.

    A stage that works longer in all, however that spreads over its chunks, lengthens its bound by as much.
    """
    columns = times.columns(pipeline)
    paths = _one_stage_paths(_outline(pipeline), columns)
    return paths.reshape(pipeline.num_stages, *columns.plans) * (1 - ROUNDING)


@frozen
class _Outline:
    """A pipeline's order in short: how often each stage does what, and the items where its chains begin and end."""

    pipeline: Pipeline
    #: stages × columns: rows of `Columns.work`
    rows: Ints
    #: 3 × stages × columns: how often before the stage's first backward, in all, and after its last backward
    counts: Ints
    #: 3 × stages: place of the first forward, the first backward and the last backward
    place: Ints
    #: 3 × stages: whether their micro-batch runs towards the first stage, as half of DualPipe's do
    reverse: Bools


@lru_cache(maxsize=256)
def _outline(pipeline: Pipeline) -> _Outline:
    order = work_order(pipeline)
    stage, place, items = order.stage, order.place, np.arange(len(order.kind))
    is_backward = (order.kind == WorkKind.BACKWARD) | (order.kind == WorkKind.INPUT_GRADIENT)
    (backwards,) = np.nonzero(is_backward)
    first = backwards[np.searchsorted(backwards, order.starts[:-1])]
    last = backwards[np.searchsorted(backwards, order.starts[1:]) - 1]
    kind = np.where(order.joined, len(WorkKind), order.kind)
    runs = ~np.append(False, order.joined[:-1])  # a joined pair is counted once, with its forward
    chunks = pipeline.places().shape[1]
    counts = np.zeros((3, pipeline.num_stages, (len(WorkKind) + 1) * chunks), np.int64)
    column = kind * chunks + order.chunk
    for part, mask in enumerate((items < first[stage], items >= 0, items > last[stage])):
        np.add.at(counts[part], (stage[mask & runs], column[mask & runs]), 1)
    rows = np.arange(len(WorkKind) + 1)[:, None] * pipeline.num_places + pipeline.places()[:, None, :]
    used = counts[1].any(axis=0)
    ends = np.stack([order.starts[:-1], first, last])
    reverse = (order.chunk[ends] == 1) & (pipeline.schedule is PipelineSchedule.DUAL_PIPE)
    rows = rows.reshape(pipeline.num_stages, -1)
    return _Outline(pipeline, rows[:, used], counts[:, :, used], place[ends], reverse)


def _one_stage_paths(outline: _Outline, columns: Columns) -> Floats:
    """The longest path that comes to a stage, stays, and leaves it: along one micro-batch's forward or back.

    On these chains DualPipe's items are never joined, and its gradients are those of inputs alone.
    """
    before, total, after = np.einsum("psc,scn->psn", outline.counts, columns.work()[outline.rows])
    pipeline = outline.pipeline
    gradient = columns.backward if pipeline.schedule is PipelineSchedule.INTERLEAVED else columns.input_gradient
    # Seconds over links to each place, when a micro-batch runs forwards or in reverse over the stages.
    links = columns.transfer[np.arange(pipeline.num_places - 1) % max(1, pipeline.num_links)]
    if pipeline.num_stages == 1:
        links = np.zeros_like(links)
    nothing = np.zeros((1, links.shape[1]))
    way = np.stack([np.concatenate([nothing, np.cumsum(part, axis=0)]) for part in (links, links[::-1])])
    there, back = (np.cumsum(part, axis=0) - part for part in (columns.forward, gradient))
    turn = columns.forward.sum(axis=0) + gradient.sum(axis=0) + way[0, -1] * 2
    (begin, arrival, departure), reverse = outline.place, outline.reverse.astype(np.int64)
    enter = there[begin] + way[reverse[0], begin]
    turned = turn - (back + gradient)[arrival] - way[reverse[1], arrival]
    leave = back[departure] + way[reverse[2], departure] - after + after[-reverse[2]]
    return np.maximum(enter, turned - before) + total + np.maximum(0.0, leave)
