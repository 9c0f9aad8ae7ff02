"""Plans with free layouts: never slower than named strategies, never below their bounds, what they say they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

import dovetail as dt
from dovetail import frameworks, hardware, models
from dovetail.errors import InputError
from dovetail.mapping.tiles.free_plan import FreeSearch, free_plan
from dovetail.mapping.tiles.skeletons import tile_skeletons
from dovetail.models import Job
from dovetail.plans.plan_file import task_of
from dovetail.plans.write import plan_document
from dovetail.search import Space
from dovetail.step.evaluate import evaluate

WATOS = hardware.wafer("watos-like")
#: memory for less than twice the state: layouts and recompute have to save it
SMALL = replace(WATOS, rows=2, cols=2, die=replace(WATOS.die, hbm_bytes=8e9), name="small").cluster()
JOB = Job(models.load("gpt3-1.3b"), seq_len=1024, global_batch=8)


@pytest.fixture(scope="module")
def answer():
    return free_plan(JOB, SMALL, simulate_top=2, named_s=float("inf"))


def test_no_named_strategy_is_faster(answer):
    named = dt.plan(JOB, SMALL, "wafer", space=Space(pipeline_schedule=("1f1b",), partition="even"))
    assert answer.step_time_s <= named.fastest.step_time_s * (1 + 1e-9)


def test_the_answer_is_a_plan_that_reads_back(answer):
    best = answer.best
    assert best.fits
    assert best.plan.chips <= SMALL.chips
    task = task_of(plan_document(best.plan, JOB, SMALL, "wafer"), "plan.yaml")
    assert task.plan == best.plan
    assert evaluate(task.plan, task.job, task.cluster, task.framework).step_time_s == best.step_time_s


def test_nothing_is_below_the_bound(answer):
    proof = answer.certificate
    assert proof.time == "simulated"
    assert 0 < proof.lower_bound_s <= min(plan.step_time_s for plan in answer.simulated) * (1 + 1e-9)
    assert all(other.step_time_s >= proof.lower_bound_s * (1 - 1e-9) for other in answer.alternatives)
    assert proof.gap < 0.05
    assert proof.counted == len(list(tile_skeletons(SMALL, 8, JOB.model.num_layers)))


@pytest.mark.slow
def test_bounds_hold_for_every_shape_that_is_placed():
    """Without an incumbent every shape is looked at, and none of its plans is below what was known of it before."""
    search = FreeSearch(JOB, replace(SMALL, name="tiny"), frameworks.load("wafer"))
    known: dict[object, float] = {}
    look_at = search._look_at  # pyright: ignore[reportPrivateUsage]

    def watched(shape, floor):
        known[shape] = search.bounds[shape]
        search.best_of = {}
        return look_at(shape, floor)

    search._look_at = watched  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    offer = search.offer
    placed: list[tuple[float, float]] = []

    def offered(shape, evaluation):
        placed.append((known[shape], evaluation.step_time_s))
        offer(shape, evaluation)

    search.offer = offered  # pyright: ignore[reportAttributeAccessIssue]
    search.deadline = 1e12
    search.run()
    assert len(placed) > 5
    assert all(bound <= seconds * (1 + 1e-9) for bound, seconds in placed)


def test_frameworks_that_run_names_alone_are_refused():
    with pytest.raises(InputError, match="use wafer or ideal"):
        free_plan(JOB, SMALL, "megatron")


def test_a_job_that_fits_nowhere_has_no_plan():
    little = replace(WATOS, rows=1, cols=2, die=replace(WATOS.die, hbm_bytes=1e8), name="little").cluster()
    found = free_plan(JOB, little, named_s=float("inf"))
    assert found.evaluation is None
    assert found.certificate.status == "infeasible"
