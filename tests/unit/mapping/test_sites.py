"""Places for stages on damaged wafers: live, joined, as many as fit; and messages that use nothing dead."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, pairwise, product

import pytest

from dovetail.hardware import Cluster, DefectMap
from dovetail.hardware.defects import Link, Position, grid_links
from dovetail.mapping.tiles.sites import most_stages, stage_places
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import check_wafer, fellows, handover, mesh_of
from dovetail.plans.wafer_part import StageTile, WaferPart
from wafer_plans import job_of, tile_plan, wafers

JOB = job_of()
SHAPES = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (2, 3), (3, 2), (1, 4), (2, 4))


def reached(start: Position, defects: DefectMap, among: set[Position]) -> set[Position]:
    """The dies that one reaches over live links, itself included."""
    dead, cut = set(defects.dead_dies), set(defects.dead_links)
    found, waiting = {start}, [start]
    while waiting:
        row, col = waiting.pop()
        for other in ((row, col + 1), (row, col - 1), (row + 1, col), (row - 1, col)):
            link: Link = (min((row, col), other), max((row, col), other))
            if other in among and other not in dead and other not in found and link not in cut:
                found.add(other)
                waiting.append(other)
    return found


def live_tiles(rows: int, cols: int, shape: tuple[int, int], defects: DefectMap) -> Iterator[frozenset[Position]]:
    """All tiles of a shape, turned or not, whose dies live and are joined by their own links."""
    for r, c in {shape, shape[::-1]}:
        for row, col in product(range(rows - r + 1), range(cols - c + 1)):
            dies = {(row + y, col + x) for y, x in product(range(r), range(c))}
            if not dies & set(defects.dead_dies) and reached((row, col), defects, dies) == dies:
                yield frozenset(dies)


def most_by_trying(rows: int, cols: int, shape: tuple[int, int], defects: DefectMap) -> int:
    """The largest set of disjoint tiles that reach each other: every set is tried."""
    everywhere = set(product(range(rows), range(cols)))
    tiles = list(dict.fromkeys(live_tiles(rows, cols, shape, defects)))
    parts: dict[frozenset[Position], list[frozenset[Position]]] = {}
    for tile in tiles:
        parts.setdefault(frozenset(reached(min(tile), defects, everywhere)), []).append(tile)
    return max((_most(frozenset(each)) for each in parts.values()), default=0)


@lru_cache(maxsize=100_000)
def _most(tiles: frozenset[frozenset[Position]]) -> int:
    if not tiles:
        return 0
    die = min(min(tile) for tile in tiles)
    covering = [tile for tile in tiles if die in tile]
    without = _most(frozenset(tile for tile in tiles if die not in tile))
    return max(without, *(1 + _most(frozenset(t for t in tiles if not t & tile)) for tile in covering))


def drawn(draw: random.Random, most_rows: int, most_cols: int) -> tuple[int, int, DefectMap]:
    """A grid and what is dead of it: 1 to 30 % of dies, of links, or of both."""
    rows, cols = draw.randint(1, most_rows), draw.randint(2, most_cols)
    rates = draw.choice([(1, 0), (0, 1), (1, 1)])
    yields = [1 - rate * draw.uniform(0.01, 0.3) for rate in rates]
    return rows, cols, DefectMap.sampled(rows, cols, yields[0], yields[1], draw.randrange(2**31))


def check_places(cluster: Cluster, defects: DefectMap, shape: tuple[int, int], stages: int) -> int:
    """Of every placement: disjoint live tiles that reach each other, and messages over live links alone."""
    rows, cols = cluster.tiers[0].shape
    everywhere = set(product(range(rows), range(cols)))
    placements = stage_places(cluster, *shape, stages)
    for placed in placements:
        assert len(placed) == stages
        dies = [die for tile in placed for die in tile.dies()]
        assert len(dies) == len(set(dies))
        assert not set(dies) & set(defects.dead_dies)
        assert {(t.rows, t.cols) for t in placed} <= {shape, shape[::-1]}
        whole = reached(dies[0], defects, everywhere)
        assert set(dies) <= whole
        for tile in placed:
            own = set(tile.dies())
            assert reached(tile.dies()[0], defects, own) == own
        plan = placed_plan(shape, placed, defects)
        check_wafer(plan, cluster)
        check_messages(plan, cluster, defects)
    if any(defects.dead_links) and len(placements) == 2:
        # the second placement goes around dead links altogether
        for tile in placements[1]:
            own = set(tile.dies())
            assert not any(a in own and b in own for a, b in defects.dead_links)
    return len(placements)


def placed_plan(shape: tuple[int, int], placed: tuple[StageTile, ...], defects: DefectMap) -> Plan:
    """One tiny plan for each shape of tile; layers do not matter here."""
    part = WaferPart(tiles=placed, defects=(defects,))
    return tile_plan(JOB, *shape, len(placed), tensor=1, wafer=part)


def check_messages(plan: Plan, cluster: Cluster, defects: DefectMap) -> None:
    """Ways of hand-overs, both ways, link by link: live ends, live links, from fellow to fellow."""
    rows, cols = cluster.tiers[0].shape
    mesh = mesh_of((rows, cols), defects)
    assert plan.wafer is not None
    for stage, (one, other) in enumerate(pairwise(plan.wafer.tiles)):
        for source, target in ((one, other), (other, one)):
            longest = 0
            for here, there in fellows(source, target):
                at = here
                for number in mesh.route(here, there):
                    a, b = mesh.links[number]
                    assert a == at
                    assert abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1
                    assert not {a, b} & set(defects.dead_dies)
                    assert (min(a, b), max(a, b)) not in defects.dead_links
                    at = b
                assert at == there
                longest = max(longest, len(mesh.route(here, there)))
            pair = (stage, stage + 1) if source is one else (stage + 1, stage)
            assert handover(plan, cluster, *pair).hops == longest


def check_maps(number: int, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311
    placed = none = 0
    for _ in range(number):
        rows, cols, defects = drawn(draw, 6, 7)
        cluster = wafers(rows, cols, defects=(defects,) if defects != DefectMap() else ())
        shape = draw.choice([s for s in SHAPES if max(s) <= max(rows, cols) and min(s) <= min(rows, cols)])
        most = most_stages(cluster, *shape)
        # as many as layers allow
        for stages in {most, draw.randint(1, max(most, 1))} - {0}:
            if stages > min(most, JOB.model.num_layers):
                continue
            found = check_places(cluster, defects, shape, stages)
            assert found, "what fits is placed"
            placed += 1
        none += most == 0
        if cluster.defects:
            assert stage_places(cluster, *shape, most + 1) == ()
    assert placed > 0.7 * number


def test_places_on_50_damaged_wafers() -> None:
    check_maps(50, seed=1)


@pytest.mark.slow
def test_places_on_1000_damaged_wafers() -> None:
    check_maps(1000, seed=2)


@pytest.mark.parametrize("seed", range(3))
def test_the_most_stages_are_those_found_by_trying(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311
    for _ in range(60):
        rows, cols, defects = drawn(draw, 3, 4)
        shape = draw.choice([s for s in SHAPES if max(s) <= max(rows, cols) and min(s) <= min(rows, cols)])
        cluster = wafers(rows, cols, defects=(defects,))
        assert most_stages(cluster, *shape) == most_by_trying(rows, cols, shape, defects), (rows, cols, shape, defects)


def test_every_pair_of_dead_links_of_a_small_wafer() -> None:
    for links in combinations(grid_links(2, 3), 2):
        defects = DefectMap((), links)
        cluster = wafers(2, 3, defects=(defects,))
        for shape in ((1, 2), (2, 2), (1, 3), (2, 3)):
            assert most_stages(cluster, *shape) == most_by_trying(2, 3, shape, defects)


def test_one_placement_has_no_dead_link_inside_its_tiles() -> None:
    beside = 0
    for link in grid_links(3, 4):
        placements = stage_places(wafers(3, 4, defects=(DefectMap((), (link,)),)), 2, 2, 1)
        cut = [any(set(link) <= set(tile.dies()) for tile in placed) for placed in placements]
        assert not all(cut)
        beside += any(cut)
    # and one that may be nearer together, where tiles have some
    assert beside


def test_several_wafers_are_filled_one_after_another() -> None:
    maps = (DefectMap(((0, 0),)), DefectMap(), DefectMap(((1, 1), (2, 2))))
    cluster = wafers(4, 4, 3, defects=maps)
    assert most_stages(cluster, 2, 2) == 3 + 4 + 2
    (placed,) = stage_places(cluster, 2, 2, 8)
    assert [tile.wafer for tile in placed] == [0, 0, 0, 1, 1, 1, 1, 2]
    assert len({(tile.wafer, *die) for tile in placed for die in tile.dies()}) == 32
    assert not any(die in maps[tile.wafer].dead_dies for tile in placed for die in tile.dies())
    assert stage_places(cluster, 2, 2, 10) == ()


def test_a_whole_wafer_has_a_snake() -> None:
    cluster = wafers(4, 6)
    assert most_stages(cluster, 2, 3) == 4
    (placed,) = stage_places(cluster, 2, 3, 4)
    assert [(t.row, t.col) for t in placed] == [(0, 0), (2, 0), (2, 3), (0, 3)]
