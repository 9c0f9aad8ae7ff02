"""What an encoding must know of a wafer: its grid of dies, those that are dead, what a die can hold."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from dovetail.frozen import frozen
from dovetail.layout.encoding.job_encoding import Die, Tile


@frozen
class WaferGrid:
    """A grid of dies; neighbours in a row or column are linked."""

    rows: int
    cols: int
    dead: frozenset[Die] = frozenset()
    #: pairs of neighbours without a link, each pair sorted
    dead_links: frozenset[tuple[Die, Die]] = frozenset()
    #: memory of a die, where it is to be checked
    capacity_bytes: int | None = None
    #: whether dies have HBM beside them
    hbm: bool = True
    #: limits of area, shoreline, wires, power or yield that the hardware breaks, a sentence each
    broken_limits: tuple[str, ...] = ()

    def holds(self, tile: Tile) -> bool:
        """Whether a tile lies inside."""
        inside = 0 <= tile.x <= self.cols - tile.cols and 0 <= tile.y <= self.rows - tile.rows
        return inside and tile.rows > 0 and tile.cols > 0

    def is_connected(self, tile: Tile) -> bool:
        """Whether every die of a tile can be reached from its first one over live links inside the tile."""
        left = set(tile.dies()) - self.dead
        if not left:
            return False
        waiting = [left.pop()]
        while waiting:
            x, y = waiting.pop()
            for other in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
                first, second = sorted(((x, y), other))
                if other in left and (first, second) not in self.dead_links:
                    left.remove(other)
                    waiting.append(other)
        return not left


@frozen
class Symmetry:
    """A mirroring of the wafer: along the diagonal first, then left to right, then top to bottom."""

    transposes: bool
    mirrors_x: bool
    mirrors_y: bool

    def die(self, wafer: WaferGrid, die: Die) -> Die:
        """Where a die comes to lie."""
        x, y = die[::-1] if self.transposes else die
        return (wafer.cols - 1 - x if self.mirrors_x else x), (wafer.rows - 1 - y if self.mirrors_y else y)

    def tile(self, wafer: WaferGrid, tile: Tile) -> Tile:
        """Where a tile comes to lie."""
        moved = [self.die(wafer, die) for die in tile.dies()]
        x, y = min(x for x, _ in moved), min(y for _, y in moved)
        rows, cols = (tile.cols, tile.rows) if self.transposes else (tile.rows, tile.cols)
        return Tile(x, y, rows, cols)


def symmetries(wafer: WaferGrid) -> Iterator[Symmetry]:
    """The mirrorings that map the grid, its dead dies and its dead links onto themselves."""
    for transposes, mirrors_x, mirrors_y in product((False, True), repeat=3):
        if transposes and wafer.rows != wafer.cols:
            continue
        symmetry = Symmetry(transposes, mirrors_x, mirrors_y)
        dead = frozenset(symmetry.die(wafer, die) for die in wafer.dead)
        ends = (sorted((symmetry.die(wafer, one), symmetry.die(wafer, other))) for one, other in wafer.dead_links)
        if dead == wafer.dead and frozenset((one, other) for one, other in ends) == wafer.dead_links:
            yield symmetry
