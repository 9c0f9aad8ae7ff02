"""A tile problem as the arrays that the compiled search reads."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Bools, Floats, Ints, Words
from dovetail.mapping.tilings.bound_kernels import Instance, Scratch
from dovetail.mapping.tilings.problem import TileProblem, die_numbers


def instance_of(problem: TileProblem) -> Instance:
    """The arrays of a problem."""
    stages = problem.num_stages
    links = np.zeros(stages)
    for a, b, weight in problem.edges:
        if b == a + 1:
            links[a] = weight
    edge_start = np.searchsorted([a for a, _, _ in problem.edges], np.arange(stages + 1)).astype(np.int64)
    # by number of placed stages: those that send to a later one
    heard = [sorted({a for a, b, _ in problem.edges if a < placed <= b}) for placed in range(stages)]
    areas = np.array([tile.rows * tile.cols for tile in problem.tiles], np.int64)
    smallest = [int(areas[np.isfinite(row)].min()) for row in problem.costs]
    reached = problem.disjoint & np.isfinite(problem.hops)
    # tiles are sorted row by row, so those that begin with the same die are adjacent
    first_dies = [die_numbers(problem.grid, tile)[0] for tile in problem.tiles]
    patterns, in_pattern = _patterns(problem)
    return Instance(
        largest=problem.minimise == "max",
        costs=problem.costs,
        first_tiles=problem.first_tiles(),
        hops=problem.hops,
        disjoint=problem.disjoint,
        near=_nearest_first(problem),
        touching=_padded([np.flatnonzero(~row).tolist() for row in problem.disjoint]),
        last_die=np.array([die_numbers(problem.grid, tile)[-1] for tile in problem.tiles], np.int64),
        begins=np.searchsorted(first_dies, np.arange(problem.grid.rows * problem.grid.cols + 1)).astype(np.int64),
        words=_as_words(_holds(problem)),
        patterns=patterns,
        in_pattern=in_pattern,
        links=links,
        edge_start=edge_start,
        edge_to=np.array([b for _, b, _ in problem.edges], np.int64),
        edge_weight=np.array([weight for _, _, weight in problem.edges], np.float64),
        heard_start=np.cumsum([0, *map(len, heard)]).astype(np.int64),
        heard=np.array([stage for stages_heard in heard for stage in stages_heard], np.int64),
        rest=_rest(problem),
        least_area=np.array([min(smallest[placed:]) for placed in range(stages)], np.int64),
        whole_area=np.array([sum(smallest[placed:]) for placed in range(stages)], np.int64),
        few_links=_few_links(problem, links),
        hop_counts=np.unique(problem.hops[reached]),
    )


def scratch_of(problem: TileProblem) -> Scratch:
    """Scratch arrays for the search of a problem."""
    stages, tiles = problem.costs.shape
    dies = problem.grid.rows * problem.grid.cols
    return Scratch(
        ahead=np.zeros((stages, tiles)),
        live=np.zeros(tiles, np.bool_),
        words=np.zeros(-(-dies // 64), np.uint64),
        part=np.zeros(tiles, np.int64),
        queue=np.zeros(tiles, np.int64),
        part_dies=np.zeros(-(-dies // 64), np.uint64),
        struck=np.zeros(-(-dies // 64), np.uint64),
        capacity=np.zeros(tiles, np.int64),
        left=np.zeros((dies + 2, -(-dies // 64)), np.uint64),
        steps=np.zeros((dies + 2, 3), np.int64),
    )


def _nearest_first(problem: TileProblem) -> Ints:
    neighbours: list[list[int]] = []
    for hops, disjoint in zip(problem.hops, problem.disjoint, strict=True):
        others = np.flatnonzero(disjoint & np.isfinite(hops))
        neighbours.append(others[np.argsort(hops[others], kind="stable")].tolist())
    return _padded(neighbours)


def _padded(lists: list[list[int]]) -> Ints:
    """Lists as rows, with at least one −1 behind each."""
    padded = np.full((len(lists), max(map(len, lists)) + 1), -1, np.int64)
    for row, numbers in zip(padded, lists, strict=True):
        row[: len(numbers)] = numbers
    return padded


def _rest(problem: TileProblem) -> Floats:
    """By number of placed stages: the lowest cost of edges between later ones, except to the next stage."""
    rest = np.zeros(problem.num_stages + 1)
    for a, b, weight in problem.edges:
        if b > a + 1:
            rows, cols = np.isfinite(problem.costs[a]), np.isfinite(problem.costs[b])
            pairs = np.where(problem.disjoint, problem.hops, np.inf)[np.ix_(rows, cols)]
            lowest = weight * float(pairs.min(initial=np.inf))
            part = rest[: a + 1]
            part[:] = np.maximum(part, lowest) if problem.minimise == "max" else part + lowest
    return rest


def _few_links(problem: TileProblem, links: Floats) -> Floats:
    """By number of placed stages p, and m: the cost of one hop on each of the m cheapest steps from stage p − 1 on."""
    stages = problem.num_stages
    costs = np.zeros((stages, stages + 1))
    for placed in range(stages):
        steps = np.sort(links[max(placed - 1, 0) : stages - 1])
        if problem.minimise == "max":
            # the most expensive of m steps: the m-th cheapest
            costs[placed, 1 : len(steps) + 1] = steps
        else:
            costs[placed, 1 : len(steps) + 1] = np.cumsum(steps)
    return costs


def _holds(problem: TileProblem) -> Bools:
    """By tile and die: whether the tile covers it."""
    holds = np.zeros((len(problem.tiles), problem.grid.rows * problem.grid.cols), np.bool_)
    for row, tile in zip(holds, problem.tiles, strict=True):
        row[die_numbers(problem.grid, tile)] = True
    return holds


def _as_words(dies: Bools) -> Words:
    """Rows of booleans as bits."""
    padded = np.zeros((len(dies), -(-dies.shape[1] // 64) * 64), np.bool_)
    padded[:, : dies.shape[1]] = dies
    bits = padded.reshape(len(dies), -1, 64).astype(np.uint64) << np.arange(64, dtype=np.uint64)
    return bits.sum(axis=2, dtype=np.uint64)


def _patterns(problem: TileProblem) -> tuple[Words, Ints]:
    """Sets of dies that every tile hits, and how often at least: this limits how many tiles fit.

    We use every n-th row crossed with every m-th column, and diagonals: each 2 × 2 tile covers one die in an odd row
    and odd column, and each tile of four dies covers two dies of either colour of a chessboard.
    """
    high, wide = max(tile.rows for tile in problem.tiles), max(tile.cols for tile in problem.tiles)
    rows, cols = np.divmod(np.arange(problem.grid.rows * problem.grid.cols), problem.grid.cols)
    classes = [
        (rows % n == row) & (cols % m == col)
        for n in range(1, high + 1)
        for m in range(1, wide + 1)
        for row in range(n)
        for col in range(m)
    ]
    classes += [(rows + sign * cols) % n == k for n in range(2, high + wide) for sign in (1, -1) for k in range(n)]
    holds = _holds(problem)
    number = {tuple(each.tolist()): int((holds & each).sum(axis=1).min()) for each in classes}
    useful = sorted((dies, fewest) for dies, fewest in number.items() if fewest > 0)
    patterns = np.array([dies for dies, _ in useful], np.bool_).reshape(len(useful), len(rows))
    return _as_words(patterns), np.array([fewest for _, fewest in useful], np.int64)
