"""The bound of a pipeline of tiles against every way to deal blocks and recompute choices to its stages."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, pairwise, product

import numpy as np
import pytest

from dovetail.mapping.tiles.pipeline_bound import PipelineBound
from dovetail.pipeline.chunk_times import ChunkTimes
from dovetail.pipeline.step_time import step_time
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule


def random_floor(random: np.random.Generator, stages: int, blocks: int, microbatches: int) -> PipelineBound:
    """Two classes, the main one last; each block saves little and is slow, or saves much and is fast."""
    saved = np.sort(random.integers(0, 9, (2, 2)), axis=1).astype(float)
    seconds = -np.sort(-random.integers(1, 9, (2, 2)), axis=1).astype(float)
    ends = random.choice([0.0, 1.0, 5.0], (2, 2))
    return PipelineBound(
        order=np.array([0] * int(random.integers(0, 2)) + [1] * blocks),
        main=1,
        pipeline=(stages, microbatches),
        saved_bytes=saved,
        seconds=seconds,
        forward_s=float(random.choice([0.0, 0.5, 1.0])) * seconds[:, 1],
        state_bytes=random.integers(1, 9, 2).astype(float),
        working_bytes=float(random.choice([0.0, 3.0])),
        ends_s=ends[0],
        ends_bytes=ends[1],
        capacity_bytes=float(random.integers(5, 90)),
        update_s=0.0,
    )


def stage_s(floor: PipelineBound, classes: list[int], stage: int) -> float:
    """The fewest seconds of a micro-batch over all choices of the blocks of a stage that fit."""
    stages, microbatches = floor.pipeline
    first, last = stage == 0, stage == stages - 1
    room = floor.capacity_bytes - first * floor.ends_bytes[0] - last * floor.ends_bytes[1]
    room -= floor.working_bytes if classes else 0.0
    flying, best = min(microbatches, stages - stage), float("inf")
    for choice in product((0, 1), repeat=len(classes)):
        chosen = list(zip(classes, choice, strict=True))
        used = sum(floor.state_bytes[c] + flying * floor.saved_bytes[c, k] for c, k in chosen)
        if used <= room:
            best = min(best, sum(floor.seconds[c, k] for c, k in chosen))
    return best + first * floor.ends_s[0] + last * floor.ends_s[1]


def by_trying_all(floor: PipelineBound) -> float:
    """The least over all deals of blocks."""
    (stages, microbatches), order, best = floor.pipeline, floor.order.tolist(), float("inf")
    for cuts in combinations_with_replacement(range(len(order) + 1), stages - 1):
        step = before = 0.0
        for stage, (start, end) in enumerate(pairwise((0, *cuts, len(order)))):
            busy = stage_s(floor, order[start:end], stage)
            if busy > 0:
                step = max(step, before + microbatches * busy)
            before += float(sum(floor.forward_s[c] for c in order[start:end]))
        best = min(best, step)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_no_deal_of_blocks_is_faster(seed):
    random = np.random.default_rng(seed)
    for stages, blocks, microbatches in product((1, 2, 3), (1, 4, 6), (1, 5)):
        floor = random_floor(random, stages, blocks, microbatches)
        wanted, found = by_trying_all(floor), floor.least_s()
        assert found <= wanted * (1 + 1e-9)
        if found == float("inf"):
            continue
        # blocks are whole, the bound's mean of them is not; others than the main ones may be faster in it
        alike = replace(floor, seconds=np.maximum(floor.seconds, floor.seconds[:, :1]))
        if not floor.forward_s.any() and (floor.order == 1).all():
            assert alike.least_s() == pytest.approx(by_trying_all(alike))
        # a bound known to be high enough need not be higher
        assert min(found, 3.0) <= floor.least_s(enough_s=3.0) <= wanted * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_prices_on_memory_bound_every_deal(seed):
    """Lines of the cheapest choice at any price keep the bound below everything, and never lower it."""
    random = np.random.default_rng(seed)
    for stages, blocks in product((1, 2, 3), (3, 5)):
        floor = random_floor(random, stages, blocks, 4)
        lines = []
        for price, flying in product((0.0, 0.1, 0.5, 2.0), range(1, stages + 1)):
            used = floor.state_bytes[1] + flying * floor.saved_bytes[1]
            lines.append((price, flying, float((floor.seconds[1] + price * used).min())))
        wanted, found = by_trying_all(floor), floor.least_s(np.array(lines))
        assert floor.least_s() <= found * (1 + 1e-9)
        assert found <= wanted * (1 + 1e-9)


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
        floor = PipelineBound(
            np.zeros(p, np.int64), 0, (p, m), np.array([[1.0]]), np.array([[total]]), np.array([forward]),
            np.array([1.0]), 0.0, np.zeros(2), np.zeros(2), 1e9, 0.0,
        )  # fmt: skip
        assert floor.least_s() <= step * (1 + 1e-9)
