"""A lower bound of a pipeline of tiles whose stages hold activations for each other."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.frozen import frozen
from dovetail.pipeline.in_flight import in_flight
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule

#: Bisection steps for the bound: far more precise than our tolerance for ties.
HALVINGS = 60


@frozen
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


@frozen
class BlockLowerBound:
    """A lower bound of a block: seconds per micro-batch as a convex function of the bytes it saves."""

    #: saved bytes, ascending, and the lowest seconds with each
    saved_bytes: Floats
    seconds: Floats
    #: weights, gradients and optimizer
    state_bytes: float
    #: the forward's share of these seconds, at least
    forward_s: float


def least_lending_step_s(bound: BlockLowerBound, pipeline: TilePipeline) -> float:
    """A lower bound of a pipeline whose stages hold activations for each other: memory counts for all together.

    With T seconds for a micro-batch, n blocks on a stage with f in flight need at least n·(state + f·σ(T/n)) bytes,
    where σ is the least a block saves in its share of the time. Block after block each stage needs more; the smallest
    of all these additions are together no more than what any way to deal the blocks needs.
    """
    shortest = float(bound.seconds[-1])
    flights = pipeline.flights.astype(np.float64)
    total = pipeline.capacity_bytes * pipeline.stages

    def holds(seconds: float) -> bool:
        numbers = np.arange(1, pipeline.blocks + 1)
        each = seconds / numbers
        # seconds rise as saved bytes fall
        saved = np.interp(each, bound.seconds[::-1], bound.saved_bytes[::-1])
        needed = numbers * (bound.state_bytes + flights[:, None] * saved)
        needed[:, each < shortest] = np.inf
        with np.errstate(invalid="ignore"):
            added = np.diff(np.concatenate([np.zeros((pipeline.stages, 1)), needed], axis=1), axis=1)
        added = np.where(np.isfinite(added), added, np.inf)
        cheapest = np.sort(added, axis=None)[: pipeline.blocks]
        return bool(cheapest.sum() <= total)

    low, high = 0.0, pipeline.blocks * float(bound.seconds[0])
    if not holds(high):
        return float("inf")
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return pipeline.microbatches * low
