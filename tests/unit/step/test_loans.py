"""Memory that stages lend each other: who holds it, what sending it takes, and the same in simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail import frameworks
from dovetail.cost.calibration import calibration
from dovetail.cost.units import way_arrays
from dovetail.hardware import Cluster, DefectMap
from dovetail.plans.plan import Plan
from dovetail.plans.wafer_part import Loan, StageTile, WaferPart
from dovetail.simulation import simulate
from dovetail.step.evaluate import Step, evaluate, step_of
from dovetail.step.evaluation import Evaluation
from dovetail.step.facts import plan_facts
from dovetail.step.loans import lent_bytes, lent_of_microbatch, moved_bytes
from wafer_plans import job_of, tile_plan, wafers

JOB = job_of()
FRAMEWORK = frameworks.load("wafer")
WAFER = wafers(4, 4)


def plan_of(*loans: Loan, schedule: str = "1f1b", **part: object) -> Plan:
    wafer = WaferPart(loans=loans, **part)  # type: ignore[arg-type]
    return tile_plan(JOB, 2, 2, 4, tensor=2, schedule=schedule, wafer=wafer if wafer != WaferPart() else None)


def evaluated(*loans: Loan, schedule: str = "1f1b", cluster: Cluster = WAFER, **part: object) -> Evaluation:
    return evaluate(plan_of(*loans, schedule=schedule, **part), JOB, cluster, FRAMEWORK)


def step(plan: Plan, cluster: Cluster = WAFER) -> Step:
    efficiencies = calibration(cluster.chip, JOB.precision).efficiencies
    return step_of(plan, JOB, cluster, plan_facts(plan, FRAMEWORK, JOB), efficiencies)


def activations(found: Evaluation) -> list[float]:
    return [parts["activations"] for parts in found.memory_by_stage]


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_memory_moves_from_the_stage_to_its_lenders(schedule: str) -> None:
    own = activations(evaluated(schedule=schedule))
    lent = activations(evaluated(Loan(0, 3, 4e8), Loan(0, 2, 1e8), Loan(1, 3, 2e8), schedule=schedule))
    assert lent == pytest.approx([own[0] - 5e8, own[1] - 2e8, own[2] + 1e8, own[3] + 6e8])
    if schedule == "1f1b":
        # the first stage has most in flight: without a part of it another stage is the fullest
        assert evaluated(Loan(0, 3, 4e8)).peak_bytes < evaluated().peak_bytes


def test_a_stage_lends_no_more_than_it_holds() -> None:
    own = activations(evaluated())
    once, twice = activations(evaluated(Loan(0, 3, 1e15))), activations(evaluated(Loan(0, 2, 1e15), Loan(0, 3, 1e15)))
    assert once == pytest.approx([0.0, own[1], own[2], own[3] + own[0]])
    assert twice == pytest.approx([0.0, own[1], own[2] + own[0], own[3]])
    assert min(activations(evaluated(Loan(0, 2, 0.7 * own[0]), Loan(0, 3, 0.7 * own[0])))) >= 0


def test_loans_are_of_what_a_microbatch_saves_as_of_all_that_is_held() -> None:
    saved, held = np.array([10.0, 10.0, 10.0, 10.0]), np.array([40.0, 30.0, 20.0, 10.0])
    plan = plan_of(Loan(0, 3, 10.0), Loan(1, 2, 45.0), Loan(1, 3, 45.0))
    assert moved_bytes(plan, held) == [10.0, 30.0, 0.0]
    assert lent_of_microbatch(plan, saved, held) == ((0, 3, 2.5), (1, 2, 10.0))
    assert lent_bytes(plan, held).tolist() == [-10.0, -30.0, 30.0, 10.0]
    assert lent_bytes(plan_of(), held).tolist() == [0.0] * 4


def test_a_loan_takes_its_bytes_over_the_links_of_its_way() -> None:
    """By hand: dies of the first tile send to those two columns on, so a link carries two messages."""
    tiles = (StageTile(0, 0, 0, 2, 2), StageTile(0, 2, 0, 2, 2), StageTile(0, 2, 2, 2, 2), StageTile(0, 0, 2, 2, 2))
    found = step(plan_of(Loan(0, 3, 1e8), tiles=tiles))
    ((stage, lender, sent),) = found.wafer.loans
    held = activations(evaluated(tiles=tiles))[0]
    saved = float(found.tables.saved_bytes(found.contents)[0])
    assert (stage, lender) == (0, 3)
    assert sent == pytest.approx(1e8 / held * saved)
    efficiencies = calibration(WAFER.chip, JOB.precision).efficiencies
    axis = way_arrays(WAFER, efficiencies)[0]
    # a die's two links along an axis share what the tier gives it for that axis
    link = float(axis.bytes_per_s * axis.efficiency) / 2
    seconds = 2 * sent / link + 2 * float(axis.latency_s) + float(axis.launch_s)
    assert found.wafer.lent_s.tolist() == pytest.approx([seconds, 0.0, 0.0, 0.0])
    # farther away it takes longer, around a dead link too
    around = step(plan_of(Loan(0, 3, 1e8), tiles=tiles, defects=(DefectMap((), (((0, 1), (0, 2)),)),)))
    assert around.wafer.lent_s[0] > seconds


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
@pytest.mark.parametrize(
    "loans",
    [
        (Loan(0, 3, 2e8),),
        (Loan(0, 3, 8e8), Loan(1, 2, 1e8)),
        (Loan(0, 1, 1e9), Loan(1, 3, 4e8), Loan(2, 3, 1e8)),
        (Loan(0, 2, 1e8), Loan(0, 3, 1e8)),
    ],
)
def test_the_simulation_agrees(loans: tuple[Loan, ...], schedule: str) -> None:
    plan, cluster = plan_of(*loans, schedule=schedule), WAFER
    found, run = evaluate(plan, JOB, cluster, FRAMEWORK), simulate(plan, JOB, cluster, FRAMEWORK)
    plain, alone = evaluated(schedule=schedule), simulate(plan_of(schedule=schedule), JOB, cluster, FRAMEWORK)
    assert run.peak_memory_bytes == pytest.approx(found.peak_bytes, rel=1e-6)
    assert alone.step_time_s <= run.step_time_s <= found.step_time_s * (1 + 1e-9)
    # what is lent waits behind no hand-over there: the model is at most the loans' own seconds longer
    lent = plan.num_microbatches * float(step(plan).wafer.lent_s.sum())
    assert found.step_time_s - run.step_time_s <= plain.step_time_s - alone.step_time_s + lent * (1 + 1e-9)
    assert run.ratio == pytest.approx(1.0, abs=0.03)


def test_slow_links_make_a_loan_dear_in_both() -> None:
    """On links of a hundredth of the rate what is lent is most of the step.

    There a stage sends what one micro-batch lends while it fetches what another did, which is what the model counts;
    filling and draining the pipeline it does one of both, which takes at most an eighth of such a step.
    """
    slower = replace(WAFER.tiers[0], bytes_per_s=WAFER.tiers[0].bytes_per_s / 100)
    cluster = replace(WAFER, tiers=(slower,), chip=replace(WAFER.chip, tiers=(slower,)))
    plan = plan_of(Loan(0, 3, 1e9))
    found, run = evaluate(plan, JOB, cluster, FRAMEWORK), simulate(plan, JOB, cluster, FRAMEWORK)
    plain = simulate(plan_of(), JOB, cluster, FRAMEWORK)
    assert run.step_time_s > 1.2 * plain.step_time_s
    assert found.breakdown["lent memory"] > 0.1 * plain.step_time_s
    assert 1.0 <= run.ratio <= 1.125
