"""A mesh cut into equal tiles: loads of all tiles, and of all strided groups across tiles, without walking routes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dovetail.arrays import Floats
from dovetail.cost.mesh.collective import MeshCollective
from dovetail.cost.mesh.grid import DieMesh
from dovetail.cost.mesh.loads import DieGroup
from dovetail.errors import InputError


def tiles(mesh: DieMesh, rows: int, cols: int) -> list[DieGroup]:
    """The rectangles of rows × cols dies, row by row."""
    _check(mesh, rows, cols)
    return [DieGroup((row, col), rows, cols) for row in range(0, mesh.rows, rows) for col in range(0, mesh.cols, cols)]


def across_tiles(mesh: DieMesh, rows: int, cols: int) -> list[DieGroup]:
    """For each place within a tile the dies that have this place in their tiles."""
    _check(mesh, rows, cols)
    down, across = mesh.rows // rows, mesh.cols // cols
    return [DieGroup((row, col), down, across, rows, cols) for row in range(rows) for col in range(cols)]


def tilings(mesh: DieMesh) -> Iterator[tuple[int, int]]:
    """Every size of tiles that cut the mesh evenly."""
    for rows in range(1, mesh.rows + 1):
        for cols in range(1, mesh.cols + 1):
            if mesh.rows % rows == 0 and mesh.cols % cols == 0:
                yield rows, cols


def tile_loads(mesh: DieMesh, one: MeshCollective) -> Floats:
    """Loads when every tile of a whole mesh runs this collective of one tile: each tile's links are its own."""
    rows, cols = one.mesh.rows, one.mesh.cols
    _check(mesh, rows, cols)
    tile_right, tile_down = _as_grids(one)
    right = np.zeros((mesh.rows, mesh.cols, 2))
    down = np.zeros((mesh.rows, mesh.cols, 2))
    # beyond a tile's last column or row lies a link that no tile uses
    right[:] = np.tile(np.pad(tile_right, ((0, 0), (0, 1), (0, 0))), (mesh.rows // rows, mesh.cols // cols, 1))
    down[:] = np.tile(np.pad(tile_down, ((0, 1), (0, 0), (0, 0))), (mesh.rows // rows, mesh.cols // cols, 1))
    return _by_link(mesh, right[:, :-1], down[:-1])


def across_loads(mesh: DieMesh, one: MeshCollective) -> Floats:
    """Loads when, for every place within a tile, the dies that have it run this collective of the tiles as dies.

    A link of such a group spans a whole tile, so the one between dies y and y + 1 of a row is part of that of every
    place up to y in one pair of tiles, and of every place beyond in the pair before: as many as a tile has columns,
    less at the edges of the mesh.
    """
    down_tiles, across = one.mesh.rows, one.mesh.cols
    _check(mesh, mesh.rows // down_tiles, mesh.cols // across)
    group_right, group_down = _as_grids(one)
    right = _spanned(group_right, mesh.rows // down_tiles, mesh.cols // across)
    down = _spanned(group_down.transpose(1, 0, 2), mesh.cols // across, mesh.rows // down_tiles).transpose(1, 0, 2)
    return _by_link(mesh, right, down)


def _spanned(loads: Floats, repeats: int, span: int) -> Floats:
    """Loads along the second axis of links that span so many dies, for all places they may begin at; rows repeated."""
    lines, links, _ = loads.shape
    result = np.zeros((lines, (links + 1) * span - 1, 2))
    stretched = np.repeat(loads, span, axis=1)
    for place in range(span):
        result[:, place : place + links * span] += stretched
    return np.repeat(result, repeats, axis=0)


def _as_grids(one: MeshCollective) -> tuple[Floats, Floats]:
    """Loads of links to the right by row and column, and of links down; forth and back as last axis."""
    mesh = one.mesh
    if not mesh.whole:
        raise InputError("tiling", "the group's own mesh is damaged", "lay each damaged group along its routes")
    right = np.zeros((mesh.rows, mesh.cols - 1, 2))
    down = np.zeros((mesh.rows - 1, mesh.cols, 2))
    for pair, (a, b) in zip(one.loads.reshape(-1, 2), mesh.edges, strict=True):
        (right if a[0] == b[0] else down)[a] = pair
    return right, down


def _by_link(mesh: DieMesh, right: Floats, down: Floats) -> Floats:
    loads = [(right if a[0] == b[0] else down)[a] for a, b in mesh.edges]
    return np.array(loads, np.float64).reshape(-1)


def _check(mesh: DieMesh, rows: int, cols: int) -> None:
    if not mesh.whole:
        raise InputError("tiling", "the mesh is damaged", "lay each group along its routes")
    if rows < 1 or cols < 1 or mesh.rows % rows or mesh.cols % cols:
        raise InputError(
            "tiling", f"tiles of {rows} × {cols}", f"rows divide {mesh.rows} and columns divide {mesh.cols}"
        )
