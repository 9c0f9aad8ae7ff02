"""Where tiles of a shape can be on the wafers of a cluster, whole or damaged: how many fit, and good places."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from dovetail.hardware import Cluster, DefectMap
from dovetail.layout.encoding.job_encoding import Tile
from dovetail.layout.encoding.wafer_grid import WaferGrid
from dovetail.mapping.tilings import StageShapes, most_tiles, place_tiles
from dovetail.plans.stage_tiles import num_wafers, snake_tiles
from dovetail.plans.wafer_part import StageTile
from dovetail.plans.wafer_tiles import wafer_shape

#: Nodes of a search for places: enough to find some, if not always the nearest to each other.
NODES = 2_000

_Extent = tuple[int, int]


@dataclass(frozen=True, slots=True)
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


def stage_places(cluster: Cluster, rows: int, cols: int, stages: int) -> tuple[tuple[StageTile, ...], ...]:
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
