"""Plans on damaged wafers: kept, planned again, and what they take there."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from xml.etree import ElementTree

import pytest

from dovetail import frameworks, hardware, models
from dovetail.cost.calibration import calibration
from dovetail.cost.mesh import DieMesh
from dovetail.hardware import DefectMap, Wafer
from dovetail.layout.encoding.job_encoding import Tile
from dovetail.mapping.tiles.damaged import Replanner, not_replanned, replanned
from dovetail.mapping.tiles.damaged_step import (
    TilePlan,
    dies_of,
    fellow_hops,
    slowdown,
    tiled_step_s,
    wafer_grid,
    wafer_mesh,
)
from dovetail.models import Job
from dovetail.plans.plan import Plan
from dovetail.report.tiles_picture import tiles_svg
from dovetail.step.evaluate import ProfiledJob, evaluate, profiled_job
from dovetail.step.facts import plan_facts

WAFER = replace(hardware.wafer("watos-like"), rows=4, cols=4)
FRAMEWORK = frameworks.load("wafer")
JOB = Job(model=models.load("gpt3-1.3b"), seq_len=2048, global_batch=16)
SHAPES = {(1, 2): (1,), (2, 2): (1,)}


@lru_cache(maxsize=1)
def search() -> Replanner:
    """One for all tests: what it knows of shapes does not depend on defects."""
    return Replanner(JOB, WAFER, FRAMEWORK, SHAPES)


@lru_cache(maxsize=1)
def healthy() -> TilePlan:
    """The best plan of the whole wafer."""
    found = search().best(DefectMap())
    assert found is not None
    return found


def damaged(defects: DefectMap) -> Wafer:
    return WAFER.with_defects(defects)


def profiled(plan: Plan) -> ProfiledJob:
    cluster = WAFER.cluster()
    facts = plan_facts(plan, FRAMEWORK, JOB)
    return profiled_job(plan, JOB, cluster, facts, calibration(cluster.chip, JOB.precision).efficiencies)


def check_tiles(found: TilePlan, wafer: Wafer) -> None:
    """Live, disjoint, each connected by its own links, one for each stage."""
    grid, layouts = wafer_grid(wafer), found.plan.layouts
    assert layouts is not None
    assert len(found.tiles) == found.plan.pipeline_parallel == len(found.hops) + 1
    dies = [die for tile in found.tiles for die in tile.dies()]
    assert len(dies) == len(set(dies)) == found.plan.chips
    assert grid.dead.isdisjoint(dies)
    for tile in found.tiles:
        assert sorted((tile.rows, tile.cols)) == sorted((layouts.rows, layouts.cols))
        assert grid.holds(tile)
        assert grid.is_connected(tile)


def test_without_defects_a_kept_plan_is_that_of_the_whole_wafer() -> None:
    found = healthy()
    check_tiles(found, WAFER)
    assert not_replanned(found, JOB, WAFER, FRAMEWORK) == found
    assert search().best(DefectMap(), found) == found
    # stages side by side are what an evaluation knows of
    evaluation = evaluate(found.plan, JOB, WAFER.cluster(), FRAMEWORK)
    assert evaluation.fits
    assert found.step_time_s == pytest.approx(evaluation.step_time_s, rel=1e-9)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_a_step_is_as_evaluated_and_longer_with_each_hop_and_slower_tile(schedule: str) -> None:
    plan = replace(healthy().plan, pipeline_schedule=schedule)
    job, stages = profiled(plan), plan.pipeline_parallel
    layouts = plan.layouts
    assert layouts is not None
    near, whole = [min(layouts.rows, layouts.cols)] * (stages - 1), [1.0] * stages
    alone = tiled_step_s(plan, job, near, whole)
    assert alone == pytest.approx(evaluate(plan, JOB, WAFER.cluster(), FRAMEWORK).step_time_s, rel=1e-9)
    assert tiled_step_s(plan, job, [9, *near[1:]], whole) > alone
    one_slower, all_slower = (
        tiled_step_s(plan, job, near, [*whole[1:], 3.0]),
        tiled_step_s(plan, job, near, [3.0] * stages),
    )
    assert alone < one_slower <= all_slower


def test_planned_again_is_no_slower_than_kept_and_lies_on_live_tiles() -> None:
    slower = 0
    for seed in range(5):
        wafer = damaged(DefectMap.sampled(4, 4, 0.85, 1.0, seed))
        kept = not_replanned(healthy(), JOB, wafer, FRAMEWORK)
        found = search().best(wafer.defects)
        assert found is not None
        check_tiles(found, wafer)
        if kept is not None:
            check_tiles(kept, wafer)
            assert found.step_time_s <= kept.step_time_s * (1 + 1e-9)
            slower += found.step_time_s < kept.step_time_s * 0.999
    assert slower, "some map where planning again pays"


def test_with_dead_links_the_kept_plan_is_a_candidate() -> None:
    for seed in range(4):
        wafer = damaged(DefectMap.sampled(4, 4, 1.0, 0.7, seed))
        kept = not_replanned(healthy(), JOB, wafer, FRAMEWORK)
        found = search().best(wafer.defects, kept)
        assert found is not None
        if kept is not None:
            assert found.step_time_s <= kept.step_time_s
            assert kept.step_time_s > healthy().step_time_s
        if found is not kept:
            check_tiles(found, wafer)


def test_a_lost_tile_leaves_its_layers_to_the_others() -> None:
    wafer = damaged(DefectMap(dead_dies=(dies_of(healthy().tiles[1])[0],)))
    kept = not_replanned(healthy(), JOB, wafer, FRAMEWORK)
    assert kept is not None
    assert kept.tiles == (healthy().tiles[0], *healthy().tiles[2:])
    assert kept.plan.layouts == healthy().plan.layouts
    assert sum(kept.plan.layers_per_stage) == JOB.model.num_layers
    assert max(kept.plan.layers_per_stage) - min(kept.plan.layers_per_stage) <= 1
    assert kept.step_time_s > healthy().step_time_s


def test_a_kept_plan_that_does_not_fit_computes_everything_again_or_is_none() -> None:
    lost = DefectMap(dead_dies=(dies_of(healthy().tiles[1])[0],))

    def kept(part: float) -> TilePlan | None:
        """On dies with so much of what the whole wafer's fullest need."""
        peak = evaluate(healthy().plan, JOB, WAFER.cluster(), FRAMEWORK).peak_bytes
        wafer = replace(WAFER, die=replace(WAFER.die, hbm_bytes=int(part * peak)), defects=lost)
        return not_replanned(healthy(), JOB, wafer, FRAMEWORK)

    roomy, tight = kept(1.2), kept(1.01)
    assert roomy is not None
    assert roomy.plan.recompute_by_block == healthy().plan.recompute_by_block
    assert tight is not None
    assert tight.plan.recompute == "full"
    assert tight.step_time_s > roomy.step_time_s
    assert kept(0.5) is None


def test_what_does_not_fit_is_none() -> None:
    every = [(row, col) for row in range(4) for col in range(4)]
    lost = DefectMap(dead_dies=tuple(dies_of(tile)[0] for tile in healthy().tiles))
    assert not_replanned(healthy(), JOB, damaged(lost), FRAMEWORK) is None
    assert search().best(DefectMap(dead_dies=tuple(every))) is None
    few = damaged(DefectMap(dead_dies=tuple(every[2:])))
    found = replanned(JOB, few, FRAMEWORK, {(2, 1): (1,)})
    assert found is not None
    # turned, it is the one tile that is left
    assert found.tiles == (Tile(0, 0, 1, 2),)
    # 13 billion parameters with their optimizer on two dies of 70 GB
    large = Job(model=models.load("gpt3-13b"), seq_len=2048, global_batch=16)
    assert replanned(large, few, FRAMEWORK, {(1, 2): (1,)}) is None


def test_fellows_of_a_turned_tile_change_row_and_column() -> None:
    mesh = DieMesh(4, 6)
    assert fellow_hops(mesh, Tile(0, 0, 2, 2), Tile(2, 0, 2, 2)) == 2
    # (row, col) of the first: (0, 0)-(0, 3), (0, 1)-(1, 3), (0, 2)-(2, 3): 3 hops each
    assert fellow_hops(mesh, Tile(0, 0, 1, 3), Tile(3, 0, 3, 1)) == 3
    cut = DieMesh(1, 6, dead_dies=frozenset({(0, 2)}))
    assert fellow_hops(cut, Tile(0, 0, 1, 2), Tile(4, 0, 1, 2)) is None
    around = DieMesh(2, 6, dead_dies=frozenset({(0, 2)}))
    assert fellow_hops(around, Tile(0, 0, 1, 2), Tile(3, 0, 1, 2)) == 5


def test_collectives_around_dead_links() -> None:
    links = {pair for pair in combinations([(y, x) for y in range(2) for x in range(4)], 2) if _beside(*pair)}
    assert len(links) == 10
    tile = Tile(0, 0, 2, 4)
    for link in links:
        mesh = DieMesh(4, 4, dead_links=frozenset({link}))
        fixed, best = (slowdown(mesh, tile, replanned=again) for again in (False, True))
        # two rows or columns over one link: no less than twice
        assert 2.0 <= best <= fixed
    outside = DieMesh(4, 4, dead_links=frozenset({((2, 0), (2, 1)), ((1, 0), (2, 0))}))
    assert slowdown(outside, tile, replanned=False) == 1.0
    # a line that falls apart goes round over the wafer, where others send as much
    line = DieMesh(4, 4, dead_links=frozenset({((0, 1), (0, 2))}))
    assert slowdown(line, Tile(0, 0, 1, 4), replanned=False) == pytest.approx(2.0)
    # four dies in a square: all over one way round, twice what either way round takes
    square = DieMesh(4, 4, dead_links=frozenset({((0, 0), (0, 1))}))
    assert slowdown(square, Tile(0, 0, 2, 2), replanned=False) == pytest.approx(2.0)


def _beside(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return abs(one[0] - other[0]) + abs(one[1] - other[1]) == 1


def test_the_picture_has_every_die() -> None:
    wafer = damaged(DefectMap(dead_dies=((0, 0),), dead_links=(((3, 2), (3, 3)),)))
    found = search().best(wafer.defects)
    assert found is not None
    root = ElementTree.fromstring(tiles_svg("a wafer", wafer_grid(wafer), found.tiles))  # noqa: S314
    told = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(text.endswith(": dead") for text in told) == 1
    assert sum(": stage " in text for text in told) == found.plan.chips
    assert sum(text.endswith(": left over") for text in told) == 15 - found.plan.chips
    assert wafer_mesh(wafer).num_dies == 15
