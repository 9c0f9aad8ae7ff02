"""The lower bound of one skeleton of free plans, which knowing more of its blocks raises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.frozen import frozen
from dovetail.mapping.tiles.least_step import BlockLowerBound, TilePipeline, least_lending_step_s
from dovetail.mapping.tiles.least_step_kernels import pipeline_least_s

#: No bounds with a price on memory.
NO_LINES = np.zeros((0, 3))


@frozen
class PipelineBound:
    """What is known of one skeleton; knowing more of its blocks raises the bound."""

    #: the class of every block in order, and the number of the main one
    order: Ints
    main: int
    #: stages and micro-batches
    pipeline: tuple[int, int]
    #: by class of blocks: bytes a micro-batch saves, ascending, the fewest seconds with each, forward, state
    saved_bytes: Floats
    seconds: Floats
    forward_s: Floats
    state_bytes: Floats
    #: what a die needs for the block at work
    working_bytes: float
    #: what the first and the last stage do besides blocks, and its state
    ends_s: Floats
    ends_bytes: Floats
    capacity_bytes: float
    update_s: float
    #: what streams of a store take beside the pipeline
    streamed_s: float = 0.0

    @property
    def share_bytes(self) -> float:
        """The memory of a die for each block."""
        return self.pipeline[0] * self.capacity_bytes / len(self.order)

    def with_block(self, least_s: float) -> PipelineBound:
        """The same if no layout of the main block takes less."""
        seconds = self.seconds.copy()
        seconds[self.main] += max(least_s - seconds[self.main, -1], 0.0)
        return replace(self, seconds=seconds)

    def with_ends(self, ends_s: tuple[float, float]) -> PipelineBound:
        """The same if no layout of the other layers takes less."""
        return replace(self, ends_s=np.maximum(self.ends_s, ends_s))

    def least_s(self, lines: Floats = NO_LINES, enough_s: float = float("inf")) -> float:
        """The lower bound; `lines` are those of `least_step_kernels`."""
        enough_s = max(enough_s - self.update_s, 0.0)
        least = pipeline_least_s(
            self.order,
            self.main,
            self.pipeline,
            self.saved_bytes,
            self.seconds,
            self.forward_s,
            self.state_bytes,
            self.working_bytes,
            self.ends_s,
            self.ends_bytes,
            self.capacity_bytes,
            lines,
            0.0,
            enough_s,
        )
        return max(float(least), self.streamed_s) + self.update_s

    def least_lending_s(self) -> float:
        """The same if stages hold activations for each other; blocks of other classes are left out."""
        bound = BlockLowerBound(
            self.saved_bytes[self.main],
            self.seconds[self.main],
            float(self.state_bytes[self.main]),
            float(self.forward_s[self.main]),
        )
        stages, microbatches = self.pipeline
        blocks = int((self.order == self.main).sum())
        least = least_lending_step_s(bound, TilePipeline(stages, microbatches, blocks, self.capacity_bytes))
        return max(least, self.streamed_s) + self.update_s
