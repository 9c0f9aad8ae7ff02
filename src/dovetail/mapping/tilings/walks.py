"""Initial state of a search: its position and its memory."""

from __future__ import annotations

import numpy as np

from dovetail.mapping.tilings.bound_kernels import Instance
from dovetail.mapping.tilings.problem import TileProblem
from dovetail.mapping.tilings.search_kernels import CUTOFF, FRESH, SearchMemory, Walk

#: States that are remembered, a power of two.
REMEMBERED = 1 << 20


def new_walk(problem: TileProblem, instance: Instance, cutoff: float) -> Walk:
    """A search for placements that cost less than the cutoff, at its start."""
    stages, tiles = problem.costs.shape
    walk = Walk(
        counters=np.zeros(3, np.int64),
        values=np.full(2, np.inf),
        best_tiles=np.full(stages, -1, np.int64),
        tiles=np.full(stages, -1, np.int64),
        cost=np.zeros(stages + 1),
        lowest_unopened=np.full(stages + 1, np.inf),
        free=np.ones((stages + 1, tiles), np.bool_),
        stage_cost=np.zeros((stages, stages, tiles)),
        children=np.zeros((stages, tiles), np.int64),
        child_bound=np.zeros((stages, tiles)),
        num_children=np.zeros(stages, np.int64),
        next_child=np.zeros(stages, np.int64),
        key=np.zeros((stages, _key_words(problem, instance)), np.uint64),
    )
    walk.stage_cost[0] = problem.costs
    walk.counters[FRESH] = 1
    walk.values[CUTOFF] = cutoff
    return walk


def new_memory(problem: TileProblem, instance: Instance) -> SearchMemory:
    """An empty memory."""
    return SearchMemory(np.zeros((REMEMBERED, _key_words(problem, instance)), np.uint64), np.full(REMEMBERED, -1.0))


def _key_words(problem: TileProblem, instance: Instance) -> int:
    """Dies as bits, then eight bits for the depth and fourteen for every stage that sends to a later one."""
    num_heard = int(np.diff(instance.heard_start).max(initial=0))
    return -(-problem.grid.rows * problem.grid.cols // 64) + 1 + -(-num_heard // 4)
