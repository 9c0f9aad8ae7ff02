"""`free_plan`: the best plan of a job when every operator may be cut in its own way, with what is proven of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush

from dovetail import frameworks
from dovetail.arrays import TOLERANCE
from dovetail.cost.calibration import calibration
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.layout.encoding import TileLayouts
from dovetail.mapping.layouts.options import Allowed
from dovetail.mapping.layouts.tile import LayerTile
from dovetail.mapping.tiles.block_lower_bound import block_lower_bound
from dovetail.mapping.tiles.least_step import BlockLowerBound, TilePipeline, least_step_s
from dovetail.mapping.tiles.priced_lower_bound import priced_stage_seconds
from dovetail.mapping.tiles.shapes import PlanShape, plan_shapes
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tiles.tile_layouts import TileSearch, wanted_tiles
from dovetail.models import Job
from dovetail.partition.partition_plan import partition_profiled
from dovetail.plans.space import Space
from dovetail.search.answer import Alternative, Answer, SimulatedPlan
from dovetail.search.certificate import Counts, certificate
from dovetail.search.plan import plan as named_plan
from dovetail.simulation import simulate
from dovetail.step.evaluate import Evaluation, evaluate, profiled_job
from dovetail.step.evaluate import least_step_s as least_simulated_s
from dovetail.step.formulas import optimizer_seconds

#: Schedules that are tried.
SCHEDULES = ("1f1b", "zb_h1")

#: ZeRO stages that are tried: the optimizer's state in shards costs nothing that whole state would not.
ZERO_STAGES = (1, 3)

#: What the search of named strategies may take first, and of a time limit.
NAMED_S, NAMED_SHARE = 30.0, 0.2

#: After so many bounds the shape with the least of them is placed, proven or not.
TURNS = 30

#: Plans of other shapes that an answer lists.
ALTERNATIVES = 5


def free_plan(
    job: Job,
    cluster: Cluster,
    framework: Framework | str = "wafer",
    *,
    time_limit_s: float | None = None,
    simulate_top: int = 0,
    named_s: float = NAMED_S,
) -> Answer:
    """The fastest plan found whose operators are cut freely on the tiles of stages, and a bound for all of them.

    Named strategies are searched first, for `named_s` at most: the answer is never slower than the best of them.
    Shapes (tile, stages, sequences of a microbatch) follow in the order of their bounds. Of each the layouts of least
    cost at several prices of memory are placed: layers on stages, and what every block computes again. With
    `simulate_top` as many of the best are replayed and the fastest of them is the answer.
    """
    framework = frameworks.load(framework) if isinstance(framework, str) else framework
    if not framework.layouts:
        raise InputError("framework", f"{framework.name} runs named strategies alone", "use wafer or ideal")
    start, cpu = time.monotonic(), time.process_time()
    deadline = float("inf") if time_limit_s is None else start + time_limit_s
    if time_limit_s is not None:
        named_s = min(named_s, NAMED_SHARE * time_limit_s)
    stages = tuple(stage for stage in ZERO_STAGES if stage in framework.zero_stages_with_pipeline)
    if not stages:
        raise InputError("framework", f"{framework.name} shards no state", "use one with ZeRO 1 or 3")
    named = named_plan(job, cluster, framework, space=Space(partition="ends"), time_limit_s=named_s)
    search = FreeSearch(job, cluster, framework, deadline, zero_stages=stages)
    if named.evaluation is not None:
        search.offer(PlanShape(0, 0, 0, 0), named.evaluation)
    search.run()
    timing = {"seconds": time.monotonic() - start, "cpu_s": time.process_time() - cpu}
    return search.answer(simulate_top, timing)


@dataclass
class FreeSearch:
    """Shapes of free plans, looked at in the order of their bounds."""

    job: Job
    cluster: Cluster
    framework: Framework
    deadline: float = float("inf")
    #: narrows what operators may be cut along, and with it the space
    allowed: Allowed | None = None
    #: whether blocks may compute again what they keep
    recompute: bool = True
    zero_stages: tuple[int, ...] = ZERO_STAGES
    #: more are not tried
    most_stages: int = 2**20
    #: the best plan of every shape; that of named strategies has none
    found: dict[PlanShape, Evaluation] = field(default_factory=dict[PlanShape, Evaluation])
    #: what is known of shapes: no plan of them takes less
    bounds: dict[PlanShape, float] = field(default_factory=dict[PlanShape, float])
    #: shapes that were looked at
    seen: set[PlanShape] = field(default_factory=set[PlanShape])

    @property
    def best_s(self) -> float:
        """The best step so far."""
        return min((e.step_time_s for e in self.found.values()), default=float("inf"))

    def offer(self, shape: PlanShape, evaluation: Evaluation) -> None:
        """A plan that fits."""
        if shape not in self.found or evaluation.step_time_s < self.found[shape].step_time_s:
            self.found[shape] = evaluation

    def run(self) -> None:
        """Looks at shapes until none that is left can be faster, or time is out."""
        floors: dict[tuple[int, int], BlockLowerBound] = {}
        shapes = plan_shapes(self.cluster, self.job.global_batch, self.job.model.num_layers)
        self.bounds = {shape: self._peak_s(shape) for shape in shapes if shape.stages <= self.most_stages}
        # shapes of which the peak of their dies is known alone, and those with the floor of a block
        rough = [(bound, shape) for shape, bound in self.bounds.items()]
        fine: list[tuple[float, PlanShape]] = []
        heapify(rough)
        turn = 0
        while time.monotonic() < self.deadline:
            least = min(heap[0][0] for heap in (rough, fine) if heap) if rough or fine else float("inf")
            if least >= self.best_s * (1 - TOLERANCE):
                break
            turn += 1
            # bounds first, but a plan to beat from time to time: it settles shapes without their floors
            wanted = bool(fine) and fine[0][0] < self.best_s * (1 - TOLERANCE)
            if wanted and (not rough or fine[0][0] <= rough[0][0] or turn % TURNS == 0):
                _, shape = heappop(fine)
                try:
                    least = self._look_at(shape, floors[shape.dies, shape.batch])
                except InputError:  # tables too large: what was known of the shape stays
                    continue
                self.bounds[shape] = max(self.bounds[shape], least)
                self.seen.add(shape)
                continue
            bound, shape = heappop(rough)
            key = shape.dies, shape.batch
            if key not in floors:
                floors[key] = block_lower_bound(self._layers(shape))
            self.bounds[shape] = max(bound, self._bound(shape, floors[key]))
            heappush(fine, (self.bounds[shape], shape))

    def _layers(self, shape: PlanShape, zero_stage: int = 1, schedule: str = "1f1b") -> TileLayers:
        return TileLayers(self.job, self.cluster, self.framework, shape, zero_stage, schedule)

    def _look_at(self, shape: PlanShape, floor: BlockLowerBound) -> float:
        """Places the layouts of a shape; the least any of them could take."""
        bound = float("inf")
        for zero_stage in self.zero_stages:
            layers = self._layers(shape, zero_stage)
            for tile in wanted_tiles(layers, shape.rows, shape.cols):
                if time.monotonic() >= self.deadline:
                    return self.bounds[shape]
                search = TileSearch(layers, tile, self.allowed)
                here = floor.slower(search.least_s - float(floor.seconds[-1]))
                own = self._bound(shape, here)
                if own < self.best_s:
                    self._place(shape, zero_stage, search.layouts())
                    ends_s = search.ends_s()
                    own = self._bound(shape, here, ends_s)
                    if self.recompute:
                        own = max(own, self._priced_bound(layers, tile, search, ends_s))
                bound = min(bound, own)
        return bound

    def _place(self, shape: PlanShape, zero_stage: int, layouts: tuple[TileLayouts, ...]) -> None:
        known = calibration(self.cluster.chip, self.job.precision)
        known_schedules = [name for name in SCHEDULES if name in self.framework.pipeline_schedules]
        for schedule in known_schedules if shape.stages > 1 else ("1f1b",):
            layers = self._layers(shape, zero_stage, schedule)
            for each in layouts:
                plan = layers.plan_of(each)
                profiled = profiled_job(plan, self.job, self.cluster, layers.facts, known.efficiencies)
                placed = partition_profiled(plan, self.job, profiled, str(known), by_block=self.recompute)
                if placed is not None:
                    self.offer(shape, placed.evaluation)

    def _peak_s(self, shape: PlanShape) -> float:
        """What the matrix units of all dies a shape uses need at least."""
        rates = self.cluster.chip.dense_flops.published()
        flops = float(self.job.graph().training_flops(self.job.global_batch, self.job.seq_len, causal=True))
        return flops / (max(rates.values()) * shape.dies * shape.stages)

    def _bound(self, shape: PlanShape, floor: BlockLowerBound, ends_s: tuple[float, float] = (0.0, 0.0)) -> float:
        """What a pipeline of this shape takes at least."""
        layers = self._layers(shape)
        pipeline = _pipeline(layers)
        seconds = floor.stage_seconds(pipeline)
        return least_step_s(seconds, floor.forward_s, pipeline, ends_s) + self._update_s(layers)

    def _priced_bound(
        self, layers: TileLayers, tile: LayerTile, search: TileSearch, ends_s: tuple[float, float]
    ) -> float:
        """The same, of layouts along the axes of a tile, with what they keep and compute again."""
        pipeline, bound = _pipeline(layers), 0.0
        for seconds in priced_stage_seconds(layers, tile, search.together, pipeline, search.least_s):
            # of the forward nothing is known here but that it takes some time
            bound = max(bound, least_step_s(seconds, 0.0, pipeline, ends_s) + self._update_s(layers))
            if bound >= self.best_s:
                break
        return bound

    def _update_s(self, layers: TileLayers) -> float:
        """What the optimizer takes at least; of several stages those done early may update beside the others."""
        if layers.shape.stages > 1:
            return 0.0
        rate = layers.facts.update_bytes / float(layers.units.vector.memory_bytes_per_s)
        return float(optimizer_seconds(self.job.graph().parameters() / layers.shape.dies, rate))

    @cached_property
    def words(self) -> str:
        """The space in a sentence."""
        sharded = " and ".join(map(str, self.zero_stages))
        cut = "freely" if self.allowed is None else "as allowed"
        again = "recompute by block" if self.recompute else "no recompute"
        return (
            f"every operator cut {cut} along the axes of a tile, {len(self.bounds):,} shapes of tiles, stages and "
            f"microbatches, schedules {' and '.join(SCHEDULES)}, ZeRO {sharded}, {again}"
        )

    def answer(self, simulate_top: int, timing: dict[str, float]) -> Answer:
        """The best plan, or the best replayed one, and the certificate."""
        ordered = sorted(self.found.items(), key=lambda item: (item[1].step_time_s, item[0]))
        bound = min(self.bounds.values(), default=float("inf"))
        unseen = len(self.bounds) - len(self.seen)
        infeasible = sum(bound == float("inf") for bound in self.bounds.values())
        counts = Counts(len(self.bounds), infeasible, len(self.seen))
        if not ordered:
            proof = certificate(None, bound, self.words, counts, pruned=unseen)
            return Answer(self.job, self.cluster, self.framework, Space(), None, proof, (), timing)
        replayed = tuple(self._replayed([e for _, e in ordered[:simulate_top]]))
        best, best_s = ordered[0][1], ordered[0][1].step_time_s
        if replayed:
            best, best_s = evaluate(replayed[0].plan, self.job, self.cluster, self.framework), replayed[0].step_time_s
        proof = certificate(
            best_s, bound, self.words, counts, pruned=unseen, time="simulated" if replayed else "modelled"
        )
        others = [e for _, e in ordered if e.plan != best.plan][:ALTERNATIVES]
        alternatives = tuple(Alternative(e.plan, e.step_time_s, e.step_time_s / best.step_time_s - 1) for e in others)
        return Answer(self.job, self.cluster, self.framework, Space(), best, proof, alternatives, timing, replayed)

    def _replayed(self, best: list[Evaluation]) -> Iterator[SimulatedPlan]:
        found: list[SimulatedPlan] = []
        for each in best:
            least = least_simulated_s(each.plan, self.job, self.cluster, self.framework)
            step = simulate(each.plan, self.job, self.cluster, self.framework)
            found.append(SimulatedPlan(each.plan, least, step.model_step_time_s, step.step_time_s))
        yield from sorted(found, key=lambda plan: plan.step_time_s)


def _pipeline(layers: TileLayers) -> TilePipeline:
    blocks = layers.blocks()[layers.main_block.name]
    return TilePipeline(layers.shape.stages, layers.microbatches, blocks, layers.capacity_bytes)
