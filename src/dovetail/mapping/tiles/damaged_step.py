"""The step time of a plan on a damaged wafer: actual routes between stages, collectives around dead links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from dovetail.arrays import Floats, largest
from dovetail.cost.mesh import DieGroup, DieMesh, MeshCollectiveKind, best, embedded, total_loads
from dovetail.cost.units import way_arrays
from dovetail.hardware import Wafer
from dovetail.layout.encoding import WaferGrid
from dovetail.layout.encoding.job_encoding import Tile
from dovetail.pipeline.chunk_times import ChunkTimes
from dovetail.pipeline.step_time import step_time
from dovetail.plans.plan import Plan
from dovetail.profile import LayerProfile, Recompute
from dovetail.step.evaluate import ProfiledJob, pipeline_of, recompute_of
from dovetail.step.memory import MemoryTables
from dovetail.step.stages import chunk_contents, layer_variants, stage_contents
from dovetail.step.times import (
    LayerTimes,
    chunk_times,
    end_of_step,
    hop_seconds,
    layer_times,
    tied_seconds,
)

#: Kinds of collectives; a reduce-scatter takes as long as an all-gather.
KINDS = (MeshCollectiveKind.ALL_GATHER, MeshCollectiveKind.ALL_REDUCE, MeshCollectiveKind.ALL_TO_ALL)


@dataclass(frozen=True, slots=True)
class TilePlan:
    """A plan, the tiles of its stages, and its step time there."""

    plan: Plan
    #: by stage; a turned tile has the plan's layouts turned
    tiles: tuple[Tile, ...]
    #: the most links between corresponding dies of each stage and the next
    hops: tuple[int, ...]
    #: by stage: how many times longer its collectives take than on an intact tile
    slowdowns: tuple[float, ...]
    step_time_s: float


def wafer_mesh(wafer: Wafer) -> DieMesh:
    """The dies and links of a wafer that work."""
    return DieMesh(wafer.rows, wafer.cols, frozenset(wafer.defects.dead_dies), frozenset(wafer.defects.dead_links))


def wafer_grid(wafer: Wafer) -> WaferGrid:
    """The same with columns before rows, as tile placement expects."""
    dead = frozenset((col, row) for row, col in wafer.defects.dead_dies)
    ends = (sorted(((a[1], a[0]), (b[1], b[0]))) for a, b in wafer.defects.dead_links)
    return WaferGrid(wafer.rows, wafer.cols, dead, frozenset((one, other) for one, other in ends))


def dies_of(tile: Tile) -> list[tuple[int, int]]:
    """Rows and columns of a tile's dies, row by row."""
    return [(y, x) for x, y in tile.dies()]


def fellow_hops(mesh: DieMesh, one: Tile, other: Tile) -> int | None:
    """The most links between corresponding dies of two tiles, around what is dead; None if there is no way.

    Corresponding dies have the same position in their tiles; if one tile is turned, row and column swap.
    """
    turned = (one.rows, one.cols) != (other.rows, other.cols)
    most = 0
    for row in range(one.rows):
        for col in range(one.cols):
            place = (col, row) if turned else (row, col)
            source, target = (one.y + row, one.x + col), (other.y + place[0], other.x + place[1])
            way = mesh.distances(source).get(target)
            if way is None:
                return None
            most = max(most, way)
    return most


def chain_hops(mesh: DieMesh, tiles: Sequence[Tile]) -> tuple[int, ...] | None:
    """Hops between consecutive stages; None if one cannot be reached."""
    hops_between: list[int] = []
    for one, other in pairwise(tiles):
        hops = fellow_hops(mesh, one, other)
        if hops is None:
            return None
        hops_between.append(hops)
    return tuple(hops_between)


def slowdown(mesh: DieMesh, tile: Tile, *, replanned: bool) -> float:
    """How many times longer the collectives of a tile of live dies take than on an intact tile.

    The algorithms are those of the intact tile: over all its dies, over each row, over each column. A send over a dead
    link takes a shortest way around it, inside the tile or, if the tile is disconnected, over the wafer; the busiest
    link then decides. With `replanned`, collectives over all dies use the best algorithm of the damaged tile if that
    is faster. The slowest kind and grouping counts, whether a plan uses it or not. We assume that detour links outside
    the tile are as busy with other tiles' collectives as the busiest link of an intact tile; that those collectives
    slow down too is not counted.
    """
    corner = (tile.y, tile.x)
    inside = [((a[0] - tile.y, a[1] - tile.x), (b[0] - tile.y, b[1] - tile.x)) for a, b in mesh.dead_links]
    dead_inside = frozenset(
        (a, b) for a, b in inside if all(0 <= r < tile.rows and 0 <= c < tile.cols for r, c in (a, b))
    )
    if not dead_inside:
        return 1.0
    damaged = DieMesh(tile.rows, tile.cols, dead_links=dead_inside)
    if damaged.connected:
        return _slowdown(damaged, (0, 0), tile.rows, tile.cols, replanned)
    return _slowdown(mesh, corner, tile.rows, tile.cols, False)


@lru_cache(maxsize=4096)
def _slowdown(mesh: DieMesh, corner: tuple[int, int], rows: int, cols: int, replanned: bool) -> float:
    worst = 1.0
    dies = {(corner[0] + row, corner[1] + col) for row in range(rows) for col in range(cols)}
    outside = np.array([not (a in dies and b in dies) for a, b in mesh.links])
    for groups in _groupings(corner, rows, cols):
        group_mesh = DieMesh(groups[0].rows, groups[0].cols)
        for kind in KINDS:
            whole = best(kind, group_mesh, 1.0, 1.0)
            laid = [embedded(whole, mesh, [group.die(place) for place in group_mesh.dies]) for group in groups]
            loads = total_loads(laid)
            busiest = float((loads + whole.busiest_bytes * ((loads > 0) & outside)).max())
            if replanned and len(groups) == 1:
                busiest = min(busiest, best(kind, mesh, 1.0, 1.0).busiest_bytes)
            worst = max(worst, busiest / whole.busiest_bytes)
    return worst


def _groupings(corner: tuple[int, int], rows: int, cols: int) -> Iterable[list[DieGroup]]:
    """All dies of a tile; its rows; its columns."""
    yield [DieGroup(corner, rows, cols)]
    if rows > 1 and cols > 1:
        yield [DieGroup((corner[0] + row, corner[1]), 1, cols) for row in range(rows)]
        yield [DieGroup((corner[0], corner[1] + col), rows, 1) for col in range(cols)]


def tiled_step_s(plan: Plan, job: ProfiledJob, hops: Sequence[int], slowdowns: Sequence[float]) -> float:
    """Seconds of a step with given hops after each stage and given slowdowns of its collectives.

    With the hops of stages side by side and no slowdown it equals the plan's evaluation. As there, all dies of a stage
    send at once, and each link carries as many messages as there are hops.
    """
    graph, facts, along = job.profiles.graph, job.facts, way_arrays(job.cluster, job.efficiencies)
    contents, pipeline = chunk_contents(graph, plan), pipeline_of(plan)
    stages = stage_contents(contents, pipeline)
    slower = {factor: _Slower(plan, job, factor) for factor in dict.fromkeys(slowdowns)}
    times_by = {factor: chunk_times(layers.times, contents, np.zeros(()), 0) for factor, layers in slower.items()}

    def by_stage(field: str) -> Floats:
        return np.array([float(np.ravel(getattr(times_by[f], field))[place]) for place, f in enumerate(slowdowns)])

    sent = largest(p.stream_bytes for p in job.profiles.layers.values()) / plan.stream_replicas
    transfers = np.array([float(np.ravel(hop_seconds(sent, n, along))[0]) for n in hops])
    forward, of_input = by_stage("forward_s"), by_stage("input_gradient_s")
    if not facts.overlaps.transfers:
        # a stage waits while it sends, so the transfer counts as its time
        forward, of_input = forward + np.append(transfers, 0.0), of_input + np.append(0.0, transfers)
        transfers = 0 * transfers
    chunks = ChunkTimes(forward, of_input, by_stage("weight_gradient_s"), transfer_s=transfers)
    update_s = facts.update_bytes / job.chip.vector.memory_bytes_per_s
    end_s = 0.0
    for factor, layers in slower.items():
        own_stages = [stage for stage, f in zip(stages, slowdowns, strict=True) if f == factor]
        profiles = replace(job.profiles, layers=layers.layers)
        home = layers.tables.parameters(*own_stages)[:, 1]
        parts = end_of_step(profiles, own_stages, layers.times, facts.overlaps, pipeline, home, update_s)
        end_s = max(end_s, float(np.ravel(sum(parts))[0]))
    profiles = replace(job.profiles, layers=slower[slowdowns[0]].layers)
    tied = tied_seconds(plan, profiles, stages, job.cluster, job.efficiencies, job.gradient_bytes)
    pipelined = float(np.ravel(step_time(pipeline, chunks))[0])
    return pipelined + end_s + float(np.ravel(tied)[0]) + float(np.ravel(facts.overheads.step_s)[0])


class _Slower:
    """The layers of a plan with collectives slowed down by a factor."""

    def __init__(self, plan: Plan, job: ProfiledJob, factor: float) -> None:
        graph, facts = job.profiles.graph, job.facts
        variants = layer_variants(graph, plan, chunk_contents(graph, plan))
        self.layers: dict[str, LayerProfile] = {}
        self.times: dict[str, LayerTimes] = {}
        recomputed: dict[str, Recompute] = {}
        for name, (layer, choice) in variants.items():
            recompute: Recompute = recompute_of(job.profiles, layer, choice, plan.recompute_share, facts)
            recompute = replace(recompute, added_collective_s=_longer(recompute.added_collective_s, factor))
            profile = job.profiles.layers[layer]
            self.layers[name] = replace(
                profile,
                forward_collective_s=_longer(profile.forward_collective_s, factor),
                backward_collective_s=_longer(profile.backward_collective_s, factor),
                step_collective_s=_longer(profile.step_collective_s, factor),
            )
            recomputed[name] = recompute
            self.times[name] = layer_times(self.layers[name], recompute, facts.overlaps, facts.overheads.host_s)
        self.tables = MemoryTables.of(self.layers, recomputed, {})


def _longer(seconds: Mapping[str, Floats], factor: float) -> dict[str, Floats]:
    return {name: each * factor for name, each in seconds.items()}
