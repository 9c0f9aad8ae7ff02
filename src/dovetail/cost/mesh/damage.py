"""Collectives of groups on a damaged tile: how much longer they take than on a whole one."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from dovetail.cost.mesh.choose import best
from dovetail.cost.mesh.collective import MeshCollective, MeshCollectiveKind
from dovetail.cost.mesh.grid import Die, DieMesh
from dovetail.cost.mesh.loads import DieGroup, embedded, on_group, total_loads
from dovetail.frozen import frozen
from dovetail.layout import CollectiveKind

#: A group along one axis of a tile: how many dies, and how far apart neighbours are.
Along = tuple[int, int]


@frozen
class DamagedGroups:
    """A tile of live dies on a wafer with dead links: all groups of a kind run their collective at the same time."""

    wafer: DieMesh
    corner: Die
    rows: int
    cols: int
    #: whether the groups' rows lie along the columns of the tile
    turned: bool = False

    def factor(self, kind: CollectiveKind, rows: Along, cols: Along) -> float:
        """How many times longer the collective of groups of so many rows and columns takes than on a whole tile."""
        down, right = (cols, rows) if self.turned else (rows, cols)
        return _factor(self.wafer, self.corner, (self.rows, self.cols), MeshCollectiveKind(kind), down, right)


@lru_cache(maxsize=65536)
def _factor(
    wafer: DieMesh, corner: Die, shape: tuple[int, int], kind: MeshCollectiveKind, down: Along, right: Along
) -> float:
    """Busiest link on the damaged tile over busiest link on the whole one, the better of two ways to go around.

    Either every group keeps the algorithm of the whole tile, and sends over dead links take the shortest way around; or
    each has the best algorithm of its own damaged part. Ways lead outside the tile only where it is cut in parts;
    links there are taken to be as busy with other tiles as the busiest of a whole tile.
    """
    groups = _groups(shape, down, right)
    whole_mesh, whole_group = DieMesh(*shape), DieMesh(down[0], right[0])
    plain = best(kind, whole_group, 1.0, 1.0)
    whole = _busiest([_laid(plain, whole_mesh, group, whole_group) for group in groups])
    if whole <= 0:
        return 1.0
    inside = _inside(wafer, corner, shape)
    if inside.connected:
        kept = _busiest([_laid(plain, inside, group, whole_group) for group in groups])
        again = _busiest([on_group(None, kind, inside, group, 1.0) for group in groups])
        return max(min(kept, again) / whole, 1.0)
    placed = [
        DieGroup((corner[0] + g.corner[0], corner[1] + g.corner[1]), g.rows, g.cols, g.row_step, g.col_step)
        for g in groups
    ]
    loads = total_loads([_laid(plain, wafer, group, whole_group) for group in placed])
    dies = {(corner[0] + row, corner[1] + col) for row, col in product(range(shape[0]), range(shape[1]))}
    outside = np.array([not (a in dies and b in dies) for a, b in wafer.links])
    return max(float((loads + whole * ((loads > 0) & outside)).max()) / whole, 1.0)


def _groups(shape: tuple[int, int], down: Along, right: Along) -> list[DieGroup]:
    """All groups of a tile: those of each place between two neighbours, and of each block of dies they span."""
    spans = [extent * stride if extent > 1 else 1 for extent, stride in (down, right)]
    steps = [stride if extent > 1 else 1 for extent, stride in (down, right)]
    starts = [
        [block + offset for block in range(0, side, span) for offset in range(step)]
        for side, span, step in zip(shape, spans, steps, strict=True)
    ]
    return [DieGroup(start, down[0], right[0], steps[0], steps[1]) for start in product(starts[0], starts[1])]


def _inside(wafer: DieMesh, corner: Die, shape: tuple[int, int]) -> DieMesh:
    """The tile by itself, its first die at [0, 0]."""
    moved = (((a[0] - corner[0], a[1] - corner[1]), (b[0] - corner[0], b[1] - corner[1])) for a, b in wafer.dead_links)
    links = [pair for pair in moved if all(0 <= row < shape[0] and 0 <= col < shape[1] for row, col in pair)]
    return DieMesh(*shape, dead_links=frozenset(links))


def _laid(made: MeshCollective, mesh: DieMesh, group: DieGroup, inner: DieMesh) -> MeshCollective:
    return embedded(made, mesh, [group.die(place) for place in inner.dies])


def _busiest(collectives: list[MeshCollective]) -> float:
    return float(total_loads(collectives).max(initial=0.0))
