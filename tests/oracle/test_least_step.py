"""The bound of a pipeline of tiles against every way to deal blocks and layouts to its stages."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dovetail.mapping.tiles.least_step import BlockFloor, TilePipeline, least_step_s
from dovetail.pipeline.step_time import ChunkTimes, step_time
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule


def dealt(count: int, stages: int):
    """Blocks per stage, every way."""
    if stages == 1:
        yield (count,)
        return
    for first in range(count + 1):
        yield from ((first, *rest) for rest in dealt(count - first, stages - 1))


def by_trying_all(block: BlockFloor, pipeline: TilePipeline, forward_s: float) -> float:
    """The least over all deals and all choices of the two points by every block."""
    best, count = float("inf"), pipeline.blocks
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
            step = max(step, busy + before * forward_s)
            before += number
        best = min(best, step)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_no_deal_of_blocks_is_faster(seed):
    random = np.random.default_rng(seed)
    lean, whole = sorted(random.choice(9, 2, replace=False).astype(float))
    slow, fast = sorted(random.integers(1, 9, 2).astype(float), reverse=True)
    block = BlockFloor(np.array([lean, whole]), np.array([slow, fast]), float(random.integers(1, 9)), 0.0)
    for stages, count, microbatches in product((1, 2, 3), (1, 4, 7), (1, 5)):
        capacity, forward = float(random.integers(5, 90)), float(random.choice([0.0, 0.5, 1.0])) * fast
        pipeline = TilePipeline(stages, microbatches, count, capacity)
        wanted = by_trying_all(block, pipeline, forward)
        found = least_step_s(block.stage_seconds(pipeline), forward, pipeline)
        assert found <= wanted * (1 + 1e-9)
        if np.isfinite(wanted):
            # blocks are whole, the bound's mean of them is not; and stages without blocks wait for nobody
            assert found >= wanted - (microbatches + count) * max(slow, fast) - 1e-9
        else:
            assert found == float("inf")
        if not forward and slow == fast:
            assert found == pytest.approx(wanted)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_no_schedule_of_equal_stages_is_faster(schedule):
    for p, m, (forward, of_input, of_weight) in product(
        (1, 2, 4, 8, 14), (4, 8, 16, 42), ((1.0, 1.0, 1.0), (1.0, 1.5, 0.9), (1.0, 1.3, 0.8), (1.0, 0.6, 1.2))
    ):
        shape = (1, p)
        chunks = ChunkTimes(
            np.full(shape, forward),
            np.full(shape, of_input),
            np.full(shape, of_weight),
            transfer_s=np.zeros((1, p - 1)),
        )
        step = float(step_time(Pipeline(PipelineSchedule(schedule), p, m, 1), chunks)[0])
        total = forward + of_input + of_weight
        block = BlockFloor(np.array([1.0]), np.array([total]), 1.0, forward)
        pipeline = TilePipeline(p, m, p, 1e9)
        assert least_step_s(block.stage_seconds(pipeline), forward, pipeline) <= step * (1 + 1e-9)
