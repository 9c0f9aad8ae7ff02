"""Where the stages of a plan are on their wafers, the ways between them, and what is dead inside their tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware import Cluster, DefectMap
from dovetail.hardware.defects import Position, check_defects
from dovetail.layout.encoding import TileLayouts
from dovetail.plans.plan import Plan
from dovetail.plans.wafer_part import StageTile, WaferPart
from dovetail.plans.wafer_tiles import is_wafer, snake, wafer_shape

if TYPE_CHECKING:
    from dovetail.cost.mesh import DieMesh
    from dovetail.cost.mesh.damage import DamagedGroups


@frozen
class Handover:
    """The way from a stage to another: links between fellow dies, and messages on the busiest of these links.

    Where the stages are on different wafers it is the links off the wafer, and both are 0.
    """

    hops: int
    messages: int


def stage_tiles(plan: Plan, cluster: Cluster) -> tuple[StageTile, ...]:
    """The tile of every stage of a plan with layouts on a wafer: as it says, or one after another in a snake."""
    assert plan.layouts is not None, "named strategies have no tiles"
    if plan.wafer is not None and plan.wafer.tiles:
        return plan.wafer.tiles
    return snake_tiles(plan.layouts.rows, plan.layouts.cols, plan.pipeline_parallel, wafer_shape(cluster))


def snake_tiles(rows: int, cols: int, stages: int, grid: tuple[int, int]) -> tuple[StageTile, ...]:
    """Tiles side by side: down a column of them, up the next, and on the next wafer where one is full."""
    down, across = grid[0] // rows, grid[1] // cols
    if not down or not across:
        raise InputError(
            "plan: layouts.tile", f"is {rows} × {cols} on {grid[0]} × {grid[1]} dies", "use a smaller tile"
        )
    tiles: list[StageTile] = []
    for stage in range(stages):
        row, col, wafer = snake(stage, (down, across, stages))
        tiles.append(StageTile(wafer, row * rows, col * cols, rows, cols))
    return tuple(tiles)


def on_tiles(plan: Plan, cluster: Cluster) -> bool:
    """Whether the stages of a plan are tiles of wafers."""
    return plan.layouts is not None and is_wafer(cluster)


def num_wafers(cluster: Cluster) -> int:
    """Wafers of a cluster."""
    rows, cols = wafer_shape(cluster)
    return cluster.chips // (rows * cols)


def damaged(cluster: Cluster, defects: tuple[DefectMap, ...], where: str) -> Cluster:
    """The wafers of a cluster with these defects, a map for each or one for the only one."""
    if not is_wafer(cluster):
        raise InputError(where, f"are for wafers, and {cluster.name} is none", "leave them out")
    shape, wafers = wafer_shape(cluster), num_wafers(cluster)
    if defects and len(defects) != wafers:
        raise InputError(where, f"has {len(defects)} maps", f"it should have one for each of {wafers} wafers")
    for each in defects:
        check_defects(each, *shape, where)
    return replace(cluster, defects=defects if any(each != DefectMap() for each in defects) else ())


def mesh_of(shape: tuple[int, int], defects: DefectMap) -> DieMesh:
    """The dies and links of a wafer that work."""
    return _mesh(*shape, defects)


@lru_cache(maxsize=256)
def _mesh(rows: int, cols: int, defects: DefectMap) -> DieMesh:
    from dovetail.cost.mesh import DieMesh  # collectives of meshes, which clusters do without

    return DieMesh(rows, cols, frozenset(defects.dead_dies), frozenset(defects.dead_links))


def known_defects(plan: Plan, wafer: int) -> DefectMap:
    """What a plan goes around on a wafer."""
    return DefectMap() if plan.wafer is None else plan.wafer.at(wafer)


def handover(plan: Plan, cluster: Cluster, source: int, target: int) -> Handover:
    """The way from a stage to another."""
    tiles = stage_tiles(plan, cluster)
    one, other = tiles[source], tiles[target]
    if one.wafer != other.wafer:
        return Handover(0, 0)
    return _handover(mesh_of(wafer_shape(cluster), known_defects(plan, one.wafer)), one, other)


@lru_cache(maxsize=65536)
def _handover(mesh: DieMesh, one: StageTile, other: StageTile) -> Handover:
    carried = np.zeros(max(len(mesh.links), 1), np.int64)
    hops = 0
    for source, target in fellows(one, other):
        route = mesh.route(source, target)
        hops = max(hops, len(route))
        carried[list(route)] += 1
    return Handover(hops, int(carried.max()))


def fellows(one: StageTile, other: StageTile) -> Iterator[tuple[Position, Position]]:
    """Dies with the same place in two tiles; where one is turned, rows are the columns of the other."""
    turned = (one.rows, one.cols) != (other.rows, other.cols)
    for row, col in one.dies():
        down, right = row - one.row, col - one.col
        if turned:
            down, right = right, down
        yield (row, col), (other.row + down, other.col + right)


def damage(plan: Plan, cluster: Cluster, stage: int) -> DamagedGroups | None:
    """What is dead inside a stage's tile, or on a wafer that a named strategy fills; None where nothing is."""
    shape = wafer_shape(cluster)
    if plan.layouts is None:
        tile = StageTile(0, 0, 0, *shape)
    else:
        tile = stage_tiles(plan, cluster)[stage]
    defects = known_defects(plan, tile.wafer)
    dies = set(tile.dies())
    inside = tuple((a, b) for a, b in defects.dead_links if a in dies and b in dies)
    if not inside:
        return None
    turned = plan.layouts is not None and is_turned(tile, plan.layouts)
    from dovetail.cost.mesh.damage import DamagedGroups

    return DamagedGroups(mesh_of(shape, defects), (tile.row, tile.col), tile.rows, tile.cols, turned)


def is_turned(tile: StageTile, layouts: TileLayouts) -> bool:
    """Whether the rows of a tile are the columns of the layouts."""
    return (tile.rows, tile.cols) != (layouts.rows, layouts.cols)


def check_wafer(plan: Plan, cluster: Cluster) -> None:
    """Refuses tiles that are not on the wafers, overlap, or use a dead die or link the plan does not go around."""
    part = plan.wafer
    if not is_wafer(cluster):
        if part is not None:
            raise InputError("plan: wafer", f"is for wafers, and {cluster.name} is none", "leave it out")
        return
    shape, wafers = wafer_shape(cluster), num_wafers(cluster)
    if part is not None:
        _check_part(plan, part, cluster, wafers)
    if plan.layouts is not None:
        tiles = stage_tiles(plan, cluster)
        _check_inside(plan, tiles, shape, wafers)
        _check_disjoint(tiles)
        for stage, tile in enumerate(tiles):
            _check_live(f"plan: wafer.tiles[{stage}]", plan, tile, cluster)
            _check_joined(f"plan: wafer.tiles[{stage}]", plan, tile, cluster)
        for stage, other in _ways(plan):
            if tiles[stage].wafer == tiles[other].wafer:
                # there and back: routes along the row first differ
                _check_way(stage, other, plan, cluster)
                _check_way(other, stage, plan, cluster)
    else:
        if wafers > 1 and part is not None and any(each.dead_links for each in part.defects):
            fix = "plan with layouts: dovetail plan --strategy free"
            raise InputError("plan: wafer.defects", "has dead links on several wafers, with degrees alone", fix)
        for wafer in range(wafers):
            _check_live("plan: degrees", plan, StageTile(wafer, 0, 0, *shape), cluster)


def _ways(plan: Plan) -> Iterator[tuple[int, int]]:
    """Pairs of stages that send to each other."""
    yield from pairwise(range(plan.pipeline_parallel))
    if plan.virtual_stages > 1 and plan.pipeline_parallel > 2:
        yield plan.pipeline_parallel - 1, 0
    if plan.wafer is not None:
        yield from ((loan.stage, loan.lender) for loan in plan.wafer.loans)


def _check_part(plan: Plan, part: WaferPart, cluster: Cluster, wafers: int) -> None:
    if part.defects and len(part.defects) != wafers:
        fix = f"it should have one for each of {wafers}"
        raise InputError("plan: wafer.defects", f"has {len(part.defects)} maps", fix)
    for wafer, each in enumerate(part.defects):
        check_defects(each, *wafer_shape(cluster), f"plan: wafer.defects[{wafer}]")
    if part.tiles and plan.layouts is None:
        raise InputError("plan: wafer.tiles", "are for plans with layouts", "leave them out")
    if part.tiles and len(part.tiles) != plan.pipeline_parallel:
        fix = f"it should have one for each of {plan.pipeline_parallel} stages"
        raise InputError("plan: wafer.tiles", f"has {len(part.tiles)} tiles", fix)
    for number, loan in enumerate(part.loans):
        where = f"plan: wafer.loans[{number}]"
        if plan.layouts is None:
            raise InputError(where, "is for plans with layouts", "leave it out")
        if max(loan.stage, loan.lender) >= plan.pipeline_parallel or loan.stage == loan.lender:
            fix = f"both should be different stages below {plan.pipeline_parallel}"
            raise InputError(where, f"is from stage {loan.lender} to {loan.stage}", fix)
    if (part.tiles or part.loans) and plan.pipeline_schedule == "dualpipe":
        fix = "use one of the other schedules"
        raise InputError("plan: pipeline_schedule", "is dualpipe, whose stages hold two chunks, on tiles", fix)
    if part.loans and "activations" in part.store:
        fix = "leave out one of them: what the store holds need not be lent"
        raise InputError("plan: wafer.loans", "are of activations, which the store holds", fix)
    if part.store and cluster.store is None:
        raise InputError("plan: wafer.store", f"is used, but {cluster.name} has none", "leave it out")
    if "weights" in part.store and plan.zero_stage != 3:
        fix = "it should be 3: dies gather the weights of the layer at work"
        raise InputError("plan: zero_stage", f"is {plan.zero_stage} with weights in the store", fix)


def _check_inside(plan: Plan, tiles: tuple[StageTile, ...], shape: tuple[int, int], wafers: int) -> None:
    assert plan.layouts is not None
    size = {plan.layouts.rows, plan.layouts.cols}
    for stage, tile in enumerate(tiles):
        where = f"plan: wafer.tiles[{stage}]"
        if {tile.rows, tile.cols} != size or tile.rows * tile.cols != plan.layouts.chips:
            fix = f"it should be {plan.layouts.rows} × {plan.layouts.cols} as the layouts are, or turned"
            raise InputError(where, f"is {tile.rows} × {tile.cols} dies", fix)
        beyond = tile.row + tile.rows > shape[0] or tile.col + tile.cols > shape[1] or tile.wafer >= wafers
        if beyond:
            fix = f"there are {wafers} wafers of {shape[0]} × {shape[1]} dies"
            raise InputError(where, "is not on the wafers", fix)


def _check_disjoint(tiles: tuple[StageTile, ...]) -> None:
    taken: dict[tuple[int, int, int], int] = {}
    for stage, tile in enumerate(tiles):
        for row, col in tile.dies():
            other = taken.setdefault((tile.wafer, row, col), stage)
            if other != stage:
                what = f"has die [{row}, {col}], which stage {other} has too"
                raise InputError(f"plan: wafer.tiles[{stage}]", what, "tiles should share no die")


def _check_live(where: str, plan: Plan, tile: StageTile, cluster: Cluster) -> None:
    """Refuses dead dies, and dead links that the plan does not know of."""
    dead = cluster.defects[tile.wafer] if cluster.defects else DefectMap()
    known, dies = known_defects(plan, tile.wafer), set(tile.dies())
    for row, col in sorted({*dead.dead_dies, *known.dead_dies}):
        if (row, col) in dies:
            fix = "plan again for the damaged wafer: dovetail plan --strategy free, or --keep"
            raise InputError(where, f"has die [{row}, {col}], which is dead", fix)
    for a, b in dead.dead_links:
        if a in dies and b in dies and (a, b) not in known.dead_links:
            what = f"uses the link {list(a)} to {list(b)}, which is dead"
            raise InputError(where, what, "plan again for the damaged wafer, or add it to wafer.defects")


def _check_joined(where: str, plan: Plan, tile: StageTile, cluster: Cluster) -> None:
    """Refuses a tile whose dies cannot reach each other."""
    first, *others = tile.dies()
    reached = mesh_of(wafer_shape(cluster), known_defects(plan, tile.wafer)).distances(first)
    for row, col in others:
        if (row, col) not in reached:
            what = f"has die [{row}, {col}], which die [{first[0]}, {first[1]}] does not reach"
            raise InputError(where, what, "choose tiles that live links join")


def _check_way(source: int, target: int, plan: Plan, cluster: Cluster) -> None:
    """Refuses stages of a wafer that cannot reach each other, or only over what is dead."""
    where, tiles = f"plan: wafer.tiles[{source}]", stage_tiles(plan, cluster)
    one, other = tiles[source], tiles[target]
    mesh = mesh_of(wafer_shape(cluster), known_defects(plan, one.wafer))
    dead = cluster.defects[one.wafer] if cluster.defects else DefectMap()
    gone_dies, gone_links = set(dead.dead_dies), set(dead.dead_links)
    for here, there in fellows(one, other):
        if there not in mesh.distances(here):
            what = f"does not reach the tile of stage {target}"
            raise InputError(where, what, "choose tiles that live links join")
        for link in mesh.route(here, there):
            a, b = mesh.links[link]
            if {a, b} & gone_dies or (min(a, b), max(a, b)) in gone_links:
                what = f"sends over the link {list(a)} to {list(b)}, which is dead"
                raise InputError(where, what, "plan again for the damaged wafer, or add it to wafer.defects")
