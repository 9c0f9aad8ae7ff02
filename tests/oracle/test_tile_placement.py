"""Stages on tiles against all placements of small wafers, most tiles against packings, lent memory against LPs."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from ortools.linear_solver import pywraplp
from tile_brute_force import all_tiles, cheapest, cost_of, random_case, random_grid

from dovetail.layout.encoding.wafer_grid import WaferGrid
from dovetail.mapping.tilings import StageShapes, helpers, most_tiles, place_tiles

FOURS = ((1, 4), (2, 2), (4, 1))


def agrees(seed):
    grid, stages, edges, minimise = random_case(seed)
    found, best = place_tiles(grid, stages, edges, minimise=minimise), cheapest(grid, stages, edges, minimise)
    assert found.proven, seed
    assert found.bound == found.cost == pytest.approx(best, rel=1e-9), seed
    if found.tiles:
        assert cost_of(grid, found.tiles, stages, edges, minimise) == pytest.approx(best, rel=1e-9), seed
    return math.isfinite(best)


def test_small_wafers_have_the_least_cost_of_all_placements():
    assert sum(agrees(seed) for seed in range(300)) > 150


@pytest.mark.slow
def test_many_small_wafers_have_the_least_cost_of_all_placements():
    assert sum(agrees(seed) for seed in range(300, 6000)) > 2500


def pipeline(number, weight=1.0):
    return [(i, i + 1, weight) for i in range(number - 1)]


@pytest.mark.parametrize(
    ("rows", "cols", "number", "shapes", "more", "cost"),
    [
        (8, 7, 12, [(2, 2)], [], 22),
        (8, 7, 14, FOURS, [], 16),
        (8, 7, 14, [(2, 2), (4, 1)], [], 16),
        (8, 7, 14, FOURS, [(0, 13, 1.0)], 20),
        (8, 7, 7, [(8, 1)], [], 6),
        (8, 7, 28, [(1, 2), (2, 1)], [], 30),
        (8, 6, 12, [(2, 2)], [(i, 11 - i, 0.5) for i in range(4)], 28),
    ],
)
def test_whole_wafers_are_proven(rows, cols, number, shapes, more, cost):
    stages, edges = [StageShapes(tuple(shapes))] * number, pipeline(number) + more
    found = place_tiles(WaferGrid(rows, cols), stages, edges, node_limit=20_000)
    assert (found.cost, found.proven) == (cost, True)
    assert cost_of(WaferGrid(rows, cols), found.tiles, stages, edges) == cost


@pytest.mark.parametrize("seed", range(4))
def test_damaged_wafers_full_of_stages_keep_their_promise(seed):
    """Of two limits the longer search finds nothing below the bound of the shorter one."""
    grid = random_grid(np.random.default_rng(seed), 6, 6, 0.1, 0.03)
    number, _ = most_tiles(grid, FOURS)
    stages, edges = [StageShapes(FOURS, (0.5, 0.0, 0.25))] * number, pipeline(number, 0.7)
    short, long = (place_tiles(grid, stages, edges, node_limit=limit) for limit in (3, 20_000))
    assert long.proven
    assert short.bound <= long.cost + 1e-9 <= short.cost + 2e-9
    for found in (short, long):
        assert cost_of(grid, found.tiles, stages, edges) == pytest.approx(found.cost)


def most_by_trying(grid, shapes):
    """By the first die that is left: it stays empty or begins a tile."""
    tiles = [frozenset(dies) for _, dies in all_tiles(grid, shapes)]

    def most(left):
        if not left:
            return 0
        first = min(left)
        found = most(left - {first})
        return max([found, *(1 + most(left - tile) for tile in tiles if min(tile) == first and tile <= left)])

    return most(frozenset(product(range(grid.cols), range(grid.rows))) - grid.dead)


def packings_agree(seed):
    random = np.random.default_rng(seed)
    rows, cols = (int(n) for n in random.integers(2, 5, 2))
    grid = random_grid(random, rows, cols, random.choice([0.0, 0.1, 0.2]), random.choice([0.0, 0.1]))
    every = [(1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (2, 3), (4, 1), (1, 1)]
    shapes = [every[i] for i in random.integers(0, len(every), int(random.integers(1, 4)))]
    if (1, 1) in shapes and random.integers(4):
        shapes = [(2, 2)]
    number, tiles = most_tiles(grid, shapes)
    known = {tile for tile, _ in all_tiles(grid, shapes)}
    assert {(tile.x, tile.y, tile.rows, tile.cols) for tile in tiles} <= known
    assert len({die for tile in tiles for die in tile.dies()}) == sum(tile.rows * tile.cols for tile in tiles)
    assert len(tiles) == number == most_by_trying(grid, shapes), seed


def test_most_tiles_are_as_many_as_any_packing_has():
    for seed in range(60):
        packings_agree(seed)


@pytest.mark.slow
def test_most_tiles_of_many_wafers_are_as_many_as_any_packing_has():
    for seed in range(60, 1000):
        packings_agree(seed)


def lent_by_lp(need, spare, distance):
    """The least bytes × hops; None where memory does not suffice."""
    solver, number = pywraplp.Solver.CreateSolver("GLOP"), len(need)
    pairs = [(a, b) for a, b in product(range(number), repeat=2) if a != b and math.isfinite(distance[a][b])]
    lent = {pair: solver.NumVar(0, solver.infinity(), "") for pair in pairs}
    for stage in range(number):
        solver.Add(sum(lent[pair] for pair in pairs if pair[0] == stage) == float(need[stage]))
        solver.Add(sum(lent[pair] for pair in pairs if pair[1] == stage) <= float(spare[stage]))
    solver.Minimize(sum(distance[a][b] * lent[a, b] for a, b in pairs))
    return solver.Objective().Value() if solver.Solve() == pywraplp.Solver.OPTIMAL else None


def lent_by_trying(need, spare, distance):
    lacking = [stage for stage, bytes_ in enumerate(need) if bytes_ > 0]
    best = math.inf
    for chosen in product(range(len(need)), repeat=len(lacking)):
        held = np.zeros(len(need))
        for stage, helper in zip(lacking, chosen, strict=True):
            held[helper] += need[stage]
        if (held <= np.array(spare) + 1e-9).all() and all(a != b for a, b in zip(lacking, chosen, strict=True)):
            best = min(best, sum(need[a] * distance[a][b] for a, b in zip(lacking, chosen, strict=True)))
    return best if math.isfinite(best) else None


def random_memory(seed):
    random = np.random.default_rng(seed)
    number, whole = int(random.integers(2, 7)), bool(random.integers(2))
    need, spare = (random.integers(0, 6, number).astype(float) if whole else random.random(number) for _ in range(2))
    lacks = random.random(number) < 0.5
    need, spare = np.where(lacks, need, 0), np.where(lacks & (random.random(number) < 0.8), 0, spare * 1.5)
    distance = random.integers(1, 8, (number, number)).astype(float)
    distance[random.random((number, number)) < 0.05] = np.inf
    return need.tolist(), spare.tolist(), distance.tolist()


def lending_agrees(seed):
    need, spare, distance = random_memory(seed)
    for one_helper, oracle in ((False, lent_by_lp), (True, lent_by_trying)):
        found, best = helpers(need, spare, distance, one_helper=one_helper), oracle(need, spare, distance)
        if best is None:
            assert found is None, seed
            continue
        assert found is not None, seed
        assert sum(lent * distance[a][b] for a, b, lent in found) == pytest.approx(best, rel=1e-7, abs=1e-7), seed
        given, held = np.zeros(len(need)), np.zeros(len(need))
        for stage, helper, lent in found:
            assert stage != helper
            assert lent > 0
            given[stage] += lent
            held[helper] += lent
        assert given == pytest.approx(np.array(need))
        assert (held <= np.array(spare) + 1e-9).all()
        assert not one_helper or len({stage for stage, _, _ in found}) == len(found)


def test_lent_memory_is_as_near_as_any():
    for seed in range(200):
        lending_agrees(seed)


@pytest.mark.slow
def test_lent_memory_of_many_stages_is_as_near_as_any():
    for seed in range(200, 4000):
        lending_agrees(seed)
