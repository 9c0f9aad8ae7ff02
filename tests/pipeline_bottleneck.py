"""1F1B judged by its slowest stage: the familiar estimate, and a bound of one line."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats
from dovetail.pipeline.chunk_times import ChunkTimes
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule


def bottleneck_estimate(pipeline: Pipeline, times: ChunkTimes) -> Floats:
    """Every stage once, then the slowest for each further microbatch: no bound in either direction."""
    assert pipeline.schedule is PipelineSchedule.ONE_F_ONE_B
    columns = times.columns(pipeline)
    whole = columns.forward + columns.backward
    steps = whole.sum(axis=0) + (pipeline.num_microbatches - 1) * whole.max(axis=0) + 2 * columns.transfer.sum(axis=0)
    return steps.reshape(columns.plans)


def bottleneck_bound(pipeline: Pipeline, times: ChunkTimes) -> Floats:
    """No step is shorter: each stage waits for its first input, does its work, and its last gradient travels on.

    Between a stage's first forward and its first backward lies the round trip through the stages after it, into
    which only the forwards of the warm-up fit. `lower_bound` is never below this.
    """
    assert pipeline.schedule is PipelineSchedule.ONE_F_ONE_B
    columns, p, m = times.columns(pipeline), pipeline.num_stages, pipeline.num_microbatches
    whole = columns.forward + columns.backward
    held = np.minimum(m, p - np.arange(p))[:, None]
    links = np.concatenate([np.zeros((1, whole.shape[1])), np.cumsum(columns.transfer, axis=0)])
    before = np.cumsum(whole, axis=0) - whole + 2 * links
    after = whole.sum(axis=0) + 2 * links[-1] - before - whole
    idle = np.maximum(0.0, after - (held - 1) * columns.forward)
    return (before + m * whole + idle).max(axis=0).reshape(columns.plans)
