"""How much of its forwards a stage holds at once: what memory for activations is made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.placement.work_order import WorkKind, WorkOrder
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule


def in_flight(pipeline: Pipeline) -> NDArray[np.int64]:
    """For every stage, the most chunk runs whose forward has begun and whose last gradient has not ended.

    The last gradient is the backward, or the weight gradient where a schedule splits it off.
    """
    p, m, v = pipeline.num_stages, pipeline.num_microbatches, pipeline.num_chunks
    behind = p - 1 - np.arange(p)
    match pipeline.schedule:
        case PipelineSchedule.GPIPE:
            return np.full(p, m)
        case PipelineSchedule.ONE_F_ONE_B:
            return np.minimum(m, behind + 1)
        case PipelineSchedule.INTERLEAVED:
            return np.minimum(m * v, 2 * behind + (v - 1) * pipeline.microbatch_group_size + 1)
        case PipelineSchedule.ZB_H1:
            return np.full(p, min(m, p))
        case PipelineSchedule.DUAL_PIPE:
            return np.full(p, p + 1)


def peak_in_flight(order: WorkOrder, weight: ArrayLike = 1.0) -> NDArray[np.float64]:
    """The same, counted over the order, each chunk run with a weight (its bytes, say) for its place along the model."""
    weights = np.broadcast_to(np.asarray(weight, np.float64), order.pipeline.num_places)[order.place]
    taken = np.where(order.kind == WorkKind.FORWARD, weights, 0.0)
    kept = (order.kind == WorkKind.FORWARD) | (order.kind == WorkKind.INPUT_GRADIENT)
    change = np.where(kept, taken, -weights)
    spans = np.split(change, order.starts[1:-1])
    return np.array([np.cumsum(span).max() for span in spans])
