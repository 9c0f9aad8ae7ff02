"""Plans for damaged wafers: replanned for the dies that work, or the intact wafer's plan adapted to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dovetail.cost.calibration import calibration
from dovetail.cost.mesh import DieMesh
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster, DefectMap, Wafer
from dovetail.layout.encoding import TileLayouts, WaferGrid
from dovetail.layout.encoding.job_encoding import Tile
from dovetail.mapping.tiles.damaged_step import (
    TilePlan,
    chain_hops,
    dies_of,
    slowdown,
    tiled_step_s,
    wafer_grid,
    wafer_mesh,
)
from dovetail.mapping.tiles.free_plan import SCHEDULES, ZERO_STAGES
from dovetail.mapping.tiles.skeletons import TileSkeleton
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tiles.tile_layouts import TileSearch, searched_tiles
from dovetail.mapping.tilings import StageShapes, most_tiles, place_tiles
from dovetail.models import Job
from dovetail.partition.partition_plan import partition_profiled
from dovetail.plans.derive import even_layers
from dovetail.plans.plan import Plan
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import Evaluation, ProfiledJob, evaluation_of, profiled_job, step_from
from dovetail.step.facts import plan_facts

TileShape = tuple[int, int]

#: Rows and columns of the tiles we try, each also turned, and sequences of a micro-batch on each. We chose what was
#: best, or nearly so, of 1, 2, 3, 4 and 7 for GPT-3 175B and Llama-3.1-70B on a wafer of 8 × 7 dies.
TILE_SHAPES: Mapping[TileShape, tuple[int, ...]] = {
    (1, 1): (1,),
    (1, 2): (1, 2),
    (1, 3): (1, 3),
    (1, 4): (1, 2),
    (2, 2): (1, 2),
    (2, 3): (1, 2, 3),
    (2, 4): (2, 4),
    (2, 7): (7,),
}
#: Plans per skeleton that are priced on a damaged wafer, the fastest on an intact one first.
FEW = 2
#: Nodes of a search for tile positions: enough to find a placement, if not always the best.
NODES = 2_000


def replanned(
    job: Job,
    wafer: Wafer,
    framework: Framework,
    shapes: Mapping[TileShape, Sequence[int]] = TILE_SHAPES,
    *,
    fallback: TilePlan | None = None,
) -> TilePlan | None:
    """The fastest plan found on the working part of a wafer; None if none fits.

    Never slower than `fallback` (from `not_replanned`), if given. See `Replanner`.
    """
    return Replanner(job, wafer, framework, shapes).best(wafer.defects, fallback)


def not_replanned(plan: TilePlan, job: Job, wafer: Wafer, framework: Framework) -> TilePlan | None:
    """The plan of an intact wafer on a damaged one; None if it does not fit.

    Tiles stay where they are. A tile with a dead die is lost, and so is one whose dies cannot reach each other. If the
    remaining tiles fall into parts that cannot reach each other, the largest part counts. If any tile is lost, layers
    are dealt evenly to the others, in order, with the same layouts, schedule and micro-batches. The recompute choices
    of blocks stay; if that does not fit, all blocks use full recompute, a switch every framework has. Stages send
    over shortest ways around what is dead. Collectives keep their algorithms, routed around dead links (`slowdown`).
    """
    mesh, cluster = wafer_mesh(wafer), wafer.cluster()
    survivors = _surviving_tiles(plan.tiles, mesh)
    if not survivors:
        return None
    for candidate in _dealt(plan.plan, len(survivors), job.model.num_layers):
        facts = plan_facts(candidate, framework, job)
        calibrated = calibration(cluster.chip, job.precision)
        profiled = profiled_job(candidate, job, cluster, facts, calibrated.efficiencies)
        if evaluation_of(step_from(candidate, profiled), candidate, job, cluster, facts, str(calibrated)).fits:
            return _on_tiles(candidate, profiled, survivors, mesh, replanned=False)
    return None


def _surviving_tiles(tiles: Sequence[Tile], mesh: DieMesh) -> tuple[Tile, ...]:
    """The largest set of tiles whose dies are alive and reach each other."""
    parts = [tuple(t for t in tiles if set(dies_of(t)) <= set(part.dies)) for part in mesh.components]
    return max(parts, key=len, default=())


def _dealt(plan: Plan, stages: int, num_layers: int) -> Iterator[Plan]:
    """The plan on fewer stages: with its recompute choices, then with full recompute."""
    if stages < plan.pipeline_parallel:
        schedule = plan.pipeline_schedule if stages > 1 else "1f1b"
        layers = even_layers(stages, num_layers)
        plan = replace(plan, pipeline_parallel=stages, layers_per_stage=layers, pipeline_schedule=schedule)
        yield plan
        yield replace(plan, recompute="full", recompute_share=1.0, recompute_by_block=None)
    else:
        yield plan


def _on_tiles(
    plan: Plan, profiled: ProfiledJob, tiles: tuple[Tile, ...], mesh: DieMesh, *, replanned: bool
) -> TilePlan | None:
    hops = chain_hops(mesh, tiles)
    if hops is None:
        return None
    slowdowns = tuple(slowdown(mesh, tile, replanned=replanned) for tile in tiles)
    return TilePlan(plan, tiles, hops, slowdowns, tiled_step_s(plan, profiled, hops, slowdowns))


@dataclass(frozen=True, slots=True)
class UncutGrid(WaferGrid):
    """A wafer on which tiles may not have a dead link inside."""

    def is_connected(self, tile: Tile) -> bool:
        """Whether all links of a tile work."""
        dies = set(tile.dies()) - self.dead
        uncut = not any(one in dies and other in dies for one, other in self.dead_links)
        return uncut and WaferGrid.is_connected(self, tile)


@dataclass(frozen=True, slots=True)
class _TileSite:
    """Where tiles of some shapes may be placed, and how many fit."""

    grid: WaferGrid
    #: the tile shape of the plan's layouts
    shape: TileShape
    #: the tile shapes placed: the same, turned, or either
    ways: tuple[TileShape, ...]
    most: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A plan for some skeleton, placed on stages side by side."""

    evaluation: Evaluation
    profiled: ProfiledJob


@dataclass(frozen=True, slots=True)
class _ZeroLayouts:
    """ZeRO stages with layouts on a tile, and a lower bound of a block's seconds under any."""

    block_s: float
    by_zero_stage: tuple[tuple[int, TileLayouts], ...]


@dataclass
class Replanner:
    """The best plans of a job on a wafer with one map of defects after another.

    Stages use equal tiles, some of them turned if more fit that way. For each shape we try as many stages as there are
    disjoint live tiles that reach each other (`most_tiles`, exact), or the fewest with no more blocks on the fullest.
    Layouts are the fastest at every price of memory in a pipeline that fills the intact wafer; layers and recompute
    are chosen for the stages there are. `place_tiles` decides where tiles go; with dead links we also try tiles
    whose links all work. All times are the model's: pipelines of these stages with their actual hops and the
    collectives of their tiles (`tiled_step_s`).
    """

    job: Job
    wafer: Wafer
    framework: Framework
    #: rows and columns of tiles, and the sequences of a micro-batch; we skip those that do not divide the global batch
    shapes: Mapping[TileShape, Sequence[int]] = field(default_factory=lambda: TILE_SHAPES)
    # what does not depend on defects
    _layouts: dict[TileSkeleton, _ZeroLayouts] = field(default_factory=dict[TileSkeleton, "_ZeroLayouts"])
    _candidates: dict[TileSkeleton, list[_Candidate]] = field(default_factory=dict[TileSkeleton, list[_Candidate]])

    @property
    def cluster(self) -> Cluster:
        """The dies of the intact wafer."""
        return self.wafer.cluster()

    def best(self, defects: DefectMap, fallback: TilePlan | None = None) -> TilePlan | None:
        """The fastest plan found for these defects, or the fallback; None if none fits."""
        damaged = self.wafer.with_defects(defects)
        mesh, best = wafer_mesh(damaged), fallback
        places: dict[tuple[_TileSite, int], tuple[Tile, ...]] = {}
        waiting = [
            (self._least_s(skeleton), skeleton, site)
            for site in self._sites(wafer_grid(damaged))
            for stages in self._stage_counts(site.most)
            for skeleton in (TileSkeleton(*site.shape, stages, batch) for batch in self.shapes[site.shape])
            if self.job.global_batch % skeleton.batch == 0
        ]
        for least_s, skeleton, site in sorted(waiting, key=lambda each: each[:2]):
            if best is not None and least_s >= best.step_time_s:
                break
            for candidate in self._placed(skeleton):
                if best is not None and candidate.evaluation.step_time_s >= best.step_time_s:
                    break
                if (site, skeleton.stages) not in places:
                    places[site, skeleton.stages] = _places(site, skeleton.stages)
                tiles = places[site, skeleton.stages]
                made = None
                if tiles:
                    made = _on_tiles(candidate.evaluation.plan, candidate.profiled, tiles, mesh, replanned=True)
                if made is not None and (best is None or made.step_time_s < best.step_time_s):
                    best = made
        return best

    def _sites(self, grid: WaferGrid) -> Iterator[_TileSite]:
        """Shapes as given, turned, and mixed if more fit; with dead links, also only tiles without one."""
        grids = [grid]
        if grid.dead_links:
            grids.append(UncutGrid(grid.rows, grid.cols, grid.dead, grid.dead_links))
        for shape in self.shapes:
            for on in grids:
                turned = (shape[1], shape[0])
                ways = [(shape,)] if shape == turned else [(shape,), (turned,), (shape, turned)]
                most = [most_tiles(on, way, reaching=True)[0] for way in ways]
                for number, (way, count) in enumerate(zip(ways, most, strict=True)):
                    if count and (number < 2 or count > max(most[:2])):
                        yield _TileSite(on, shape, way, count)

    def _stage_counts(self, most: int) -> list[int]:
        layers = self.job.model.num_layers
        most = min(most, layers)
        fullest = -(-layers // most)
        return sorted({most, -(-layers // fullest)})

    def _layers(self, skeleton: TileSkeleton, zero_stage: int = 1, schedule: str = "1f1b") -> TileLayers:
        return TileLayers(self.job, self.cluster, self.framework, skeleton, zero_stage, schedule)

    def _least_s(self, skeleton: TileSkeleton) -> float:
        """A lower bound of a skeleton's plans wherever its tiles are: the work of its fullest stage."""
        layers = self._layers(skeleton)
        fullest = -(-layers.blocks()[layers.main_block.name] // skeleton.stages)
        return layers.microbatches * fullest * self._layouts_of(skeleton).block_s

    def _layouts_of(self, skeleton: TileSkeleton) -> _ZeroLayouts:
        """Layouts worth placing, searched for as many stages as fit the intact wafer."""
        full = replace(skeleton, stages=min(self.wafer.dies // skeleton.dies, self.job.model.num_layers))
        if full not in self._layouts:
            searches = [
                (zero_stage, TileSearch(layers, tile))
                for zero_stage in ZERO_STAGES
                for layers in (self._layers(full, zero_stage),)
                for tile in searched_tiles(layers, skeleton.rows, skeleton.cols)
            ]
            layouts = dict.fromkeys((zero_stage, each) for zero_stage, search in searches for each in search.layouts())
            self._layouts[full] = _ZeroLayouts(min(search.least_s for _, search in searches), tuple(layouts))
        return self._layouts[full]

    def _placed(self, skeleton: TileSkeleton) -> list[_Candidate]:
        """The fastest plans of a skeleton, with layers and recompute chosen for stages side by side."""
        if skeleton not in self._candidates:
            candidates: list[_Candidate] = []
            calibrated = calibration(self.cluster.chip, self.job.precision)
            limit = memory_limit(self.cluster.chip, self.framework)
            for schedule in SCHEDULES if skeleton.stages > 1 else ("1f1b",):
                for zero_stage, layouts in self._layouts_of(skeleton).by_zero_stage:
                    layers = self._layers(skeleton, zero_stage, schedule)
                    plan = layers.plan_of(layouts)
                    profiled = profiled_job(plan, self.job, self.cluster, layers.facts, calibrated.efficiencies)
                    placed = partition_profiled(plan, self.job, profiled, str(calibrated), limit)
                    if placed is not None:
                        candidates.append(_Candidate(placed.evaluation, profiled))
            candidates.sort(key=lambda candidate: candidate.evaluation.step_time_s)
            self._candidates[skeleton] = candidates[:FEW]
        return self._candidates[skeleton]


def _places(site: _TileSite, stages: int) -> tuple[Tile, ...]:
    """Nearby tiles for consecutive stages; empty if no placement was found."""
    edges = [(stage, stage + 1, 1.0) for stage in range(stages - 1)]
    return place_tiles(site.grid, [StageShapes(site.ways)] * stages, edges, node_limit=NODES).tiles
