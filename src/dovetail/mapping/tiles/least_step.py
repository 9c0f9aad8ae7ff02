"""What a pipeline of tiles takes at least, when every block may have a layout and a recompute choice of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.pipeline.in_flight import in_flight
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule

#: Halvings of the interval the bound is searched in: far below what is called a tie.
HALVINGS = 60


@dataclass(frozen=True, slots=True)
class TilePipeline:
    """Stages on equal tiles that work on microbatches one after another, and the equal blocks dealt to them."""

    stages: int
    microbatches: int
    blocks: int
    #: of a die, for the state and what is kept of the microbatches in flight
    capacity_bytes: float

    @property
    def flights(self) -> Ints:
        """Microbatches that each stage has in flight at least: those of 1F1B, and other schedules no fewer."""
        return in_flight(Pipeline(PipelineSchedule.ONE_F_ONE_B, self.stages, self.microbatches))


@dataclass(frozen=True, slots=True)
class BlockLowerBound:
    """What a block takes at least: seconds of a microbatch as a convex function of the bytes it keeps of it."""

    #: bytes kept, ascending, and the seconds these take at least
    saved_bytes: Floats
    seconds: Floats
    #: weights, gradients and optimizer
    state_bytes: float
    #: of these seconds, the forward's at least
    forward_s: float

    def slower(self, seconds: float) -> BlockLowerBound:
        """The same with so much more for every microbatch."""
        return replace(self, seconds=self.seconds + seconds)

    def stage_seconds(self, pipeline: TilePipeline) -> Floats:
        """Least seconds of a microbatch by stage and number of blocks on it; endless where they do not fit.

        Blocks may differ, so their mean may lie between what two of them keep.
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
    """Seconds below which no pipeline falls, of what its stages take with so many blocks and a block's forward takes.

    `ends_s` is what the first and the last stage do beside their blocks.

    A stage works m times on its blocks, after the first microbatch's forward has passed those of the stages before;
    what follows its last work is not counted, since weight gradients can fill it (ZB-H1). For a given step each stage
    takes as many blocks as it can: more on one stage never leave room for more in all on those behind it, since a block
    costs them a forward of one microbatch and itself all of them.
    """
    busy, before_s = pipeline.microbatches * stage_seconds, forward_s
    busy[0] += pipeline.microbatches * ends_s[0]
    busy[-1] += pipeline.microbatches * ends_s[1]
    # as long as every stage can do all that fits it
    low, high = 0.0, float(busy[np.isfinite(busy)].max()) + pipeline.blocks * before_s
    if not _holds(busy, high, before_s, pipeline.blocks):
        return float("inf")
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _holds(busy, middle, before_s, pipeline.blocks) else (middle, high)
    return low


def _holds(busy: Floats, step_s: float, before_s: float, count: int) -> bool:
    """Whether the stages can take all blocks within a step."""
    taken = 0
    for stage in busy:
        (fitting,) = np.nonzero(stage <= step_s - taken * before_s)
        taken += int(fitting[-1]) if len(fitting) else 0
        if taken >= count:
            return True
    return False
