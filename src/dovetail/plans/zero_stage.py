"""ZeRO in a pipeline."""

from __future__ import annotations

from typing import overload

from dovetail.arrays import Ints


@overload
def effective_zero_stage(zero_stage: int, stages: int) -> int: ...
@overload
def effective_zero_stage(zero_stage: Ints, stages: Ints) -> Ints: ...
def effective_zero_stage(zero_stage: int | Ints, stages: int | Ints) -> int | Ints:
    """The ZeRO stage in effect: gradients of a pipeline are whole until its one reduction, so 2 shards what 1 does."""
    return zero_stage - ((zero_stage == 2) & (stages > 1))
