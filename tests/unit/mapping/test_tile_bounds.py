"""Lower bounds of free plans: below every layout, tight where they can be, the same whoever asks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail import frameworks, hardware, models
from dovetail.graph import differentiate
from dovetail.mapping.layouts.groups import Together
from dovetail.mapping.layouts.layer_problem import LayoutSpace, layer_problem
from dovetail.mapping.layouts.options import layer_variables
from dovetail.mapping.layouts.shards import LayerShards
from dovetail.mapping.layouts.times import seconds_of
from dovetail.mapping.tiles.free_search import FreeSearch
from dovetail.mapping.tiles.local_shapes import local_shapes
from dovetail.mapping.tiles.partitioned import partitioned
from dovetail.mapping.tiles.priced_lower_bound import PricedBlock, flights
from dovetail.mapping.tiles.skeletons import TileSkeleton, tile_skeletons
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tiles.tile_layouts import TileSearch, searched_tiles
from dovetail.mapping.tiles.work_bounds import SkeletonBounds, least_free_s
from dovetail.models import Job
from dovetail.plans.wafer_part import STORE_CHOICES

WATOS, WAFER = hardware.wafer("watos-like"), frameworks.load("wafer")
SMALL = replace(WATOS, rows=2, cols=2, die=replace(WATOS.die, hbm_bytes=8e9), name="small").cluster()
JOB = Job(models.load("gpt3-1.3b"), seq_len=1024, global_batch=8)
MIXTURE = Job(models.load("mixtral-8x7b"), seq_len=1024, global_batch=12)


@pytest.mark.parametrize("job", [JOB, MIXTURE], ids=["dense", "mixture"])
@pytest.mark.parametrize(("dies", "batch"), [(1, 1), (2, 4), (4, 2), (6, 4)])
def test_no_sharding_of_an_operator_is_faster_than_its_floor(job, dies, batch):
    layers = TileLayers(job, SMALL, WAFER, TileSkeleton(1, dies, 1, batch), 1)
    graph, setting = layers.main_block, layers.work_setting(layers.main_block)
    shapes = local_shapes(job)[graph.name]
    floors = shapes.least_seconds([dies], layers.units, job.element_bytes())[0, shapes.batches.index(batch)]
    backward = differentiate(graph)
    fastest: dict[str, float] = {}
    for tile in searched_tiles(layers, 1, dies):
        shards = LayerShards(graph, backward, tile, layer_variables(graph, setting.sizes, tile, Together.SIBLINGS))
        for operators in (graph.operators, backward.graph.operators):
            timed = seconds_of(operators, graph, shards, setting.sizes, setting.chip, setting.widths)
            for name, each in timed.items():
                fastest[name] = min(float(each.values.min()), fastest.get(name, np.inf))
    wanted = np.array([fastest[o.name] for o in shapes.operators])
    assert (floors <= wanted * (1 + 1e-12)).all()
    if job is JOB:
        assert floors.sum() == pytest.approx(wanted.sum(), rel=1e-9)


def test_the_lowest_floor_is_that_of_all_skeletons():
    skeletons = list(tile_skeletons(SMALL, JOB.global_batch, JOB.model.num_layers))
    floors = SkeletonBounds(JOB, SMALL, WAFER, {each.dies for each in skeletons})
    lowest = min(floors.bounds(skeletons, stage).min() for stage in (1, 3))
    assert least_free_s(JOB, SMALL, WAFER) == pytest.approx(lowest, rel=1e-9)
    for below in (0.5 * lowest, 0.99 * lowest):
        assert least_free_s(JOB, SMALL, WAFER, below_s=below) >= below
    for below in (1.01 * lowest, 2 * lowest):
        assert least_free_s(JOB, SMALL, WAFER, below_s=below) <= lowest * (1 + 1e-9)
    for skeleton in skeletons[::7]:
        alone = floors.pipeline(skeleton, 1).least_s()
        assert alone == pytest.approx(floors.bounds([skeleton], 1)[0], rel=1e-8)


def test_a_wafer_without_room_for_the_state_has_no_floor():
    little = replace(WATOS, rows=1, cols=2, die=replace(WATOS.die, hbm_bytes=1e8), name="little").cluster()
    assert least_free_s(JOB, little, WAFER) == float("inf")


def _die_bytes(store: tuple[str, ...]) -> list[float]:
    """Memories of a die with which some plans fit and others do not."""
    if "weights" in store:
        return [0.15e9, 0.4e9, 1e9]
    return [1.1e9, 1.4e9, 2e9] if store else [2.5e9, 3e9, 4e9]


@pytest.mark.parametrize("store", [*STORE_CHOICES], ids="+".join)
@pytest.mark.parametrize("instances", [5, pytest.param(60, marks=pytest.mark.slow)])
def test_no_plan_is_faster_than_its_bound_or_fits_where_none_should(store, instances):
    """Dies so small, and stores so slow, that what is at work, recomputed and sent decides."""
    random, fitting, tight = np.random.default_rng(len(store)), 0, 0
    for _ in range(instances):
        job = replace(JOB, model=models.load(str(random.choice(["gpt3-1.3b", "llama-3.2-1b"]))))
        die = replace(WATOS.die, hbm_bytes=float(random.choice(_die_bytes(store))))
        rate = float(random.choice([2e9, 2e10, 1e12]))
        wafer = replace(WATOS, rows=2, cols=4, die=die, name="tiny", store_bytes=1e12, store_bytes_per_s=rate)
        cluster = wafer.cluster()
        skeletons = [s for s in tile_skeletons(cluster, job.global_batch, job.model.num_layers) if s.store == store]
        bounds = SkeletonBounds(job, cluster, WAFER, {each.dies for each in skeletons}, store)
        filling = [s for s in skeletons if s.dies <= 4 and s.dies * s.stages == 8]
        skeleton = filling[int(random.integers(len(filling)))]
        layers = TileLayers(job, cluster, WAFER, skeleton, 3)
        tile = next(searched_tiles(layers, skeleton.rows, skeleton.cols))
        found = [partitioned(layers, each, ()) for each in TileSearch(layers, tile, None).layouts()[:2]]
        steps = [plan.step_time_s for each in found for plan in each.plans]
        bound = float(bounds.bounds([skeleton], 3)[0])
        assert bound <= min(steps, default=float("inf")) * (1 + 1e-9)
        assert bounds.pipeline(skeleton, 3).least_s() == pytest.approx(bound, rel=1e-8)
        fitting += bool(steps)
        tight += not steps or bound > bounds.rough([skeleton])[0] * (1 + 1e-6)
    assert fitting
    assert tight


def test_prices_bound_what_blocks_of_a_stage_take():
    """At every price tried: n blocks take at least n × lowest − price × memory, with the best price of a fine grid."""
    layers = TileLayers(JOB, SMALL, WAFER, TileSkeleton(1, 2, 2, 2), 1)
    tile = next(searched_tiles(layers, 1, 2))
    problem = layer_problem(layers.setting(layers.main_block, tile), tile, LayoutSpace(recompute_singly=True))
    block = PricedBlock(problem)
    free, dear = block.at(0.0, 2), block.at(1.0, 2)
    assert free is not None and dear is not None  # noqa: PT018
    for part in (0.1, 0.5, 0.9, 1.5):
        share = dear.used_bytes(2) + part * (free.used_bytes(2) - dear.used_bytes(2))
        grid = [block.at(price, 2) for price in np.geomspace(1e-15, 1e-9, 60)]
        best = max(each.lowest - each.prices[0] * share for each in [free, *grid] if each is not None)
        found = max(each.lowest - each.prices[0] * share for each in block.search(2, share, 1e-12))
        assert found >= best * (1 - 2e-3)
        assert found <= (free.seconds if part > 1 else dear.seconds) * (1 + 1e-9)


def test_all_micro_batches_in_flight_are_bounded():
    assert flights(1, 5) == (1,)
    assert flights(3, 9) == (3, 2, 1)
    assert flights(9, 2) == (2, 1)
    many = flights(20, 50)
    assert (many[0], many[-1]) == (20, 1)


def test_a_small_space_is_searched_completely():
    """With few layouts the search tries all, and its bound is the best of them."""

    def only_batch(_operator: object, dim: str) -> bool:
        return dim == "batch"

    pair = replace(WATOS, rows=1, cols=2, die=replace(WATOS.die, hbm_bytes=20e9), name="pair").cluster()
    job = replace(JOB, global_batch=2)
    search = FreeSearch(job, pair, WAFER, allowed=only_batch, zero_stages=(1,))
    search.run()
    assert search.best_s < float("inf")
    assert search.bound_s >= search.best_s * (1 - 1e-9)
