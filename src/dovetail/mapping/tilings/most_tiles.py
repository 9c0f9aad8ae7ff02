"""The largest number of disjoint live tiles: a dynamic program over the dies, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterable

from dovetail.errors import InputError
from dovetail.layout.encoding.job_encoding import Tile
from dovetail.layout.encoding.wafer_grid import WaferGrid
from dovetail.mapping.tilings.problem import live_tiles, wafer_parts

#: Of a state: tiles so far, and how it was reached: the previous state and the last tile.
_Reached = tuple[int, tuple[int, Tile | None]]


def most_tiles(
    grid: WaferGrid, shapes: Iterable[tuple[int, int]], *, reaching: bool = False
) -> tuple[int, tuple[Tile, ...]]:
    """The most disjoint tiles of these shapes on live dies, and which; with `reaching`, tiles that reach each other.

    We visit dies row by row; a state says which dies from the current one on are taken. The result is exact; the work
    grows with the shorter side of the wafer, along which we visit the dies, and with the tiles' length across.
    """
    packing = most_tiles_within(grid, shapes, math.inf, reaching=reaching)
    assert packing is not None
    return len(packing), packing


def most_tiles_within(
    grid: WaferGrid, shapes: Iterable[tuple[int, int]], states: float, *, reaching: bool = False
) -> tuple[Tile, ...] | None:
    """The most disjoint tiles on live dies, or None if finding them takes more states."""
    distinct, best = list(shapes), tuple[Tile, ...]()
    for part in wafer_parts(grid) if reaching else [grid]:
        packing = _packed(part, distinct, states)
        if packing is None:
            return None
        best = packing if len(packing) > len(best) else best
    return best


def _packed(grid: WaferGrid, shapes: Iterable[tuple[int, int]], states: float) -> tuple[Tile, ...] | None:
    """The dynamic program."""
    distinct = sorted(set(shapes))
    if not distinct or any(rows < 1 or cols < 1 for rows, cols in distinct):
        raise InputError(
            "shapes", f"are {distinct}", "rows and columns are at least 1, and there is at least one shape"
        )
    tiles = live_tiles(grid, distinct)
    if not tiles:
        return ()
    by_first, masks = _numbered(grid, tiles)
    count = grid.rows * grid.cols
    usable = 0
    for mask in masks.values():
        usable |= mask
    # the smallest tile bounds how many fit on the dies ahead
    smallest = min(tile.rows * tile.cols for tile in tiles)
    greedy = len(_greedy(tiles, masks))
    layers: list[dict[int, _Reached]] = [{0: (0, (0, None))}]
    for die in range(count):
        reached: dict[int, _Reached] = {}
        ahead = usable >> (die + 1) << (die + 1)
        for taken, (number, _) in sorted(layers[-1].items()):
            for tile in (None, *by_first.get(die, ())):
                mask = 0 if tile is None else masks[tile]
                if mask & taken:
                    continue
                # dies behind no longer matter
                state, more = (taken | mask) & ahead, number + (tile is not None)
                if more + (ahead & ~state).bit_count() // smallest < greedy:
                    continue
                if state not in reached or reached[state][0] < more:
                    reached[state] = (more, (taken, tile))
        layers.append(reached)
        states -= len(reached)
        if states < 0:
            return None
    packing, state = list[Tile](), 0
    for layer in reversed(layers[1:]):
        state, tile = layer[state][1]
        packing += [] if tile is None else [tile]
    return tuple(reversed(packing))


def _numbered(grid: WaferGrid, tiles: Iterable[Tile]) -> tuple[dict[int, list[Tile]], dict[Tile, int]]:
    """Tiles by their first die, and the dies of each as bits; dies are numbered along the shorter side."""
    by_first: dict[int, list[Tile]] = {}
    masks: dict[Tile, int] = {}
    for tile in tiles:
        dies = [y * grid.cols + x if grid.cols <= grid.rows else x * grid.rows + y for x, y in tile.dies()]
        masks[tile] = sum(1 << die for die in dies)
        by_first.setdefault(min(dies), []).append(tile)
    return by_first, masks


def _greedy(tiles: Iterable[Tile], masks: dict[Tile, int]) -> list[Tile]:
    """A greedy packing: in order, every tile that is free."""
    taken, packing = 0, list[Tile]()
    for tile in tiles:
        if not masks[tile] & taken:
            taken |= masks[tile]
            packing.append(tile)
    return packing
