"""Every plan of tiny jobs on tiny wafers, tried one by one: the joint optimum of wafer and mapping by brute force.

A family is a job, what its layouts may shard, and some wafers, whole and damaged. An instance of it has six of these
wafers or more with memory and stores of their own, drawn around what plans need, so that memory decides. Seconds of a
step do not depend on memory: the plans of a family are priced once.

All plans are: tile × stages × micro-batch × store × ZeRO stage × schedule × layouts × disjoint live tiles in any order,
turned or not (one of those with the same ways between stages and the same dead links inside) × layers of every stage ×
loans. Nothing is recomputed. A stage lends or borrows, not both, and borrows what it lacks; lenders are filled one
after another in every order. With one stage that lacks memory or one that lends, as up to three stages have, no other
loans take less: seconds grow with the bytes of each, and each has a latency.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from itertools import permutations, product
from typing import Any

import pytest

from dovetail import frameworks, hardware
from dovetail.documents import validate
from dovetail.errors import InputError
from dovetail.graph import Operator
from dovetail.hardware import Cluster, DefectMap, Store
from dovetail.hardware.defects import Position, grid_links
from dovetail.layout.encoding import TileLayouts
from dovetail.mapping.tiles import partitioned, sites
from dovetail.mapping.tiles.sites import every_place
from dovetail.mapping.tiles.skeletons import TileSkeleton
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tiles.tile_layouts import TileSearch, searched_tiles
from dovetail.models import Job, Model
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import check_wafer, damage, handover
from dovetail.plans.wafer_part import STORE_CHOICES, Loan, StageTile, Stored, WaferPart
from dovetail.plans.wafer_tiles import wafer_shape
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation

FRAMEWORK = frameworks.load("wafer")
SCHEDULES = ("1f1b", "zb_h1")
#: Wafers of a family.
WAFERS = 4
#: What a wafer has while its plans are priced.
PLENTY = 1e15
#: What operators of the tiny models may shard: sets with few layouts.
SHARDS = (
    (("logits", "vocab"), ("loss", "vocab")),
    (("logits", "vocab"), ("loss", "vocab")),
    (("mlp.up", "ffn"), ("mlp.activation", "ffn"), ("mlp.down", "ffn")),
    (("mlp.up", "batch"),),
    (("embedded", "batch"), ("mlp.down", "ffn")),
)

Peaks = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """A plan without loans, its seconds, and the bytes it takes: on a die of every stage, and in the store."""

    seconds: float
    number: int
    plan: Plan
    peaks: Peaks
    stored_bytes: float


class JointFamily:
    """A job, what its layouts may shard, and wafers without limits of memory."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)  # noqa: S311
        self.seed = seed
        layers = 3 if seed % 4 == 3 else 2
        model = _model(draw, f"tiny-{seed}", layers)
        self.job = Job(model, seq_len=draw.choice([875, 1225]), global_batch=draw.choice([2, 2, 3]))
        self.shards = frozenset(draw.choice(SHARDS))
        self.zero_stages = draw.choice([(1,), (3,), (1, 3)])
        self.wafers = tuple(self._wafer(draw, number) for number in range(WAFERS))
        self._places: dict[tuple[str, int, int, int], tuple[tuple[StageTile, ...], ...]] = {}

    def allows(self, operator: Operator, dim: str) -> bool:
        """Whether a layout may shard a dim of an operator."""
        return (operator.name, dim) in self.shards

    def _wafer(self, draw: random.Random, number: int) -> Cluster:
        """Two whole wafers, one with dead dies or links, and one with a store that may have a dead die."""
        shape = [(2, 2), (2, 3), draw.choice([(2, 2), (2, 3)]), (2, 2)][number]
        base = hardware.wafer("watos-like")
        speed = draw.choice([1.0, 4.0] if number > 1 else [0.25, 0.5, 1.0, 2.0, 4.0])
        flops = {name: speed * rate for name, rate in base.die.dense_flops.published().items()}
        die = replace(
            base.die,
            clock_hz=speed * base.die.clock_hz,
            dense_flops=replace(base.die.dense_flops, **flops),
            hbm_bytes_per_s=speed * base.die.hbm_bytes_per_s,
            hbm_bytes=PLENTY,
        )
        links = base.d2d_bytes_per_s * draw.choice([0.002, 0.01, 0.1, 1.0])
        name = f"joint-{self.seed}-{number}"
        wafer = replace(base, name=name, rows=shape[0], cols=shape[1], die=die, d2d_bytes_per_s=links)
        dead, cut = draw.choice([(0, 0), (1, 0)] if number == 3 else [(1, 0), (0, 1), (0, 2), (1, 1)])
        if number < 2:
            dead = cut = 0
        dies = tuple(sorted(draw.sample(list(product(range(shape[0]), range(shape[1]))), dead)))
        gone = tuple(draw.sample(grid_links(*shape), cut))
        store = Store(PLENTY, draw.choice([1e10, 1e12, 1e13])) if number == 3 else None
        defects = DefectMap(dies, gone)
        return replace(wafer.cluster(), store=store, defects=(defects,) if defects != DefectMap() else ())

    @cached_property
    def plans(self) -> tuple[tuple[PricedPlan, ...], ...]:
        """All plans without loans by wafer, the fastest first."""
        return tuple(tuple(sorted(self._priced(each), key=lambda p: (p.seconds, p.number))) for each in self.wafers)

    def _priced(self, cluster: Cluster) -> Iterator[PricedPlan]:
        for number, plan in enumerate(self.every_plan(cluster)):
            found = self.evaluated(plan, cluster)
            yield PricedPlan(found.step_time_s, number, plan, peaks_of(found), found.stored_bytes)

    def evaluated(self, plan: Plan, cluster: Cluster) -> Evaluation:
        """What a plan takes."""
        return evaluate(plan, self.job, cluster, FRAMEWORK, energy=False)

    def every_plan(self, cluster: Cluster) -> Iterator[Plan]:
        """All plans without loans."""
        batches = [n for n in range(1, self.job.global_batch + 1) if self.job.global_batch % n == 0]
        stores = STORE_CHOICES if cluster.store is not None else ((),)
        height, width = wafer_shape(cluster)
        for rows, cols, batch in product(range(1, height + 1), range(1, width + 1), batches):
            for zero_stage, store in product(self.zero_stages, stores):
                if zero_stage == 3 or "weights" not in store:
                    for layouts in self._layouts(rows, cols, batch, zero_stage):
                        yield from self._on_stages(cluster, layouts, batch, zero_stage, store)

    @cache  # noqa: B019
    def _layouts(self, rows: int, cols: int, batch: int, zero_stage: int) -> tuple[TileLayouts, ...]:
        skeleton = TileSkeleton(rows, cols, 1, batch)
        layers = TileLayers(self.job, self.wafers[1], FRAMEWORK, skeleton, zero_stage)
        found: list[TileLayouts] = []
        for tile in searched_tiles(layers, rows, cols):
            few = TileSearch(layers, tile, self.allows).every_layout(4096)
            assert few is not None
            found += few
        return tuple(dict.fromkeys(found))

    def _on_stages(
        self, cluster: Cluster, layouts: TileLayouts, batch: int, zero_stage: int, store: tuple[Stored, ...]
    ) -> Iterator[Plan]:
        layers = self.job.model.num_layers
        for stages in range(1, layers + 1):
            ways = _partitions(stages, layers)
            part = WaferPart(store=store, defects=cluster.defects)
            plan = _plan(self.job, layouts, part, batch, zero_stage, ways[0])
            size = cluster.name, layouts.rows, layouts.cols, stages
            if size not in self._places:
                self._places[size] = tuple(each[0] for each in all_places(plan, cluster).values())
            for tiles, schedule in product(self._places[size], SCHEDULES if stages > 1 else SCHEDULES[:1]):
                placed = replace(plan, wafer=replace(part, tiles=tiles), pipeline_schedule=schedule)
                yield from (replace(placed, layers_per_stage=counts) for counts in ways)


@dataclass(frozen=True, slots=True)
class JointInstance:
    """Wafers with memory and stores, by the number of the family's wafer; and whether stages lend."""

    family: JointFamily
    wafers: tuple[tuple[int, Cluster], ...]
    lends: bool


def joint_instance(family: JointFamily, seed: int) -> JointInstance:
    """Six wafers whose memory is near what some plans need: of any of them, or of the smallest; less if stages lend."""
    draw = random.Random(seed)  # noqa: S311
    lends = draw.random() < 0.35
    tight, wafers = lends or draw.random() < 0.4, list[tuple[int, Cluster]]()
    for number in [*range(WAFERS), *(draw.randrange(WAFERS) for _ in range(6 - WAFERS))]:
        plans, cluster = family.plans[number], family.wafers[number]
        needed = sorted(max(each.peaks) for each in plans)
        most = needed[draw.randrange(len(needed)) // (6 if tight else 1)]
        chip = replace(cluster.chip, hbm_bytes=most * draw.uniform(0.75, 1.05), hbm_usable_share=1.0)
        store = cluster.store
        if store is not None:
            held = max(each.stored_bytes for each in plans)
            store = replace(store, bytes=held * draw.choice([0.3, 0.6, 0.9, 2.0]))
        wafers.append((number, replace(cluster, chip=chip, store=store)))
    return JointInstance(family, tuple(wafers), lends)


@dataclass(frozen=True, slots=True)
class JointOptimum:
    """The best plan of a wafer or of several."""

    seconds: float
    plan: Plan | None


def best_on(instance: JointInstance, number: int, cluster: Cluster) -> JointOptimum:
    """The best of all plans on one wafer, each tried unless it is slower without loans than one that fits."""
    family, best = instance.family, JointOptimum(float("inf"), None)
    limit = cluster.chip.usable_bytes
    held = 0.0 if cluster.store is None else cluster.store.bytes
    for each in family.plans[number]:
        if each.seconds >= best.seconds:
            break
        if each.stored_bytes > held:
            continue
        if max(each.peaks) <= limit:
            return JointOptimum(each.seconds, each.plan)
        if instance.lends:
            for plan in _with_loans(each, limit):
                found = family.evaluated(plan, cluster)
                if found.fits and found.step_time_s < best.seconds:
                    best = JointOptimum(found.step_time_s, plan)
    return best


def _with_loans(priced: PricedPlan, limit: float) -> Iterator[Plan]:
    """The plan with what its stages lack held by others."""
    part = priced.plan.wafer
    assert part is not None
    lacking = [stage for stage, peak in enumerate(priced.peaks) if peak > limit]
    lenders = [stage for stage, peak in enumerate(priced.peaks) if peak < limit]
    missing = sum(priced.peaks[stage] - limit for stage in lacking)
    if "activations" in part.store or missing > sum(limit - priced.peaks[stage] for stage in lenders):
        return
    tried: set[tuple[Loan, ...]] = set()
    for order in permutations(product(lacking, lenders)):
        # rounding must leave nothing over
        needs = {stage: (priced.peaks[stage] - limit) * (1 + 1e-9) for stage in lacking}
        spares = {stage: limit - priced.peaks[stage] for stage in lenders}
        loans: list[Loan] = []
        for stage, lender in order:
            amount = min(needs[stage], spares[lender])
            needs[stage] -= amount
            spares[lender] -= amount
            loans += [Loan(stage, lender, amount)] if amount > 0 else []
        way = tuple(sorted(loans))
        if way not in tried:
            tried.add(way)
            yield replace(priced.plan, wafer=replace(part, loans=way))


def peaks_of(found: Evaluation) -> Peaks:
    """Bytes of a die of every stage."""
    return tuple(sum(parts.values()) for parts in found.memory_by_stage)


def _model(draw: random.Random, name: str, layers: int) -> Model:
    """Blocks of a feed-forward alone; two or three dies divide few of its dims."""
    block = {"feed_forward": {"kind": "dense", "size": draw.choice([4608, 7680]), "activation": "gelu_tanh"}}
    document: dict[str, Any] = {
        "name": name,
        "hidden": draw.choice([1225, 1225, 1715]),
        "vocab": draw.choice([5000, 15360]),
        "max_seq_len": 2048,
        "blocks": {"layer": {**block, "norm": "layer"}},
        "layers": [{"blocks": ["layer"], "repeat": layers}],
        "head": {"tied": False, "norm": "layer"},
    }
    return validate(Model, document, name)


def _plan(
    job: Job, layouts: TileLayouts, part: WaferPart, batch: int, zero_stage: int, counts: tuple[int, ...]
) -> Plan:
    return Plan(
        data_parallel=1,
        tensor_parallel=layouts.chips,
        pipeline_parallel=len(counts),
        expert_tensor_parallel=layouts.chips,
        zero_stage=zero_stage,
        zero_group=1,
        micro_batch=batch,
        num_microbatches=job.global_batch // batch,
        pipeline_schedule=SCHEDULES[0],
        layers_per_stage=counts,
        layouts=layouts,
        wafer=part,
    )


def _partitions(stages: int, layers: int) -> list[tuple[int, ...]]:
    """Layers by stage: only embedding or head may be alone."""
    every = product(range(layers + 1), repeat=stages)
    return [each for each in every if sum(each) == layers and all(each[1:-1])]


def all_places(plan: Plan, cluster: Cluster) -> dict[object, list[tuple[StageTile, ...]]]:
    """Disjoint tiles for the stages of a plan that the rules of plans allow, by what a step can tell of them."""
    assert plan.layouts is not None
    part, stages = WaferPart(defects=cluster.defects), plan.pipeline_parallel
    tiles = _live_tiles(wafer_shape(cluster), (plan.layouts.rows, plan.layouts.cols), part.at(0))
    alike: dict[object, list[tuple[StageTile, ...]]] = {}
    for placed in permutations(tiles, stages):
        dies = [die for tile in placed for die in tile.dies()]
        if len(set(dies)) < len(dies):
            continue
        plan = replace(plan, wafer=replace(part, tiles=placed))
        try:
            check_wafer(plan, cluster)
        except InputError:
            continue
        ways = [handover(plan, cluster, a, b) for a, b in permutations(range(stages), 2)]
        key = (*ways, *(damage(plan, cluster, stage) for stage in range(stages)))
        alike.setdefault(key, []).append(placed)
    return alike


def _live_tiles(grid: tuple[int, int], shape: tuple[int, int], defects: DefectMap) -> list[StageTile]:
    """All tiles whose dies live and reach each other over their own links."""
    return [
        tile
        for rows, cols in dict.fromkeys((shape, shape[::-1]))
        for row, col in product(range(grid[0] - rows + 1), range(grid[1] - cols + 1))
        for tile in [StageTile(0, row, col, rows, cols)]
        if not set(tile.dies()) & set(defects.dead_dies) and _is_joined(set(tile.dies()), defects)
    ]


def _is_joined(dies: set[Position], defects: DefectMap) -> bool:
    start = min(dies)
    reached, waiting = {start}, [start]
    while waiting:
        row, col = waiting.pop()
        for other in ((row, col + 1), (row, col - 1), (row + 1, col), (row - 1, col)):
            link = (min((row, col), other), max((row, col), other))
            if other in dies - reached and link not in defects.dead_links:
                reached.add(other)
                waiting.append(other)
    return reached == dies


@contextmanager
def priced_once() -> Iterator[None]:
    """Lists and prices equal layers once, and equal plans on wafers that differ in memory alone: of the same name."""
    # the package has a function of this name
    evaluation = import_module("dovetail.step.evaluate")
    profile_job, profiled_job, step_from = evaluation.profile_job, evaluation.profiled_job, evaluation.step_from
    evaluation_of = evaluation.evaluation_of
    every_layout, problem = TileSearch.every_layout, TileSearch._problem
    seen: dict[object, Any] = {}

    def once(key: object, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if key not in seen:
            seen[key] = function(*args, **options)
        return seen[key]

    def profile(arrangements: Any, job: Job, chip: Any, pricing: Any, rates: Any = None, **options: Any) -> Any:
        key = pickle.dumps((job.model.name, arrangements, chip, pricing, options))
        return once(key, profile_job, arrangements, job, chip, pricing, rates, **options)

    def profiled(plan: Plan, job: Job, cluster: Cluster, *args: Any, **options: Any) -> Any:
        assert plan.wafer is not None
        part = replace(plan.wafer, loans=())
        key = "profiled", cluster.name, replace(plan, layers_per_stage=(), wafer=part)
        return once(key, profiled_job, plan, job, cluster, *args, **options)

    def step(plan: Plan, job: Any) -> Any:
        key = "step", job.cluster.name, plan
        return step_from(plan, job) if plan.wafer and plan.wafer.loans else once(key, step_from, plan, job)

    def judged(step: Any, plan: Plan, job: Job, cluster: Cluster, *args: Any, **options: Any) -> Any:
        if plan.wafer and plan.wafer.loans:
            return evaluation_of(step, plan, job, cluster, *args, **options)
        key = "judged", cluster.name, plan
        found = once(key, evaluation_of, step, plan, job, cluster, *args, **options)
        usable, stored = cluster.chip.usable_bytes, 0.0 if cluster.store is None else cluster.store.bytes
        return replace(found, usable_bytes=usable, fits=found.peak_bytes <= usable and found.stored_bytes <= stored)

    def listed(search: Any, most: int) -> Any:
        layers = search._layers
        key = "layouts", layers.job.model.name, layers.skeleton.batch, layers.zero_stage, search._tile
        return once(key, every_layout, search, most)

    def built(search: Any, graph: Any, stream: Any) -> Any:
        layers, lies = search._layers, tuple(sorted(stream.items())) if stream is not None else None
        key = layers.cluster.name, layers.skeleton, layers.zero_stage, search._tile, graph.name, lies
        return once(key, problem, search, graph, stream)

    def everywhere(plan: Plan, cluster: Cluster, *, lends: bool) -> Any:
        assert plan.layouts is not None
        size = plan.layouts.rows, plan.layouts.cols, plan.pipeline_parallel
        return once(("places", cluster.name, size, lends), every_place, plan, cluster, lends=lends)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sites, "every_place", everywhere)
        patch.setattr(evaluation, "profile_job", profile)
        for module in (evaluation, partitioned):
            patch.setattr(module, "profiled_job", profiled)
            patch.setattr(module, "step_from", step)
            patch.setattr(module, "evaluation_of", judged)
        patch.setattr(TileSearch, "every_layout", listed)
        patch.setattr(TileSearch, "_problem", built)
        yield
