"""What collectives take on a tile of a wafer: the best algorithm, what none goes below, and the same simulated."""

from __future__ import annotations

from dovetail.cost.mesh import DieMesh, MeshCollectiveKind, across_loads, best, lower_bound
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware import Wafer
from dovetail.simulation.mesh_flows import sends
from dovetail.simulation.task_graph import run

#: What operators of a layer do together.
KINDS = (
    MeshCollectiveKind.ALL_REDUCE,
    MeshCollectiveKind.ALL_GATHER,
    MeshCollectiveKind.REDUCE_SCATTER,
    MeshCollectiveKind.ALL_TO_ALL,
)
#: Chunks that follow each other in a simulated collective, and the most dies for which that is done.
CHUNKS, MOST_SIMULATED = 64, 64


@frozen
class TileCollective:
    """One kind of collective on a tile."""

    kind: str
    algorithm: str
    seconds: float
    #: no algorithm takes less for its bytes
    lower_bound_s: float
    #: message by message; None on large tiles, and for exchanges, whose messages go their own ways
    simulated_s: float | None
    #: dies with the same place in every tile, all such groups at once; None where tiles do not fill the whole wafer
    across_tiles_s: float | None


def tile_collectives(wafer: Wafer, rows: int, cols: int, row: int, col: int, num_bytes: float) -> list[TileCollective]:
    """Every kind of collective on the tile with its first die at a row and column, around what is dead there."""
    if not (0 <= row <= wafer.rows - rows and 0 <= col <= wafer.cols - cols and rows > 0 and cols > 0):
        fix = f"it should be inside {wafer.rows} × {wafer.cols} dies"
        raise InputError("tile", f"is {rows} × {cols} dies from [{row}, {col}] on", fix)
    mesh = _tile_mesh(wafer, rows, cols, row, col)
    if not mesh.connected:
        raise InputError("tile", "has dies that do not reach each other inside it", "choose another")
    rate, latency = wafer.d2d_bytes_per_s, wafer.d2d_latency_s
    found: list[TileCollective] = []
    for kind in KINDS:
        made = best(kind, mesh, num_bytes, rate, latency)
        simulated = None
        if mesh.num_dies <= MOST_SIMULATED and kind is not MeshCollectiveKind.ALL_TO_ALL:
            simulated = run(sends(made, rate, CHUNKS, latency)).seconds
        bound_s = lower_bound(kind, mesh) * num_bytes / rate
        across = _across_s(wafer, rows, cols, kind, num_bytes)
        seconds = made.seconds(rate, latency)
        found.append(TileCollective(kind.value, made.algorithm, seconds, bound_s, simulated, across))
    return found


def _tile_mesh(wafer: Wafer, rows: int, cols: int, row: int, col: int) -> DieMesh:
    """The dies and links of a tile that work, its first die at [0, 0]."""

    def inside(die: tuple[int, int]) -> bool:
        return 0 <= die[0] - row < rows and 0 <= die[1] - col < cols

    def moved(die: tuple[int, int]) -> tuple[int, int]:
        return die[0] - row, die[1] - col

    dead = frozenset(moved(die) for die in wafer.defects.dead_dies if inside(die))
    links = frozenset((moved(a), moved(b)) for a, b in wafer.defects.dead_links if inside(a) and inside(b))
    return DieMesh(rows, cols, dead, links)


def _across_s(wafer: Wafer, rows: int, cols: int, kind: MeshCollectiveKind, num_bytes: float) -> float | None:
    whole = DieMesh(wafer.rows, wafer.cols, frozenset(wafer.defects.dead_dies), frozenset(wafer.defects.dead_links))
    down, right = wafer.rows // rows, wafer.cols // cols
    if not whole.whole or (down * rows, right * cols) != (wafer.rows, wafer.cols) or down * right == 1:
        return None
    one = best(kind, DieMesh(down, right), num_bytes, wafer.d2d_bytes_per_s, wafer.d2d_latency_s)
    busiest = float(across_loads(whole, one).max())
    return busiest / wafer.d2d_bytes_per_s + one.hops * max(rows, cols) * wafer.d2d_latency_s
