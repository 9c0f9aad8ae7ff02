"""ZeRO in a pipeline."""

from __future__ import annotations

from typing import TypeVar

from dovetail.arrays import Ints

Stage = TypeVar("Stage", int, Ints)


def effective_zero_stage(zero_stage: Stage, stages: Stage) -> Stage:
    """The ZeRO stage in effect: gradients of a pipeline are whole until its one reduction, so 2 shards what 1 does."""
    return zero_stage - ((zero_stage == 2) & (stages > 1))
