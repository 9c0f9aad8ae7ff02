"""The bound of a pipeline of tiles against every way to deal blocks and layouts to its stages."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dovetail.search.tiles.least_step import BlockFloor, TilePipeline, least_step_s


def dealt(count: int, stages: int):
    """Blocks per stage, every way."""
    if stages == 1:
        yield (count,)
        return
    for first in range(count + 1):
        yield from ((first, *rest) for rest in dealt(count - first, stages - 1))


def by_trying_all(block: BlockFloor, pipeline: TilePipeline) -> float:
    """The least over all deals and all choices of the two points by every block."""
    best, floor, count = float("inf"), float(block.seconds.min()), pipeline.blocks
    for numbers in dealt(count, pipeline.stages):
        step, before = 0.0, 0
        for stage, number in enumerate(numbers):
            held = min(pipeline.microbatches, pipeline.stages - stage)
            own = [0.0] if not number else []
            for lean in range(number + 1) if number else ():
                kept = lean * block.saved_bytes[0] + (number - lean) * block.saved_bytes[-1]
                if number * block.state_bytes + held * kept <= pipeline.capacity_bytes:
                    own.append(lean * block.seconds[0] + (number - lean) * block.seconds[-1])
            busy = pipeline.microbatches * min(own, default=float("inf"))
            step = max(step, busy + before * pipeline.drain * floor)
            before += number
        best = min(best, step)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_no_deal_of_blocks_is_faster(seed):
    random = np.random.default_rng(seed)
    lean, whole = sorted(random.choice(9, 2, replace=False).astype(float))
    slow, fast = sorted(random.integers(1, 9, 2).astype(float), reverse=True)
    block = BlockFloor(np.array([lean, whole]), np.array([slow, fast]), float(random.integers(1, 9)))
    for stages, count, microbatches in product((1, 2, 3), (1, 4, 7), (1, 5)):
        capacity, drain = float(random.integers(5, 90)), float(random.choice([0.0, 0.5, 1.0]))
        pipeline = TilePipeline(stages, microbatches, count, capacity, drain)
        wanted = by_trying_all(block, pipeline)
        found = least_step_s(block.stage_seconds(pipeline), float(block.seconds.min()), pipeline)
        assert found <= wanted * (1 + 1e-9)
        if np.isfinite(wanted):
            # blocks are whole, the bound's mean of them is not; and stages without blocks wait for nobody
            assert found >= wanted - (microbatches + count) * max(slow, fast) - 1e-9
        else:
            assert found == float("inf")
        if not drain and slow == fast:
            assert found == pytest.approx(wanted)
