"""First placements: stages that follow each other in a snake, around dead dies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dovetail.layout.encoding.job_encoding import Tile
from dovetail.mapping.tilings.problem import TileProblem


def best_snake(problem: TileProblem) -> tuple[float, list[int]]:
    """The cheapest snake of equal tiles and its cost; infinite and empty if none fits all stages."""
    best: tuple[float, list[int]] = (math.inf, [])
    for walk in sorted(_walks(problem)):
        for start in range(len(walk) - problem.num_stages + 1):
            placement = list(walk[start : start + problem.num_stages])
            best = min(best, (problem.cost(placement), placement))
    return best if math.isfinite(best[0]) else (math.inf, [])


def _walks(problem: TileProblem) -> set[tuple[int, ...]]:
    """Snakes by bands of rows and of columns, from every corner, with slots in line or shifted past dead dies."""
    grid = problem.grid
    walks: set[tuple[int, ...]] = set()
    for rows, cols in {(tile.rows, tile.cols) for tile in problem.tiles}:
        for y in range(min(rows, grid.rows - rows + 1)):
            for x in range(min(cols, grid.cols - cols + 1)):
                for in_line in (True, False):
                    tops, lefts = range(y, grid.rows - rows + 1, rows), range(x, grid.cols - cols + 1, cols)
                    along_x, along_y = (lefts, tops) if in_line else (range(x, grid.cols), range(y, grid.rows))
                    by_rows = [[Tile(a, b, rows, cols) for a in along_x] for b in tops]
                    by_cols = [[Tile(a, b, rows, cols) for b in along_y] for a in lefts]
                    walks.update(_snakes(problem, by_rows))
                    walks.update(_snakes(problem, by_cols))
    return {walk for walk in walks if len(walk) >= problem.num_stages}


def _snakes(problem: TileProblem, bands: Sequence[Sequence[Tile]]) -> Iterator[tuple[int, ...]]:
    for ordered in (bands, bands[::-1]):
        for parity in (0, 1):
            walk: list[int] = []
            for i, band in enumerate(ordered):
                walk += _packed(problem, band[::-1] if i % 2 == parity else band)
            yield tuple(walk)


def _packed(problem: TileProblem, band: Sequence[Tile]) -> list[int]:
    """The tiles of a band, in order, that are alive and do not overlap the one before."""
    packed: list[int] = []
    for tile in band:
        number = problem.number.get(tile)
        if number is not None and (not packed or problem.disjoint[packed[-1], number]):
            packed.append(number)
    return packed
