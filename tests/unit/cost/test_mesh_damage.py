"""Collectives on damaged tiles: link loads counted here, send by send, along ways found here."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import combinations, pairwise, product

import pytest

from dovetail.cost.mesh import Die, DieMesh, Edge, MeshCollective, MeshCollectiveKind, best
from dovetail.cost.mesh.damage import DamagedGroups
from dovetail.layout import CollectiveKind

KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)
TILES = ((2, 2), (2, 3), (2, 4), (3, 4))


def edges(rows: int, cols: int) -> list[Edge]:
    dies = list(product(range(rows), range(cols)))
    return [(a, b) for a, b in combinations(dies, 2) if abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1]


def groups(rows: int, cols: int, down: tuple[int, int], right: tuple[int, int]) -> list[dict[Die, Die]]:
    """Every group of a tile: its places, and the dies they are."""
    (rows_of, row_step), (cols_of, col_step) = down, right
    found: dict[frozenset[Die], dict[Die, Die]] = {}
    for row, col in product(range(rows), range(cols)):
        first = (
            row - row // row_step % rows_of * row_step if rows_of > 1 else row,
            col - col // col_step % cols_of * col_step if cols_of > 1 else col,
        )
        places = {
            (y, x): (first[0] + y * row_step, first[1] + x * col_step)
            for y, x in product(range(rows_of), range(cols_of))
        }
        found[frozenset(places.values())] = places
    assert sorted(die for each in found.values() for die in each.values()) == sorted(product(range(rows), range(cols)))
    return list(found.values())


def way(rows: int, cols: int, dead: Iterable[Edge], source: Die, target: Die) -> Iterator[Edge]:
    """Straight along a row or column if that lives; otherwise a shortest way, neighbours of the same row first."""
    gone = {frozenset(link) for link in dead}
    lined = sorted({(r, c) for r in range(rows) for c in range(cols) if _between((r, c), source, target)})
    lined = lined if source < target else lined[::-1]
    if not any({a, b} in gone for a, b in pairwise(lined)):
        yield from pairwise(lined)
        return

    def around(die: Die) -> list[Die]:
        row, col = die
        others = [(row, col - 1), (row, col + 1), (row - 1, col), (row + 1, col)]
        return [o for o in others if 0 <= o[0] < rows and 0 <= o[1] < cols and {die, o} not in gone]

    left, waiting = {target: 0}, deque([target])
    while waiting:
        here = waiting.popleft()
        for other in around(here):
            if other not in left:
                left[other] = left[here] + 1
                waiting.append(other)
    here = source
    while here != target:
        ahead = next(other for other in around(here) if left[other] < left[here])
        yield here, ahead
        here = ahead


def _between(die: Die, a: Die, b: Die) -> bool:
    return min(a[0], b[0]) <= die[0] <= max(a[0], b[0]) and min(a[1], b[1]) <= die[1] <= max(a[1], b[1])


def sends(made: MeshCollective) -> defaultdict[Edge, float]:
    """Bytes between the places of a group, each send of the algorithm counted."""
    loads: defaultdict[Edge, float] = defaultdict(float)
    for spread in made.spreads():
        for number in spread.links:
            a, b = made.mesh.links[number]
            outward = made.kind is not MeshCollectiveKind.REDUCE_SCATTER
            backward = made.kind in (MeshCollectiveKind.REDUCE_SCATTER, MeshCollectiveKind.ALL_REDUCE)
            loads[a, b] += spread.part if outward else 0.0
            loads[b, a] += spread.part if backward else 0.0
    return loads


def busiest(rows: int, cols: int, dead: Iterable[Edge], placed: list[dict[Die, Die]], made: MeshCollective) -> float:
    """Of all links, when every group sends as on a whole tile, around what is dead; there and back the same way."""
    loads: defaultdict[Edge, float] = defaultdict(float)
    for places in placed:
        for (a, b), load in sends(made).items():
            ends = min(a, b), max(a, b)
            links = list(way(rows, cols, dead, places[ends[0]], places[ends[1]]))
            for one, other in links:
                loads[(one, other) if a < b else (other, one)] += load
    return max(loads.values(), default=0.0)


def cases(rows: int, cols: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Groups along one side or both, of neighbours and strided."""
    along_rows = [(n, step) for n in range(1, rows + 1) for step in range(1, rows + 1) if rows % (n * step) == 0]
    along_cols = [(n, step) for n in range(1, cols + 1) for step in range(1, cols + 1) if cols % (n * step) == 0]
    for down, right in product(along_rows, along_cols):
        plain = all(n > 1 or step == 1 for n, step in (down, right))
        if plain and down[0] * right[0] > 1:
            yield down, right


def connected(rows: int, cols: int, dead: Iterable[Edge]) -> bool:
    return DieMesh(rows, cols, dead_links=frozenset(dead)).connected


def dead_sets(rows: int, cols: int) -> list[tuple[Edge, ...]]:
    """Every dead link, and some pairs of them."""
    links = edges(rows, cols)
    pairs = list(combinations(links, 2))
    return [(link,) for link in links] + pairs[:: max(len(pairs) // 12, 1)]


def factor(
    rows: int, cols: int, dead: Iterable[Edge], kind: CollectiveKind, down, right, corner: Die = (1, 1)
) -> float:
    """Of a tile somewhere on a larger wafer."""
    moved = frozenset(((a[0] + corner[0], a[1] + corner[1]), (b[0] + corner[0], b[1] + corner[1])) for a, b in dead)
    wafer = DieMesh(rows + 2, cols + 2, dead_links=moved)
    return DamagedGroups(wafer, corner, rows, cols).factor(kind, down, right)


@pytest.mark.parametrize("tile", TILES)
def test_a_factor_is_between_whole_and_the_kept_algorithm_with_detours(tile: tuple[int, int]) -> None:
    check_factors(tile, every={4: 1, 6: 2, 8: 5, 12: 9}[tile[0] * tile[1]])


@pytest.mark.slow
@pytest.mark.parametrize("tile", [(2, 4), (3, 3), (3, 4)])
def test_all_factors_are_between_whole_and_the_kept_algorithm_with_detours(tile: tuple[int, int]) -> None:
    check_factors(tile, every=1)


def check_factors(tile: tuple[int, int], every: int) -> None:
    """Of all groups, kinds and every so many sets of dead links that leave the tile in one part."""
    better = longer = 0
    for down, right in cases(*tile):
        placed = groups(*tile, down, right)
        for kind in KINDS:
            made = best(kind, DieMesh(down[0], right[0]), 1.0, 1.0)
            whole = busiest(*tile, (), placed, made)
            for dead in dead_sets(*tile)[::every]:
                if not connected(*tile, dead):
                    continue
                found = factor(*tile, dead, kind, down, right)
                kept = busiest(*tile, dead, placed, made) / whole
                assert 1.0 <= found <= max(kept, 1.0) * (1 + 1e-9)
                used = {frozenset(link) for p in placed for a, b in sends(made) for link in way(*tile, (), p[a], p[b])}
                if not any(frozenset(link) in used for link in dead):
                    assert found == pytest.approx(1.0)
                better += found < kept * (1 - 1e-9)
                longer += found > 1
    assert longer
    # an algorithm for what is left is sometimes better than detours
    assert better


def test_a_square_that_lost_a_link_is_a_line() -> None:
    """By hand: of four dies in a square a link carries 3/8 of what is gathered, 3/4 of what is summed everywhere.

    The die at an end of a line has one link for all it takes: 3/4 and 1. Kept, what went over the dead link takes the
    three others, and one of them has twice as much as before.
    """
    dead = [((0, 0), (0, 1))]
    for kind, times in ((CollectiveKind.ALL_REDUCE, 4 / 3), (CollectiveKind.ALL_GATHER, 2.0)):
        assert factor(2, 2, dead, kind, (2, 1), (2, 1)) == pytest.approx(times)
        made = best(kind, DieMesh(2, 2), 1.0, 1.0)
        placed = groups(2, 2, (2, 1), (2, 1))
        assert busiest(2, 2, dead, placed, made) == pytest.approx(2 * busiest(2, 2, (), placed, made))


def test_groups_of_rows_do_not_use_links_of_columns() -> None:
    for kind in KINDS:
        assert factor(3, 4, [((0, 0), (1, 0))], kind, (1, 1), (4, 1)) == 1.0
        assert factor(3, 4, [((0, 0), (0, 1))], kind, (3, 1), (1, 1)) == 1.0
        assert factor(3, 4, [((0, 0), (0, 1))], kind, (1, 1), (4, 1)) > 1.0


def test_links_outside_the_tile_do_not_matter() -> None:
    wafer = DieMesh(6, 6, dead_links=frozenset({((0, 0), (0, 1)), ((2, 3), (2, 4)), ((3, 2), (4, 2))}))
    inside = DamagedGroups(wafer, (2, 2), 2, 2)
    assert all(inside.factor(kind, (2, 1), (2, 1)) == 1.0 for kind in KINDS)


def test_a_turned_tile_has_the_groups_of_the_tile_as_it_was() -> None:
    for down, right in cases(2, 4):
        for dead in dead_sets(2, 4)[:14]:
            turned = frozenset(((a[1], a[0]), (b[1], b[0])) for a, b in dead)
            for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE):
                if not connected(2, 4, dead):
                    continue
                one = DamagedGroups(DieMesh(4, 2, dead_links=turned), (0, 0), 4, 2, turned=True)
                other = DamagedGroups(DieMesh(4, 2, dead_links=turned), (0, 0), 4, 2)
                # rows of the layouts lie along the columns of the turned tile
                assert one.factor(kind, down, right) == other.factor(kind, right, down)


def test_a_tile_in_parts_goes_around_over_the_wafer() -> None:
    # a line that falls apart: what crossed goes over three links outside, where others send as much
    line = DamagedGroups(DieMesh(4, 4, dead_links=frozenset({((0, 1), (0, 2))})), (0, 0), 1, 4)
    assert line.factor(CollectiveKind.ALL_REDUCE, (1, 1), (4, 1)) == pytest.approx(2.0)
    pair = DamagedGroups(DieMesh(4, 4, dead_links=frozenset({((0, 0), (0, 1))})), (0, 0), 1, 2)
    assert pair.factor(CollectiveKind.ALL_GATHER, (1, 1), (2, 1)) == pytest.approx(2.0)


def test_a_group_of_one_sends_nothing() -> None:
    wafer = DieMesh(2, 2, dead_links=frozenset({((0, 0), (0, 1))}))
    assert DamagedGroups(wafer, (0, 0), 2, 2).factor(CollectiveKind.ALL_REDUCE, (1, 1), (1, 1)) == 1.0
