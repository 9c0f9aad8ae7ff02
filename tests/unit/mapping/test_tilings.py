"""Stages on tiles: what counts as a hop, what is refused, what limits leave; memory that stages lend."""

from __future__ import annotations

import math

import pytest

from dovetail.errors import InputError
from dovetail.layout.encoding.job_encoding import Tile
from dovetail.layout.encoding.wafer_grid import WaferGrid
from dovetail.mapping.tilings import StageShapes, helpers, most_tiles, place_tiles, tile_problem

PAIR = StageShapes(((1, 2),))


def hops(grid, one, other):
    shapes = [StageShapes(((tile.rows, tile.cols),)) for tile in (one, other)]
    problem = tile_problem(grid, shapes, [(0, 1, 1.0)])
    return problem.hops[problem.number[one], problem.number[other]]


def test_hops_are_the_longest_way_between_fellows():
    grid = WaferGrid(4, 4)
    assert hops(grid, Tile(0, 0, 2, 2), Tile(2, 0, 2, 2)) == 2
    assert hops(grid, Tile(0, 0, 2, 2), Tile(2, 2, 2, 2)) == 4
    # row by row: (0, 0) to (0, 2), (1, 0) to (0, 3), (0, 1) to (1, 2), (1, 1) to (1, 3)
    assert hops(grid, Tile(0, 0, 2, 2), Tile(0, 2, 2, 2)) == 2
    # the fourth die of the line lies two rows below its fellow, one column on
    assert hops(grid, Tile(0, 0, 2, 2), Tile(2, 0, 4, 1)) == 3
    # three dies send to two: the third to the first again
    assert hops(grid, Tile(0, 0, 1, 3), Tile(0, 1, 1, 2)) == 3


def test_ways_lead_around_what_is_dead():
    around = WaferGrid(3, 3, frozenset({(1, 0), (1, 1)}))
    assert hops(around, Tile(0, 0, 1, 1), Tile(2, 0, 1, 1)) == 6
    cut = WaferGrid(1, 4, dead_links=frozenset({((1, 0), (2, 0))}))
    assert hops(cut, Tile(0, 0, 1, 2), Tile(2, 0, 1, 2)) == math.inf
    assert place_tiles(cut, [PAIR, PAIR], [(0, 1, 1.0)]).cost == math.inf
    # who sends nothing may lie anywhere
    assert place_tiles(cut, [PAIR, PAIR], [(0, 1, 0.0)]).cost == 0
    # and a tile needs live links of its own
    assert place_tiles(WaferGrid(1, 2, dead_links=frozenset({((0, 0), (1, 0))})), [PAIR], []).tiles == ()


def test_too_many_stages_are_proven_not_to_fit():
    found = place_tiles(WaferGrid(3, 3), [StageShapes(((2, 2),))] * 2, [(0, 1, 1.0)])
    assert (found.tiles, found.cost, found.bound, found.proven) == ((), math.inf, math.inf, True)
    assert found.gap == 0
    # five pairs fit, but not so that all reach each other
    parted, pairs = WaferGrid(2, 6, frozenset({(3, 0), (3, 1)})), [StageShapes(((1, 2), (2, 1)))] * 5
    assert place_tiles(parted, pairs, [(0, a, 1.0) for a in range(1, 5)]).cost == math.inf
    assert place_tiles(parted, pairs, [(0, 1, 1.0), (1, 2, 1.0), (3, 4, 1.0)]).cost == 3


def test_shapes_are_chosen_by_their_cost():
    near, dear = StageShapes(((1, 4), (2, 2)), (0.0, 1.0)), StageShapes(((1, 4), (2, 2)), (0.0, 9.0))
    found = place_tiles(WaferGrid(2, 4), [near, near], [(0, 1, 1.0)])
    assert found.cost == 1
    assert {(tile.rows, tile.cols) for tile in found.tiles} == {(1, 4)}
    # where no line of four lives only the dear one is left
    grid = WaferGrid(2, 4, frozenset({(3, 0), (0, 1)}))
    assert place_tiles(grid, [dear], []).cost == 9
    assert place_tiles(WaferGrid(2, 4), [dear, near], [(0, 1, 4.0)], minimise="max").cost == 4


def test_limits_leave_a_bound_and_answers_stay_the_same():
    grid = WaferGrid(6, 6, frozenset({(1, 1), (4, 2), (2, 4)}))
    stages = [StageShapes(((1, 2), (2, 1)))] * 15
    edges = [(i, i + 1, 1.0 + i % 3) for i in range(14)]
    few = place_tiles(grid, stages, edges, node_limit=2_000)
    assert few == place_tiles(grid, stages, edges, node_limit=2_000)
    assert not few.proven
    assert few.bound < few.cost < math.inf
    assert few.gap == pytest.approx(1 - few.bound / few.cost)
    # beside the nodes of the limit only those that a beam had begun with
    assert few.nodes < 20_000
    assert place_tiles(grid, stages, edges, time_limit_s=0.0).bound <= few.cost


def test_most_tiles_of_whole_wafers():
    assert most_tiles(WaferGrid(8, 7), [(2, 2)])[0] == 12
    assert most_tiles(WaferGrid(8, 7), [(2, 2), (4, 1)])[0] == 14
    assert most_tiles(WaferGrid(7, 12), [(4, 1), (1, 4), (2, 2)])[0] == 21
    assert most_tiles(WaferGrid(8, 8), [(8, 1), (1, 8), (2, 4), (4, 2)])[0] == 8
    assert most_tiles(WaferGrid(2, 2, frozenset({(0, 0)})), [(2, 2)]) == (0, ())
    # dead dies part the wafer: three pairs on the left, two on the right
    parted = WaferGrid(2, 6, frozenset({(3, 0), (3, 1)}))
    assert most_tiles(parted, [(1, 2), (2, 1)])[0] == 5
    number, tiles = most_tiles(parted, [(1, 2), (2, 1)], reaching=True)
    assert number == 3
    assert max(x for tile in tiles for x, _ in tile.dies()) < 3


@pytest.mark.parametrize(
    ("stages", "edges", "minimise"),
    [
        ([], [], "sum"),
        ([PAIR], [(0, 1, 1.0)], "sum"),
        ([PAIR, PAIR], [(1, 1, 1.0)], "sum"),
        ([PAIR, PAIR], [(0, 1, -1.0)], "sum"),
        ([PAIR], [], "least"),
        ([StageShapes(())], [], "sum"),
        ([StageShapes(((0, 2),))], [], "sum"),
        ([StageShapes(((1, 2),), (1.0, 2.0))], [], "sum"),
        ([StageShapes(((1, 2),), (math.inf,))], [], "sum"),
    ],
)
def test_what_makes_no_sense_is_refused(stages, edges, minimise):
    with pytest.raises(InputError):
        place_tiles(WaferGrid(2, 2), stages, edges, minimise=minimise)


def test_memory_is_lent_by_the_nearest_that_together_suffice():
    line = [[float(abs(a - b)) for b in range(4)] for a in range(4)]
    assert helpers([4, 2, 0, 0], [0, 0, 3, 9], line) in (
        [(0, 2, 3), (0, 3, 1), (1, 3, 2)],
        [(0, 2, 1), (0, 3, 3), (1, 2, 2)],
    )
    assert helpers([4, 2, 0, 0], [0, 0, 3, 9], line, one_helper=True) == [(0, 3, 4), (1, 2, 2)]
    assert helpers([0, 0], [1, 1], [[0, 1], [1, 0]]) == []
    assert helpers([4, 0, 0, 0], [9, 3, 0, 0], line) is None
    assert helpers([4, 0, 0, 0], [9, 2, 2, 0], line, one_helper=True) is None
    for wrong in (([1], [1, 1], [[0]]), ([-1], [1], [[0]]), ([1], [math.inf], [[0]]), ([1], [1], [[-1]])):
        with pytest.raises(InputError):
            helpers(*wrong)
