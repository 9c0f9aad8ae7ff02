"""Plans with free layouts: never slower than named strategies, never below their bounds, what they say they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

import dovetail as dt
from dovetail import frameworks, hardware, models
from dovetail.errors import InputError
from dovetail.mapping.tiles.free_plan import FreeLimits, FreeSearch, free_plan
from dovetail.mapping.tiles.skeletons import tile_skeletons
from dovetail.models import Job
from dovetail.plans.plan_file import task_of
from dovetail.plans.write import plan_document
from dovetail.search import SearchProgress, Space
from dovetail.step.evaluate import evaluate

WATOS = hardware.wafer("watos-like")
#: memory for less than twice the state: layouts and recompute have to save it
SMALL = replace(WATOS, rows=2, cols=2, die=replace(WATOS.die, hbm_bytes=8e9), name="small").cluster()
JOB = Job(models.load("gpt3-1.3b"), seq_len=1024, global_batch=8)


@pytest.fixture(scope="module")
def answer():
    return free_plan(JOB, SMALL, limits=FreeLimits(named_s=float("inf")), simulate_top=2)


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
def test_bounds_hold_for_every_skeleton_that_is_placed():
    """Without a plan to beat every skeleton is placed, and none of its plans is below any bound it had."""
    search = FreeSearch(JOB, replace(SMALL, name="tiny"), frameworks.load("wafer"))
    step, offer = search._step, search.offer  # pyright: ignore[reportPrivateUsage]
    bounds: list[float] = []
    placed: list[tuple[float, float]] = []

    def watched(branch, bound_s):
        bounds[:] = [bound_s]
        search.best_of = {}
        return step(branch, bound_s)

    def offered(skeleton, evaluation):
        placed.append((bounds[0], evaluation.step_time_s))
        offer(skeleton, evaluation)

    search._step = watched  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    search.offer = offered  # pyright: ignore[reportAttributeAccessIssue]
    search.run()
    assert len(placed) > 5
    assert all(bound <= seconds * (1 + 1e-9) for bound, seconds in placed)


def test_nothing_that_takes_as_long_is_of_interest(answer):
    best_s = answer.evaluation.step_time_s
    beaten = free_plan(JOB, SMALL, limits=FreeLimits(below_s=0.9 * best_s, named_s=0.0))
    assert beaten.evaluation is None
    assert beaten.certificate.status == "feasible"
    assert 0.9 * best_s <= beaten.certificate.lower_bound_s <= best_s * (1 + 1e-9)


def test_a_search_ends_within_its_gap_or_when_told():
    told: list[SearchProgress] = []

    def listen(progress: SearchProgress) -> bool:
        told.append(progress)
        return False

    loose = free_plan(JOB, SMALL, limits=FreeLimits(gap=0.2, named_s=0.0), on_progress=listen)
    assert loose.certificate.gap is not None
    assert loose.certificate.gap <= 0.2
    assert told
    bounds = [each.lower_bound_s for each in told]
    assert bounds == sorted(bounds)
    assert all(bound <= loose.step_time_s * (1 + 1e-9) for bound in bounds)
    ended = free_plan(JOB, SMALL, limits=FreeLimits(named_s=0.0), on_progress=lambda _: True)
    assert ended.evaluation is None
    assert (ended.certificate.lower_bound_s or 0.0) > 0
    limited = free_plan(JOB, SMALL, limits=FreeLimits(named_s=0.0, work_limit=1))
    assert limited.certificate.evaluated <= 1


def test_frameworks_that_run_names_alone_are_refused():
    with pytest.raises(InputError, match="use wafer or ideal"):
        free_plan(JOB, SMALL, "megatron")


def test_a_job_that_fits_nowhere_has_no_plan():
    little = replace(WATOS, rows=1, cols=2, die=replace(WATOS.die, hbm_bytes=1e8), name="little").cluster()
    found = free_plan(JOB, little, limits=FreeLimits(named_s=float("inf")))
    assert found.evaluation is None
    assert found.certificate.status == "infeasible"
