"""Groups of neighbouring chips as rectangles of a grid: each degree of a plan takes a factor along every axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product


@lru_cache(maxsize=65536)
def rectangles(sizes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """For every size, innermost first, its factor along each axis of the grid.

    The chips of the first size lie next to each other in the box with the shortest edges, replicas of that box make the
    box of the second, and so on. A box depends on the sizes inside it alone, so what is known of a stage holds however
    many stages there are. Where the product of all sizes divides the grid's chips they always fit; a size that fits
    nowhere (a pipeline that ends inside a wafer) is taken to lie along the first axis.
    """
    left, box = list(shape), [1] * len(shape)
    factors: list[tuple[int, ...]] = []
    for size in sizes:
        ways = _factors(size, left)
        if not ways:
            factors.append((size, *[1] * (len(shape) - 1)))
            continue
        shortest = min(ways, key=lambda way: _edges(box, way))
        factors.append(shortest)
        left = [extent // factor for extent, factor in zip(left, shortest, strict=True)]
        box = [edge * factor for edge, factor in zip(box, shortest, strict=True)]
    return tuple(factors)


def _factors(size: int, extents: Sequence[int]) -> list[tuple[int, ...]]:
    """Ways to write a size as factors that divide what is left of each axis."""
    divisors = [[n for n in range(1, axis + 1) if axis % n == 0 and size % n == 0] for axis in extents]
    return [factors for factors in product(*divisors) if math.prod(factors) == size]


def _edges(box: Sequence[int], factors: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    edges = [edge * factor for edge, factor in zip(box, factors, strict=True)]
    return sum(edges), tuple(-factor for factor in factors)
