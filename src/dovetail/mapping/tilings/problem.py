"""The problem of placing stages on tiles: the tiles, their distances, and the cost of a placement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from dovetail.arrays import Bools, Floats
from dovetail.cost.mesh import DieMesh
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.layout.encoding.job_encoding import Tile
from dovetail.layout.encoding.wafer_grid import WaferGrid, symmetries

#: Two stages and the cost of one hop between them.
StageEdge: TypeAlias = "tuple[int, int, float]"
#: Minimise the sum of the costs of shapes and edges, or the largest of them.
Minimise: TypeAlias = Literal["sum", "max"]

#: Limits of the compiled search.
MAX_STAGES, MAX_TILES = 250, 16_000


@frozen
class StageShapes:
    """The tile shapes a stage accepts: rows and columns, and the cost of each by itself."""

    shapes: tuple[tuple[int, int], ...]
    #: one per shape; empty if all cost nothing
    costs_s: tuple[float, ...] = ()

    def cost_of(self) -> dict[tuple[int, int], float]:
        """The cost of each shape; the lower one if it is named twice."""
        costs: dict[tuple[int, int], float] = {}
        for shape, cost in zip(self.shapes, self.costs_s or (0.0,) * len(self.shapes), strict=True):
            costs[shape] = min(cost, costs.get(shape, math.inf))
        return costs


@dataclass(frozen=True)
class TileProblem:
    """Stages, and the tiles of a wafer that any of them may use, row by row."""

    grid: WaferGrid
    tiles: tuple[Tile, ...]
    #: by stage and tile: the cost of the shape, infinite if the stage does not accept it
    costs: Floats
    #: between stages, the smaller first, each pair once; only edges that cost something
    edges: tuple[StageEdge, ...]
    minimise: Minimise
    #: between tiles: the longest way between corresponding dies; infinite if there is none
    hops: Floats
    #: whether two tiles share no die
    disjoint: Bools

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.costs)

    @cached_property
    def number(self) -> dict[Tile, int]:
        """The index of each tile in `tiles`."""
        return {tile: i for i, tile in enumerate(self.tiles)}

    @property
    def connected(self) -> bool:
        """Whether edges connect all stages, so that all tiles must reach each other."""
        reached = {0}
        for _ in self.edges:
            reached |= {stage for a, b, _ in self.edges if a in reached or b in reached for stage in (a, b)}
        return len(reached) == self.num_stages

    def shapes(self) -> list[tuple[int, int]]:
        """The distinct rows and columns of tiles."""
        return sorted({(tile.rows, tile.cols) for tile in self.tiles})

    def cost(self, placement: Sequence[int]) -> float:
        """The cost of a placement, given its tiles' numbers; infinite if tiles overlap."""
        pairs = ((a, b) for i, a in enumerate(placement) for b in placement[:i])
        if any(not self.disjoint[a, b] for a, b in pairs):
            return math.inf
        return self.cost_of_disjoint(placement)

    def cost_of_disjoint(self, placement: Sequence[int]) -> float:
        """The cost of a placement of disjoint tiles."""
        parts = [float(self.costs[stage, tile]) for stage, tile in enumerate(placement)]
        parts += [weight * float(self.hops[placement[a], placement[b]]) for a, b, weight in self.edges]
        return (math.fsum(parts) if math.inf not in parts else math.inf) if self.minimise == "sum" else max(parts)

    def first_tiles(self) -> Bools:
        """One tile of each set of mirror images, for the first stage.

        A symmetry counts only if it maps every tile to one of the same cost and preserves all hops: corresponding dies
        of tiles with different shapes may change under it.
        """
        is_first = np.ones(len(self.tiles), np.bool_)
        for symmetry in symmetries(self.grid):
            images = [self.number.get(symmetry.tile(self.grid, tile)) for tile in self.tiles]
            moved = np.array([-1 if image is None else image for image in images], np.int64)
            if (moved < 0).any() or not np.array_equal(self.costs[:, moved], self.costs):
                continue
            if np.array_equal(self.hops[np.ix_(moved, moved)], self.hops):
                # symmetries that count form a group, so the smallest image of a tile always stays
                is_first &= moved >= np.arange(len(moved))
        return is_first


def tile_problem(
    grid: WaferGrid, stages: Sequence[StageShapes], edges: Iterable[StageEdge], minimise: Minimise = "sum"
) -> TileProblem:
    """The placement problem of a wafer, the shapes of its stages, and the edges between them."""
    _check(stages, minimise)
    shape_costs = [stage.cost_of() for stage in stages]
    tiles = live_tiles(grid, {shape for costs in shape_costs for shape in costs})
    if len(tiles) > MAX_TILES or len(stages) > MAX_STAGES:
        what = f"{len(stages)} stages and {len(tiles)} tiles"
        raise InputError("tiles", what, f"there should be at most {MAX_STAGES} and {MAX_TILES}")
    costs = [[shapes.get((tile.rows, tile.cols), math.inf) for tile in tiles] for shapes in shape_costs]
    return TileProblem(
        grid,
        tiles,
        np.array(costs, np.float64).reshape(len(stages), len(tiles)),
        _merged(edges, len(stages), minimise),
        minimise,
        _tile_hops(grid, tiles),
        _disjoint(grid, tiles),
    )


def live_tiles(grid: WaferGrid, shapes: Iterable[tuple[int, int]]) -> tuple[Tile, ...]:
    """Every tile of these shapes without dead dies whose dies reach each other inside it, row by row."""
    tiles: list[Tile] = []
    for rows, cols in sorted(set(shapes)):
        for y in range(grid.rows - rows + 1):
            for x in range(grid.cols - cols + 1):
                tile = Tile(x, y, rows, cols)
                if grid.dead.isdisjoint(tile.dies()) and grid.is_connected(tile):
                    tiles.append(tile)
    return tuple(sorted(tiles, key=lambda tile: (tile.y, tile.x, tile.rows, tile.cols)))


def _mesh(grid: WaferGrid) -> DieMesh:
    """The same dies and links with rows before columns."""
    links = frozenset(((a[1], a[0]), (b[1], b[0])) for a, b in grid.dead_links)
    return DieMesh(grid.rows, grid.cols, frozenset((y, x) for x, y in grid.dead), links)


def wafer_parts(grid: WaferGrid) -> list[WaferGrid]:
    """The wafer once per connected part, with all dies outside the part dead."""
    return [replace(grid, dead=frozenset((x, y) for y, x in part.dead_dies)) for part in _mesh(grid).components]


def die_hops(grid: WaferGrid) -> Floats:
    """Hops over live links between dies, numbered row by row; infinite if there is no way or a die is dead."""
    mesh = _mesh(grid)
    hops_between = np.full((grid.rows * grid.cols,) * 2, np.inf)
    for row, col in mesh.dies:
        for (other_row, other_col), hops in mesh.distances((row, col)).items():
            hops_between[row * grid.cols + col, other_row * grid.cols + other_col] = hops
    return hops_between


def die_numbers(grid: WaferGrid, tile: Tile) -> list[int]:
    """The numbers of a tile's dies, row by row."""
    return [y * grid.cols + x for x, y in tile.dies()]


def _tile_hops(grid: WaferGrid, tiles: Sequence[Tile]) -> Floats:
    """The longest way between corresponding dies: equal rank row by row, wrapping around in the smaller tile."""
    between, tile_hops = die_hops(grid), np.zeros((len(tiles), len(tiles)))
    by_size: dict[int, list[int]] = {}
    for i, tile in enumerate(tiles):
        by_size.setdefault(tile.rows * tile.cols, []).append(i)
    dies = {size: np.array([die_numbers(grid, tiles[i]) for i in group]) for size, group in by_size.items()}
    for size, group in by_size.items():
        for other_size, others in by_size.items():
            longest = np.zeros((len(group), len(others)))
            for k in range(max(size, other_size)):
                one, other = dies[size][:, k % size], dies[other_size][:, k % other_size]
                np.maximum(longest, between[np.ix_(one, other)], out=longest)
            tile_hops[np.ix_(group, others)] = longest
    return tile_hops


def _disjoint(grid: WaferGrid, tiles: Sequence[Tile]) -> Bools:
    holds = np.zeros((len(tiles), grid.rows * grid.cols))
    for i, tile in enumerate(tiles):
        holds[i, die_numbers(grid, tile)] = 1
    return holds @ holds.T == 0


def _merged(edges: Iterable[StageEdge], num_stages: int, minimise: Minimise) -> tuple[StageEdge, ...]:
    """Edges with the smaller stage first, each pair once."""
    merged: dict[tuple[int, int], float] = {}
    for a, b, weight in edges:
        if not (0 <= a < num_stages and 0 <= b < num_stages) or a == b:
            raise InputError(
                "edges", f"join stages {a} and {b}", f"they should be two different ones below {num_stages}"
            )
        if not 0 <= weight < math.inf:
            raise InputError("edges", f"have the weight {weight:g}", "it should be finite and not below 0")
        pair, before = (min(a, b), max(a, b)), merged.get((min(a, b), max(a, b)), 0.0)
        merged[pair] = before + weight if minimise == "sum" else max(before, weight)
    return tuple((a, b, weight) for (a, b), weight in sorted(merged.items()) if weight > 0)


def _check(stages: Sequence[StageShapes], minimise: str) -> None:
    if not stages:
        raise InputError("stages", "are empty", "there should be at least one")
    if minimise not in ("sum", "max"):
        raise InputError("minimise", f"is {minimise!r}", "it should be 'sum' or 'max'")
    for i, stage in enumerate(stages):
        if not stage.shapes or any(rows < 1 or cols < 1 for rows, cols in stage.shapes):
            raise InputError(f"stages[{i}].shapes", f"are {list(stage.shapes)}", "rows and columns are at least 1")
        if stage.costs_s and len(stage.costs_s) != len(stage.shapes):
            raise InputError(
                f"stages[{i}].costs_s", f"are {len(stage.costs_s)}", f"there are {len(stage.shapes)} shapes"
            )
        if any(not 0 <= cost < math.inf for cost in stage.costs_s):
            raise InputError(
                f"stages[{i}].costs_s", "has a negative or infinite value", "they should be finite seconds"
            )
