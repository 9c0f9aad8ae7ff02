"""Where tiles of a shape can be on the wafers of a cluster, whole or damaged: how many fit, and good places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, permutations, product

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware import Cluster, DefectMap
from dovetail.layout.encoding.job_encoding import Tile
from dovetail.layout.encoding.wafer_grid import WaferGrid
from dovetail.mapping.tilings import StageShapes, most_tiles, place_tiles
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import check_wafer, damage, handover, num_wafers, snake_tiles
from dovetail.plans.wafer_part import StageTile, WaferPart
from dovetail.plans.wafer_tiles import is_wafer, wafer_shape

#: Nodes of a search for places: enough to find some, if not always the nearest to each other.
NODES = 2_000

#: Stages that can be put on tiles in at most so many ways are put on each of them.
FEW_PLACES = 1_000

#: Of every placement the tile of each stage.
Places = tuple[tuple[StageTile, ...], ...]

_Extent = tuple[int, int]


@frozen
class UncutGrid(WaferGrid):
    """A wafer on which tiles may not have a dead link inside."""

    def is_connected(self, tile: Tile) -> bool:
        """Whether all links of a tile work."""
        dies = set(tile.dies()) - self.dead
        uncut = not any(one in dies and other in dies for one, other in self.dead_links)
        return uncut and WaferGrid.is_connected(self, tile)


def grid_of(shape: _Extent, defects: DefectMap) -> WaferGrid:
    """A wafer with columns before rows, as tilings have it."""
    dead = frozenset((col, row) for row, col in defects.dead_dies)
    ends = (sorted(((a[1], a[0]), (b[1], b[0]))) for a, b in defects.dead_links)
    return WaferGrid(*shape, dead, frozenset((one, other) for one, other in ends))


def most_stages(cluster: Cluster, rows: int, cols: int) -> int:
    """Tiles side by side on whole wafers; on damaged ones the most disjoint tiles of live dies in reach of each other.

    The latter is exact, and tiles may be turned.
    """
    shape = wafer_shape(cluster)
    if not cluster.defects:
        return num_wafers(cluster) * (shape[0] // rows) * (shape[1] // cols)
    return sum(_most(shape, each, rows, cols)[0] for each in cluster.defects)


def stage_places(cluster: Cluster, rows: int, cols: int, stages: int) -> Places:
    """Good places for so many stages, neighbours near each other: none where they do not fit.

    On a whole wafer a snake; on damaged ones a placement of tiles that may have dead links inside, and one of tiles
    that have none.
    """
    shape = wafer_shape(cluster)
    if not cluster.defects:
        return (snake_tiles(rows, cols, stages, shape),)
    placements: list[tuple[StageTile, ...]] = []
    for uncut in (False, True):
        if uncut and not any(each.dead_links for each in cluster.defects):
            continue
        placed = _filled(shape, cluster.defects, rows, cols, stages, uncut=uncut)
        if placed and placed not in placements:
            placements.append(placed)
    return tuple(placements)


def tried_places(plan: Plan, cluster: Cluster, *, lends: bool, everywhere: bool) -> tuple[Places, bool]:
    """Places to try for the stages of a plan with layouts, and whether no others are better.

    If `everywhere` all are tried where they are few, and only then it is known of damaged wafers.
    """
    assert plan.layouts is not None
    if not is_wafer(cluster):
        return ((),), True
    every = every_place(plan, cluster, lends=lends) if everywhere else None
    if every is not None:
        return every, True
    places = stage_places(cluster, plan.layouts.rows, plan.layouts.cols, plan.pipeline_parallel)
    return places, not cluster.defects


def every_place(plan: Plan, cluster: Cluster, *, lends: bool) -> Places | None:
    """The places for the stages of a plan with layouts among which the best one is; None if there are many to try.

    A place is left out if stages that send to each other are as near in another, with the same dead links inside tiles.
    If stages lend memory, all of them send to each other.
    """
    tiles = _live_tiles(plan, cluster)
    # as if tiles could overlap, so that counting takes no time
    if len(tiles) ** plan.pipeline_parallel > FEW_PLACES:
        return None
    nearest: dict[object, dict[tuple[int, ...], tuple[StageTile, ...]]] = {}
    for placed in _disjoint(tiles, plan.pipeline_parallel):
        put = replace(plan, wafer=replace(plan.wafer or WaferPart(), tiles=placed))
        try:
            check_wafer(put, cluster)
        except InputError:
            continue
        dead = tuple(damage(put, cluster, stage) for stage in range(plan.pipeline_parallel))
        alike = nearest.setdefault((dead, tuple(tile.wafer for tile in placed)), {})
        ways = _ways(put, cluster, lends=lends)
        if not any(_is_as_near(other, ways) for other in alike):
            farther = [other for other in alike if _is_as_near(ways, other)]
            for other in farther:
                del alike[other]
            alike[ways] = placed
    return tuple(placed for alike in nearest.values() for placed in alike.values())


def _ways(plan: Plan, cluster: Cluster, *, lends: bool) -> tuple[int, ...]:
    """Links and messages of the ways between stages that send to each other."""
    stages = range(plan.pipeline_parallel)
    pairs = permutations(stages, 2) if lends else pairwise(stages)
    ways = [handover(plan, cluster, *pair) for pair in pairs]
    return tuple(number for way in ways for number in (way.hops, way.messages))


def _is_as_near(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(here <= there for here, there in zip(one, other, strict=True))


def _live_tiles(plan: Plan, cluster: Cluster) -> list[StageTile]:
    """All tiles for the layouts of a plan, turned or not, whose dies work and are joined."""
    assert plan.layouts is not None
    rows, cols, shape = plan.layouts.rows, plan.layouts.cols, wafer_shape(cluster)
    tiles: list[StageTile] = []
    for wafer, defects in enumerate(cluster.defects or (DefectMap(),) * num_wafers(cluster)):
        grid = grid_of(shape, defects)
        for r, c in dict.fromkeys(((rows, cols), (cols, rows))):
            places = product(range(shape[0] - r + 1), range(shape[1] - c + 1))
            every = (StageTile(wafer, row, col, r, c) for row, col in places)
            tiles += [t for t in every if grid.dead.isdisjoint(t.tile().dies()) and grid.is_connected(t.tile())]
    return tiles


def _disjoint(tiles: list[StageTile], stages: int) -> Iterator[tuple[StageTile, ...]]:
    """Every order of so many of the tiles that share no die."""
    if not stages:
        yield ()
        return
    for before in _disjoint(tiles, stages - 1):
        taken = {(tile.wafer, *die) for tile in before for die in tile.dies()}
        yield from ((*before, t) for t in tiles if not any((t.wafer, *die) in taken for die in t.dies()))


def _filled(
    shape: _Extent, defects: tuple[DefectMap, ...], rows: int, cols: int, stages: int, *, uncut: bool
) -> tuple[StageTile, ...]:
    """Wafer after wafer as many stages as fit; empty where some are left over."""
    tiles: list[StageTile] = []
    for wafer, each in enumerate(defects):
        most, ways = _most(shape, each, rows, cols, uncut=uncut)
        here = min(most, stages - len(tiles))
        if here:
            placed = _placed(shape, each, ways, here, uncut=uncut)
            tiles += [StageTile(wafer, tile.y, tile.x, tile.rows, tile.cols) for tile in placed]
    return tuple(tiles) if len(tiles) == stages else ()


@lru_cache(maxsize=4096)
def _most(
    shape: _Extent, defects: DefectMap, rows: int, cols: int, *, uncut: bool = False
) -> tuple[int, tuple[_Extent, ...]]:
    """The most tiles of a wafer, and the shapes they have: as asked for, turned, or both where more fit that way."""
    grid, turned = _grid(shape, defects, uncut=uncut), (cols, rows)
    ways = [((rows, cols),)] if rows == cols else [((rows, cols),), (turned,), ((rows, cols), turned)]
    fitting = [way for way in ways if any(r <= shape[0] and c <= shape[1] for r, c in way)]
    counts = [(most_tiles(grid, way, reaching=True)[0], way) for way in fitting]
    return max(counts, key=lambda pair: (pair[0], -len(pair[1])), default=(0, ()))


@lru_cache(maxsize=4096)
def _placed(
    shape: _Extent, defects: DefectMap, ways: tuple[_Extent, ...], stages: int, *, uncut: bool
) -> tuple[Tile, ...]:
    edges = [(stage, stage + 1, 1.0) for stage in range(stages - 1)]
    grid = _grid(shape, defects, uncut=uncut)
    return place_tiles(grid, [StageShapes(ways)] * stages, edges, node_limit=NODES).tiles


def _grid(shape: _Extent, defects: DefectMap, *, uncut: bool) -> WaferGrid:
    grid = grid_of(shape, defects)
    return UncutGrid(grid.rows, grid.cols, grid.dead, grid.dead_links) if uncut else grid
