"""Plans for damaged wafers: the best on what is left, and the plan of the whole wafer kept on what is left of it."""

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
from dovetail.mapping.tiles.shapes import PlanShape
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tiles.tile_layouts import TileSearch, wanted_tiles
from dovetail.mapping.tilings import StageShapes, most_tiles, place_tiles
from dovetail.models import Job
from dovetail.partition.partition_plan import partition_profiled
from dovetail.plans.derive import even_layers
from dovetail.plans.plan import Plan
from dovetail.step.evaluate import Evaluation, ProfiledJob, evaluation_of, profiled_job, step_from
from dovetail.step.facts import facts_of

Shape = tuple[int, int]

#: Rows and columns of tiles that are tried, each also turned, and sequences of a microbatch on each. A choice: what was
#: best, or nearly, of 1, 2, 3, 4 and 7 for GPT-3 175B and Llama-3.1-70B on the dies of a wafer of 8 × 7.
SHAPES: Mapping[Shape, tuple[int, ...]] = {
    (1, 1): (1,),
    (1, 2): (1, 2),
    (1, 3): (1, 3),
    (1, 4): (1, 2),
    (2, 2): (1, 2),
    (2, 3): (1, 2, 3),
    (2, 4): (2, 4),
    (2, 7): (7,),
}
#: Plans of a shape that are priced on a damaged wafer, the fastest on a whole one first.
FEW = 2
#: Nodes of a search for the places of tiles: where it ends it has a placement, if not always the nearest.
NODES = 2_000


def replanned(
    job: Job,
    wafer: Wafer,
    framework: Framework,
    shapes: Mapping[Shape, Sequence[int]] = SHAPES,
    *,
    kept: TilePlan | None = None,
) -> TilePlan | None:
    """The fastest plan found on what works of a wafer; None where none fits.

    Never slower than a plan `kept` (`not_replanned`), where one is given. See `Replanner`.
    """
    return Replanner(job, wafer, framework, shapes).best(wafer.defects, kept)


def not_replanned(plan: TilePlan, job: Job, wafer: Wafer, framework: Framework) -> TilePlan | None:
    """The plan of a whole wafer on a damaged one; None where it does not fit.

    Tiles stay where they are. One with a dead die is lost, and so is one whose dies reach each other over no way of the
    wafer; where tiles are left that do not reach each other, those count that are most. If any is lost, layers are
    dealt evenly to the others, in order, with the same layouts, schedule and microbatches. What blocks compute again
    stays as it is; where that does not fit all blocks compute everything again, a switch every framework has. Stages
    send over shortest ways around what is dead. Collectives keep their algorithms, around dead links (`slowdown`).
    """
    mesh, cluster = wafer_mesh(wafer), wafer.cluster()
    left = _left(plan.tiles, mesh)
    if not left:
        return None
    for each in _dealt(plan.plan, len(left), job.model.num_layers):
        facts = facts_of(framework, job, schedule=each.pipeline_schedule, stages=each.pipeline_parallel)
        known = calibration(cluster.chip, job.precision)
        profiled = profiled_job(each, job, cluster, facts, known.efficiencies)
        if evaluation_of(step_from(each, profiled), each, job, cluster, facts, str(known)).fits:
            return _on_tiles(each, profiled, left, mesh, replanned=False)
    return None


def _left(tiles: Sequence[Tile], mesh: DieMesh) -> tuple[Tile, ...]:
    """Tiles of live dies that reach each other: the largest set of them."""
    parts = [tuple(t for t in tiles if set(dies_of(t)) <= set(part.dies)) for part in mesh.components]
    return max(parts, key=len, default=())


def _dealt(plan: Plan, stages: int, num_layers: int) -> Iterator[Plan]:
    """The plan on so many stages: as it is, then with everything computed again."""
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
    """A wafer of whose tiles none may have a dead link inside."""

    def is_connected(self, tile: Tile) -> bool:
        """Whether a tile has all its links."""
        dies = set(tile.dies()) - self.dead
        uncut = not any(one in dies and other in dies for one, other in self.dead_links)
        return uncut and WaferGrid.is_connected(self, tile)


@dataclass(frozen=True, slots=True)
class _Room:
    """Where tiles of some shapes may lie, and how many there is room for."""

    grid: WaferGrid
    #: of the plan's layouts
    shape: Shape
    #: of tiles: the same, turned, or either
    ways: tuple[Shape, ...]
    most: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A plan for some shape, placed on stages side by side."""

    evaluation: Evaluation
    profiled: ProfiledJob


@dataclass(frozen=True, slots=True)
class _Layouts:
    """ZeRO stages and layouts on a tile, and what a block takes at least under any."""

    block_s: float
    found: tuple[tuple[int, TileLayouts], ...]


@dataclass
class Replanner:
    """The best plans of a job on a wafer with one map of defects after another.

    Stages lie on equal tiles, some of them turned where more find room so. Of each shape there are as many stages as
    disjoint live tiles that reach each other (`most_tiles`, exact), or the fewest with no more blocks on the fullest.
    Layouts are the fastest at every price of memory in a pipeline that fills the whole wafer; layers and recompute are
    placed for the stages there are. Where tiles lie, `place_tiles` says; with dead links it is asked for
    tiles that have all their links too. All times are the model's: pipelines of these stages with the hops they
    have and the collectives of their tiles (`tiled_step_s`).
    """

    job: Job
    wafer: Wafer
    framework: Framework
    #: rows and columns of tiles, and the sequences of a microbatch; those that do not divide a step's are left out
    shapes: Mapping[Shape, Sequence[int]] = field(default_factory=lambda: SHAPES)
    # what does not depend on defects
    _layouts: dict[PlanShape, _Layouts] = field(default_factory=dict[PlanShape, "_Layouts"])
    _candidates: dict[PlanShape, list[_Candidate]] = field(default_factory=dict[PlanShape, list[_Candidate]])

    @property
    def cluster(self) -> Cluster:
        """The dies of the whole wafer."""
        return self.wafer.cluster()

    def best(self, defects: DefectMap, kept: TilePlan | None = None) -> TilePlan | None:
        """The fastest plan found for these defects, or the one kept; None where none fits."""
        damaged = self.wafer.with_defects(defects)
        mesh, found = wafer_mesh(damaged), kept
        places: dict[tuple[_Room, int], tuple[Tile, ...]] = {}
        waiting = [
            (self._least_s(shape), shape, room)
            for room in self._rooms(wafer_grid(damaged))
            for stages in self._stage_counts(room.most)
            for shape in (PlanShape(*room.shape, stages, batch) for batch in self.shapes[room.shape])
            if self.job.global_batch % shape.batch == 0
        ]
        for least_s, shape, room in sorted(waiting, key=lambda each: each[:2]):
            if found is not None and least_s >= found.step_time_s:
                break
            for candidate in self._placed(shape):
                if found is not None and candidate.evaluation.step_time_s >= found.step_time_s:
                    break
                if (room, shape.stages) not in places:
                    places[room, shape.stages] = _places(room, shape.stages)
                tiles = places[room, shape.stages]
                made = None
                if tiles:
                    made = _on_tiles(candidate.evaluation.plan, candidate.profiled, tiles, mesh, replanned=True)
                if made is not None and (found is None or made.step_time_s < found.step_time_s):
                    found = made
        return found

    def _rooms(self, grid: WaferGrid) -> Iterator[_Room]:
        """Shapes, turned ones and both, where there is room for more that way; with dead links, of whole tiles too."""
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
                        yield _Room(on, shape, way, count)

    def _stage_counts(self, most: int) -> list[int]:
        layers = self.job.model.num_layers
        most = min(most, layers)
        fullest = -(-layers // most)
        return sorted({most, -(-layers // fullest)})

    def _layers(self, shape: PlanShape, zero_stage: int = 1, schedule: str = "1f1b") -> TileLayers:
        return TileLayers(self.job, self.cluster, self.framework, shape, zero_stage, schedule)

    def _least_s(self, shape: PlanShape) -> float:
        """What no plan of a shape falls below, wherever its tiles lie: the work of its fullest stage."""
        layers = self._layers(shape)
        fullest = -(-layers.blocks()[layers.main_block.name] // shape.stages)
        return layers.microbatches * fullest * self._layouts_of(shape).block_s

    def _layouts_of(self, shape: PlanShape) -> _Layouts:
        """Layouts worth placing, found for as many stages as the whole wafer has dies for."""
        full = replace(shape, stages=min(self.wafer.dies // shape.dies, self.job.model.num_layers))
        if full not in self._layouts:
            searches = [
                (zero_stage, TileSearch(layers, tile))
                for zero_stage in ZERO_STAGES
                for layers in (self._layers(full, zero_stage),)
                for tile in wanted_tiles(layers, shape.rows, shape.cols)
            ]
            found = dict.fromkeys((zero_stage, each) for zero_stage, search in searches for each in search.layouts())
            self._layouts[full] = _Layouts(min(search.least_s for _, search in searches), tuple(found))
        return self._layouts[full]

    def _placed(self, shape: PlanShape) -> list[_Candidate]:
        """The fastest plans of a shape, layers and recompute placed on stages side by side."""
        if shape not in self._candidates:
            found: list[_Candidate] = []
            known = calibration(self.cluster.chip, self.job.precision)
            for schedule in SCHEDULES if shape.stages > 1 else ("1f1b",):
                for zero_stage, layouts in self._layouts_of(shape).found:
                    layers = self._layers(shape, zero_stage, schedule)
                    plan = layers.plan_of(layouts)
                    profiled = profiled_job(plan, self.job, self.cluster, layers.facts, known.efficiencies)
                    placed = partition_profiled(plan, self.job, profiled, str(known))
                    if placed is not None:
                        found.append(_Candidate(placed.evaluation, profiled))
            found.sort(key=lambda candidate: candidate.evaluation.step_time_s)
            self._candidates[shape] = found[:FEW]
        return self._candidates[shape]


def _places(room: _Room, stages: int) -> tuple[Tile, ...]:
    """Tiles for stages that follow each other, near each other; none where none was found."""
    edges = [(stage, stage + 1, 1.0) for stage in range(stages - 1)]
    return place_tiles(room.grid, [StageShapes(room.ways)] * stages, edges, node_limit=NODES).tiles
