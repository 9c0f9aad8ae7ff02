"""A plan kept on a wafer that lost dies or links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail import frameworks
from dovetail.hardware import Cluster, DefectMap
from dovetail.mapping.tiles.surviving import surviving_plan
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import check_wafer, handover, stage_tiles
from dovetail.plans.wafer_part import Loan, WaferPart
from dovetail.simulation import simulate
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation
from wafer_plans import job_of, tile_plan, wafers

JOB = job_of()
FRAMEWORK = frameworks.load("wafer")
WHOLE = wafers(4, 4)


def plan_of(stages: int = 4, **fields: object) -> Plan:
    return tile_plan(JOB, 2, 2, stages, tensor=2, **fields)  # type: ignore[arg-type]


def kept(defects: DefectMap, plan: Plan | None = None, cluster: Cluster = WHOLE) -> Evaluation | None:
    damaged = replace(cluster, defects=(defects,))
    found = surviving_plan(plan or plan_of(), JOB, damaged, FRAMEWORK)
    if found is not None:
        # a plan around what is dead is one that runs
        check_wafer(found.plan, damaged)
    return found


def test_nothing_dead_changes_nothing() -> None:
    plan = plan_of()
    own = evaluate(plan, JOB, WHOLE, FRAMEWORK)
    for cluster in (WHOLE, replace(WHOLE, defects=(DefectMap(),))):
        found = surviving_plan(plan, JOB, cluster, FRAMEWORK)
        assert found is not None
        assert found.step_time_s == pytest.approx(own.step_time_s, rel=1e-12)
        assert stage_tiles(found.plan, cluster) == stage_tiles(plan, WHOLE)


def test_a_dead_die_that_no_tile_has_costs_at_most_detours() -> None:
    plan = plan_of(3)
    own = evaluate(plan, JOB, WHOLE, FRAMEWORK)
    # the fourth tile of the snake is free
    found = kept(DefectMap(((0, 3),)), plan)
    assert found is not None
    assert found.plan.pipeline_parallel == 3
    assert found.step_time_s == pytest.approx(own.step_time_s, rel=1e-9)


def test_a_lost_tile_leaves_its_layers_to_the_others() -> None:
    plan = plan_of()
    tiles = stage_tiles(plan, WHOLE)
    found = kept(DefectMap((tiles[1].dies()[0],)))
    assert found is not None
    assert stage_tiles(found.plan, WHOLE) == (tiles[0], *tiles[2:])
    assert found.plan.layouts == plan.layouts
    assert found.plan.layers_per_stage == (8, 8, 8)
    assert found.step_time_s > evaluate(plan, JOB, WHOLE, FRAMEWORK).step_time_s
    # its neighbours are farther apart, and send around the dead die
    assert handover(found.plan, WHOLE, 0, 1).hops > handover(plan, WHOLE, 0, 1).hops


def test_dead_links_inside_and_between_tiles_cost_time() -> None:
    own = evaluate(plan_of(), JOB, WHOLE, FRAMEWORK).step_time_s
    for link in (((0, 0), (0, 1)), ((1, 0), (2, 0))):
        found = kept(DefectMap((), (link,)))
        assert found is not None
        assert found.plan.pipeline_parallel == 4
        assert found.step_time_s > own
        damaged = replace(WHOLE, defects=(DefectMap((), (link,)),))
        assert simulate(found.plan, JOB, damaged, FRAMEWORK).ratio == pytest.approx(1.0, abs=0.03)


def test_of_parts_that_do_not_reach_each_other_the_one_with_most_tiles_counts() -> None:
    # one column of tiles against one and a half: three tiles of which two reach each other
    cut = DefectMap((), tuple(((row, 1), (row, 2)) for row in range(4)))
    found = kept(cut, plan_of(3))
    assert found is not None
    assert [(t.row, t.col) for t in stage_tiles(found.plan, WHOLE)] == [(0, 0), (2, 0)]
    # the first die of the wafer on its own: its tile is in two parts
    alone = DefectMap((), (((0, 0), (0, 1)), ((0, 0), (1, 0))))
    found = kept(alone)
    assert found is not None
    assert [(t.row, t.col) for t in stage_tiles(found.plan, WHOLE)] == [(2, 0), (2, 2), (0, 2)]


def test_what_does_not_fit_is_recomputed_or_none() -> None:
    plan = plan_of()
    lost = DefectMap((stage_tiles(plan, WHOLE)[1].dies()[0],))
    peak = evaluate(plan, JOB, WHOLE, FRAMEWORK).peak_bytes

    def on(part: float) -> Evaluation | None:
        """On dies with so much of what the whole wafer's fullest need."""
        share = part * peak / WHOLE.chip.usable_bytes
        chip = replace(WHOLE.chip, hbm_bytes=int(share * WHOLE.chip.hbm_bytes))
        return kept(lost, plan, replace(WHOLE, chip=chip))

    roomy, tight = on(2.0), on(1.0)
    assert roomy is not None
    assert roomy.plan.recompute == "none"
    assert tight is not None
    assert tight.plan.recompute == "full"
    assert tight.step_time_s > roomy.step_time_s
    assert on(0.2) is None
    everywhere = DefectMap(tuple(tile.dies()[0] for tile in stage_tiles(plan, WHOLE)))
    assert kept(everywhere) is None


def test_loans_end_and_what_was_lent_is_recomputed() -> None:
    plan = plan_of(wafer=WaferPart(loans=(Loan(0, 3, 3e8),)))
    peak = evaluate(plan, JOB, WHOLE, FRAMEWORK).peak_bytes
    assert peak < evaluate(plan_of(), JOB, WHOLE, FRAMEWORK).peak_bytes
    chip = replace(WHOLE.chip, hbm_bytes=int(1.01 * peak / WHOLE.chip.usable_bytes * WHOLE.chip.hbm_bytes))
    link = DefectMap((), (((0, 0), (0, 1)),))
    found = kept(link, plan, replace(WHOLE, chip=chip))
    assert found is not None
    assert found.plan.wafer is not None
    assert found.plan.wafer.loans == ()
    assert (found.plan.pipeline_parallel, found.plan.recompute) == (4, "full")


def test_an_interleaved_plan_that_lost_a_tile_is_no_longer_interleaved() -> None:
    plan = plan_of(schedule="interleaved", virtual_stages=2)
    found = kept(DefectMap((stage_tiles(plan, WHOLE)[1].dies()[0],)), plan)
    assert found is not None
    assert (found.plan.pipeline_schedule, found.plan.virtual_stages) == ("1f1b", 1)
    assert sum(found.plan.layers_per_stage) == 24


def test_each_wafer_has_its_own_survivors() -> None:
    two = wafers(4, 4, 2)
    plan = plan_of(8)
    damaged = replace(two, defects=(DefectMap(((0, 0),)), DefectMap(((3, 3), (0, 1)))))
    found = surviving_plan(plan, JOB, damaged, FRAMEWORK)
    assert found is not None
    check_wafer(found.plan, damaged)
    assert sorted((t.wafer, t.row, t.col) for t in stage_tiles(found.plan, two)) == [
        (0, 0, 2), (0, 2, 0), (0, 2, 2), (1, 0, 2), (1, 2, 0),
    ]  # fmt: skip
