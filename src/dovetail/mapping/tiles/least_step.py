"""A lower bound of a pipeline of tiles in which every block may have its own layout and recompute choice."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.pipeline.in_flight import in_flight
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule

#: Bisection steps for the bound: far more precise than our tolerance for ties.
HALVINGS = 60


@dataclass(frozen=True, slots=True)
class TilePipeline:
    """Stages on equal tiles that process micro-batches in turn, and the equal blocks dealt to them."""

    stages: int
    microbatches: int
    blocks: int
    #: of a die, for the state and the saved activations of micro-batches in flight
    capacity_bytes: float

    @property
    def flights(self) -> Ints:
        """The fewest micro-batches each stage has in flight: those of 1F1B; no other schedule has fewer."""
        return in_flight(Pipeline(PipelineSchedule.ONE_F_ONE_B, self.stages, self.microbatches))


@dataclass(frozen=True, slots=True)
class BlockLowerBound:
    """A lower bound of a block: seconds per micro-batch as a convex function of the bytes it saves."""

    #: saved bytes, ascending, and the lowest seconds with each
    saved_bytes: Floats
    seconds: Floats
    #: weights, gradients and optimizer
    state_bytes: float
    #: the forward's share of these seconds, at least
    forward_s: float

    def slower(self, seconds: float) -> BlockLowerBound:
        """The same with more seconds for every micro-batch."""
        return replace(self, seconds=self.seconds + seconds)

    def stage_seconds(self, pipeline: TilePipeline) -> Floats:
        """Lowest seconds of a micro-batch by stage and number of blocks on it; infinite if they do not fit.

        Blocks may differ, so their mean may be between what two of them save.
        """
        numbers = np.arange(pipeline.blocks + 1)
        bytes_per_block = pipeline.capacity_bytes / np.maximum(numbers, 1.0)
        headroom_bytes = (bytes_per_block[None, :] - self.state_bytes) / pipeline.flights[:, None]
        seconds = np.where(
            headroom_bytes >= self.saved_bytes[0], np.interp(headroom_bytes, self.saved_bytes, self.seconds), np.inf
        )
        return np.asarray(numbers * np.where(numbers > 0, seconds, 0.0), np.float64)


def least_step_s(
    stage_seconds: Floats, forward_s: float, pipeline: TilePipeline, ends_s: tuple[float, float] = (0.0, 0.0)
) -> float:
    """A lower bound of a pipeline's step, from its stages' seconds by number of blocks and a block's forward.

    `ends_s` is what the first and the last stage do besides their blocks.

    A stage runs m micro-batches, after the first micro-batch's forward has passed the stages before it. We do not
    count what follows its last work, since weight gradients can fill it (ZB-H1). Within a given step time each stage
    takes as many blocks as it can. That is optimal: a block more on a stage delays later stages by the forward of one
    micro-batch, but costs a stage that runs it all of them.
    """
    busy, before_s = pipeline.microbatches * stage_seconds, forward_s
    busy[0] += pipeline.microbatches * ends_s[0]
    busy[-1] += pipeline.microbatches * ends_s[1]
    # long enough for every stage to run all that fits it
    low, high = 0.0, float(busy[np.isfinite(busy)].max()) + pipeline.blocks * before_s
    if not _holds(busy, high, before_s, pipeline.blocks):
        return float("inf")
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _holds(busy, middle, before_s, pipeline.blocks) else (middle, high)
    return low


def _holds(busy: Floats, step_s: float, before_s: float, count: int) -> bool:
    """Whether the stages can run all blocks within a step."""
    taken = 0
    for stage in busy:
        (fitting,) = np.nonzero(stage <= step_s - taken * before_s)
        taken += int(fitting[-1]) if len(fitting) else 0
        if taken >= count:
            return True
    return False
