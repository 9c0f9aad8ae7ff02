"""A placement when space is tight: tiles that are known to fit, in a good order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail.layout.encoding.job_encoding import Tile
from dovetail.mapping.tilings.problem import TileProblem


def ordered_packing(problem: TileProblem, packing: Sequence[Tile]) -> list[int]:
    """Stages on disjoint tiles, each near the one before, improved by 2-opt; empty if this is impossible.

    Only for stages that all accept the same shapes: otherwise a packing does not say which stage may use which tile.
    """
    allowed = [tuple(row) for row in (problem.costs < math.inf).tolist()]
    if len(set(allowed)) > 1 or len(packing) < problem.num_stages:
        return []
    numbers = [problem.number[tile] for tile in packing]
    starts = [_nearest(problem, numbers, first) for first in numbers]
    cost, best = min((problem.cost_of_disjoint(start), start) for start in starts)
    improved = True
    while improved:
        improved = False
        for i in range(problem.num_stages):
            for j in range(i + 2, problem.num_stages + 1):
                turned = best[:i] + best[i:j][::-1] + best[j:]
                other = problem.cost_of_disjoint(turned)
                if other < cost:
                    cost, best, improved = other, turned, True
    return best if math.isfinite(cost) else []


def _nearest(problem: TileProblem, numbers: Sequence[int], first: int) -> list[int]:
    """From a first tile on, always the nearest remaining one."""
    walk, remaining = [first], sorted(set(numbers) - {first})
    while len(walk) < problem.num_stages:
        here = walk[-1]
        walk.append(min(remaining, key=lambda tile: (problem.hops[here, tile], tile)))
        remaining.remove(walk[-1])
    return walk
