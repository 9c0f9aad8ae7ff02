"""`free_plan`: the best plan of a job if every operator may be sharded in its own way, with a certificate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Any

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
from dovetail.mapping.tiles.skeletons import TileSkeleton, tile_skeletons
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tiles.tile_layouts import TileSearch, searched_tiles
from dovetail.models import Job
from dovetail.partition.partition_plan import partition_profiled
from dovetail.plans.space import Space
from dovetail.search.answer import Alternative, Answer, SimulatedPlan
from dovetail.search.certificate import Counts, certificate
from dovetail.search.plan import plan as named_plan
from dovetail.search.progress import Listener, SearchProgress
from dovetail.simulation import simulate
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import Evaluation, evaluate, profiled_job
from dovetail.step.evaluate import least_step_s as least_simulated_s
from dovetail.step.formulas import optimizer_seconds

#: Pipeline schedules to try.
SCHEDULES = ("1f1b", "zb_h1")

#: ZeRO stages to try: sharding the optimizer state costs nothing that replicating it would not.
ZERO_STAGES = (1, 3)

#: Seconds the search of named strategies may take first, and its share of a time limit.
NAMED_S, NAMED_SHARE = 30.0, 0.2

#: After this many bounds the skeleton with the lowest is placed, proven or not.
TURNS = 30

#: Plans of other skeletons an answer lists.
ALTERNATIVES = 5


def free_plan(
    job: Job,
    cluster: Cluster,
    framework: Framework | str = "wafer",
    *,
    time_limit_s: float | None = None,
    simulate_top: int = 0,
    named_s: float = NAMED_S,
    on_progress: Listener | None = None,
) -> Answer:
    """The fastest plan found with operators sharded freely on the tiles of stages, and a bound for all of them.

    We search named strategies first, for at most `named_s`, so the answer is never slower than the best of them.
    Skeletons (tile, stages, sequences of a micro-batch) follow in the order of their lower bounds. For each we take the
    cheapest layouts at several prices of memory, then partition the layers and choose what every block recomputes.
    With `simulate_top` we simulate that many of the best plans and answer with the fastest. `on_progress` is told
    how far the search of named strategies is, from then on without news; where it returns True the search ends.
    """
    framework = frameworks.load(framework) if isinstance(framework, str) else framework
    if not framework.layouts:
        raise InputError("framework", f"{framework.name} runs only named strategies", "use wafer or ideal")
    start, cpu = time.monotonic(), time.process_time()
    deadline = float("inf") if time_limit_s is None else start + time_limit_s
    if time_limit_s is not None:
        named_s = min(named_s, NAMED_SHARE * time_limit_s)
    stages = tuple(stage for stage in ZERO_STAGES if stage in framework.zero_stages_with_pipeline)
    if not stages:
        raise InputError("framework", f"{framework.name} shards no state", "use one with ZeRO 1 or 3")
    latest: list[SearchProgress] = []

    def told(progress: SearchProgress) -> bool:
        latest[:] = [progress]
        return on_progress is not None and bool(on_progress(progress))

    named = named_plan(job, cluster, framework, space=Space(partition="ends"), time_limit_s=named_s, on_progress=told)
    search = FreeSearch(
        job, cluster, framework, deadline, zero_stages=stages, stop=lambda: bool(latest) and told(latest[0])
    )
    if named.evaluation is not None:
        search.offer(TileSkeleton(0, 0, 0, 0), named.evaluation)
    search.run()
    timing = {"seconds": time.monotonic() - start, "cpu_s": time.process_time() - cpu}
    return search.answer(simulate_top, timing)


@dataclass
class FreeSearch:
    """A best-first search over skeletons of free plans."""

    job: Job
    cluster: Cluster
    framework: Framework
    deadline: float = float("inf")
    #: restricts the dims that operators may shard
    allowed: Allowed | None = None
    #: whether blocks may recompute what they would save
    recompute: bool = True
    zero_stages: tuple[int, ...] = ZERO_STAGES
    #: skeletons with more stages are skipped
    most_stages: int = 2**20
    #: the best plan of every skeleton; named strategies use an empty one
    best_of: dict[TileSkeleton, Evaluation] = field(default_factory=dict[TileSkeleton, Evaluation])
    #: lower bounds: no plan of a skeleton takes less
    bounds: dict[TileSkeleton, float] = field(default_factory=dict[TileSkeleton, float])
    #: skeletons whose layouts were searched
    seen: set[TileSkeleton] = field(default_factory=set[TileSkeleton])
    #: says whether to end before the deadline
    stop: Callable[[], bool] = lambda: False

    @property
    def late(self) -> bool:
        """Whether the search has to end."""
        return time.monotonic() >= self.deadline or self.stop()

    @property
    def best_s(self) -> float:
        """The best step time so far."""
        return min((e.step_time_s for e in self.best_of.values()), default=float("inf"))

    def offer(self, skeleton: TileSkeleton, evaluation: Evaluation) -> None:
        """Takes a plan that fits if it is the best of its skeleton."""
        if skeleton not in self.best_of or evaluation.step_time_s < self.best_of[skeleton].step_time_s:
            self.best_of[skeleton] = evaluation

    def run(self) -> None:
        """Searches skeletons until none that is left can be faster, or time runs out."""
        block_bounds: dict[tuple[int, int], BlockLowerBound] = {}
        skeletons = tile_skeletons(self.cluster, self.job.global_batch, self.job.model.num_layers)
        self.bounds = {
            skeleton: self._peak_s(skeleton) for skeleton in skeletons if skeleton.stages <= self.most_stages
        }
        # skeletons bounded by the peak of their dies only, and those bounded by their blocks
        rough = [(bound, skeleton) for skeleton, bound in self.bounds.items()]
        fine: list[tuple[float, TileSkeleton]] = []
        heapify(rough)
        turn = 0
        while not self.late:
            lowest = min(heap[0][0] for heap in (rough, fine) if heap) if rough or fine else float("inf")
            if lowest >= self.best_s * (1 - TOLERANCE):
                break
            turn += 1
            # bounds first, but from time to time a plan to beat: it prunes skeletons without their block bounds
            promising = bool(fine) and fine[0][0] < self.best_s * (1 - TOLERANCE)
            if promising and (not rough or fine[0][0] <= rough[0][0] or turn % TURNS == 0):
                _, skeleton = heappop(fine)
                try:
                    lowest = self._look_at(skeleton, block_bounds[skeleton.dies, skeleton.batch])
                except InputError:  # tables too large: the bound stays as it was
                    continue
                self.bounds[skeleton] = max(self.bounds[skeleton], lowest)
                self.seen.add(skeleton)
                continue
            bound, skeleton = heappop(rough)
            key = skeleton.dies, skeleton.batch
            if key not in block_bounds:
                block_bounds[key] = block_lower_bound(self._layers(skeleton))
            self.bounds[skeleton] = max(bound, self._bound(skeleton, block_bounds[key]))
            heappush(fine, (self.bounds[skeleton], skeleton))

    def _layers(self, skeleton: TileSkeleton, zero_stage: int = 1, schedule: str = "1f1b") -> TileLayers:
        return TileLayers(self.job, self.cluster, self.framework, skeleton, zero_stage, schedule)

    def _look_at(self, skeleton: TileSkeleton, block_bound: BlockLowerBound) -> float:
        """Places the layouts of a skeleton; returns a lower bound for all of them."""
        bound = float("inf")
        for zero_stage in self.zero_stages:
            layers = self._layers(skeleton, zero_stage)
            for tile in searched_tiles(layers, skeleton.rows, skeleton.cols):
                if self.late:
                    return self.bounds[skeleton]
                search = TileSearch(layers, tile, self.allowed)
                here = block_bound.slower(search.least_s - float(block_bound.seconds[-1]))
                tile_bound = self._bound(skeleton, here)
                if tile_bound < self.best_s:
                    self._place(skeleton, zero_stage, search.layouts())
                    ends_s = search.ends_s()
                    tile_bound = self._bound(skeleton, here, ends_s)
                    if self.recompute:
                        tile_bound = max(tile_bound, self._priced_bound(layers, tile, search, ends_s))
                bound = min(bound, tile_bound)
        return bound

    def _place(self, skeleton: TileSkeleton, zero_stage: int, layouts: tuple[TileLayouts, ...]) -> None:
        calibrated = calibration(self.cluster.chip, self.job.precision)
        limit = memory_limit(self.cluster.chip, self.framework)
        schedules = [name for name in SCHEDULES if name in self.framework.pipeline_schedules]
        for schedule in schedules if skeleton.stages > 1 else ("1f1b",):
            layers = self._layers(skeleton, zero_stage, schedule)
            for each in layouts:
                plan = layers.plan_of(each)
                profiled = profiled_job(plan, self.job, self.cluster, layers.facts, calibrated.efficiencies)
                placed = partition_profiled(plan, self.job, profiled, str(calibrated), limit, by_block=self.recompute)
                if placed is not None:
                    self.offer(skeleton, placed.evaluation)

    def _peak_s(self, skeleton: TileSkeleton) -> float:
        """A lower bound from the matrix units of all dies a skeleton uses."""
        rates = self.cluster.chip.dense_flops.published()
        flops = float(self.job.graph().training_flops(self.job.global_batch, self.job.seq_len, causal=True))
        return flops / (max(rates.values()) * skeleton.dies * skeleton.stages)

    def _bound(
        self, skeleton: TileSkeleton, block_bound: BlockLowerBound, ends_s: tuple[float, float] = (0.0, 0.0)
    ) -> float:
        """A lower bound of the pipelines of this skeleton."""
        layers = self._layers(skeleton)
        pipeline = _pipeline(layers)
        seconds = block_bound.stage_seconds(pipeline)
        return least_step_s(seconds, block_bound.forward_s, pipeline, ends_s) + self._update_s(layers)

    def _priced_bound(
        self, layers: TileLayers, tile: LayerTile, search: TileSearch, ends_s: tuple[float, float]
    ) -> float:
        """The same for layouts along the axes of a tile, including what they save and recompute."""
        pipeline, bound = _pipeline(layers), 0.0
        for seconds in priced_stage_seconds(layers, tile, search.together, pipeline, search.least_s):
            # the forward's share is unknown here, so 0 is the only safe bound
            bound = max(bound, least_step_s(seconds, 0.0, pipeline, ends_s) + self._update_s(layers))
            if bound >= self.best_s:
                break
        return bound

    def _update_s(self, layers: TileLayers) -> float:
        """A lower bound of the optimizer's time; with several stages, those done early may update meanwhile."""
        if layers.skeleton.stages > 1:
            return 0.0
        rate = layers.facts.update_bytes / float(layers.units.vector.memory_bytes_per_s)
        return float(optimizer_seconds(self.job.graph().parameters() / layers.skeleton.dies, rate))

    @cached_property
    def description(self) -> tuple[dict[str, Any], str]:
        """The space as data and as a sentence."""
        sharded = " and ".join(map(str, self.zero_stages))
        freedom = "freely" if self.allowed is None else "as allowed"
        recompute = "recompute by block" if self.recompute else "no recompute"
        fields = {"layouts": freedom, "pipeline_schedule": list(SCHEDULES), "zero_stage": list(self.zero_stages)}
        return fields, (
            f"every operator sharded {freedom} along the axes of a tile, {len(self.bounds):,} skeletons of tiles, "
            f"stages and micro-batches, schedules {' and '.join(SCHEDULES)}, ZeRO {sharded}, {recompute}"
        )

    def answer(self, simulate_top: int, timing: dict[str, float]) -> Answer:
        """The best plan, or the best simulated one, and the certificate."""
        ordered = sorted(self.best_of.items(), key=lambda item: (item[1].step_time_s, item[0]))
        bound = min(self.bounds.values(), default=float("inf"))
        unfit = {skeleton for skeleton, bound in self.bounds.items() if bound == float("inf")}
        limit_s = self.best_s * (1 - TOLERANCE)
        unseen = sum(bound < limit_s for each, bound in self.bounds.items() if each not in self.seen)
        counts = Counts(len(self.bounds), len(unfit), len(self.seen - unfit), unseen)
        if not ordered:
            proof = certificate(None, bound, self.description, counts)
            return Answer(self.job, self.cluster, self.framework, Space(), None, proof, (), timing)
        replayed = tuple(self._replayed([e for _, e in ordered[:simulate_top]]))
        best, best_s = ordered[0][1], ordered[0][1].step_time_s
        if replayed:
            best, best_s = evaluate(replayed[0].plan, self.job, self.cluster, self.framework), replayed[0].step_time_s
        proof = certificate(best_s, bound, self.description, counts, time="simulated" if replayed else "modelled")
        others = [e for _, e in ordered if e.plan != best.plan][:ALTERNATIVES]
        alternatives = tuple(Alternative(e.plan, e.step_time_s, e.step_time_s / best.step_time_s - 1) for e in others)
        return Answer(self.job, self.cluster, self.framework, Space(), best, proof, alternatives, timing, replayed)

    def _replayed(self, best: list[Evaluation]) -> Iterator[SimulatedPlan]:
        replayed: list[SimulatedPlan] = []
        for each in best:
            lower_bound_s = least_simulated_s(each.plan, self.job, self.cluster, self.framework)
            step = simulate(each.plan, self.job, self.cluster, self.framework)
            replayed.append(SimulatedPlan(each.plan, lower_bound_s, step.model_step_time_s, step.step_time_s))
        yield from sorted(replayed, key=lambda plan: plan.step_time_s)


def _pipeline(layers: TileLayers) -> TilePipeline:
    blocks = layers.blocks()[layers.main_block.name]
    return TilePipeline(layers.skeleton.stages, layers.microbatches, blocks, layers.capacity_bytes)
