"""A warm start by beam search: stage after stage, the most promising placements of the stages so far."""

from __future__ import annotations

import numpy as np

from dovetail.mapping.tilings.bound_kernels import Instance, Scratch
from dovetail.mapping.tilings.problem import TileProblem
from dovetail.mapping.tilings.search_kernels import SearchMemory, expand
from dovetail.mapping.tilings.walks import new_walk

#: Placements tried for each one in the beam.
TRIED = 4


def best_of_beam(
    problem: TileProblem,
    instance: Instance,
    scratch: Scratch,
    memory: SearchMemory,
    width: int,
    below: float,
    slack: float,
) -> tuple[list[int], int]:
    """Tiles of a placement that costs less than `below`, empty if none is met; and the placements examined.

    Among equal bounds, placements that leave more dies to later stages come first.
    """
    walk, looked = new_walk(problem, instance, below), 0
    tried: list[tuple[int, ...]] = [()]
    for depth in range(problem.num_stages):
        opened: list[tuple[float, int, float, tuple[int, ...], list[tuple[float, int]]]] = []
        seen: set[bytes] = set()
        for tiles in tried:
            left = int(expand(instance, walk, scratch, memory, np.array(tiles, np.int64), slack))
            looked += 1
            number, key = int(walk.num_children[depth]), walk.key[depth].tobytes()
            if number and key not in seen:
                seen.add(key)
                bounds = walk.child_bound[depth, :number].tolist()
                children = list(zip(bounds, walk.children[depth, :number].tolist(), strict=True))
                opened.append((bounds[0], -left, float(walk.cost[depth]), tiles, children))
        opened.sort()
        ranked = sorted(
            (bound, rank, tile)
            for rank, (_, _, _, _, children) in enumerate(opened[:width])
            for bound, tile in children
        )
        tried = [(*opened[rank][3], tile) for _, rank, tile in ranked[: TRIED * width]]
    return (list(tried[0]), looked) if tried else ([], looked)
