"""Model against simulation on random plans of wafers: near and far tiles, dead links, loans, stores, several wafers."""

from __future__ import annotations

import numpy as np
import pytest
from random_wafer_plans import WaferCase, wafer_case

from dovetail import frameworks
from dovetail.cost.calibration import calibration
from dovetail.plans.runs import check_runs
from dovetail.simulation import simulate
from dovetail.simulation.simulate import Simulation
from dovetail.step.evaluate import Step, evaluate, least_step_s, step_of
from dovetail.step.facts import plan_facts

FRAMEWORK = frameworks.load("wafer")
#: Far, turned and damaged tiles, each schedule, loans, stores of each kind, one wafer and three; some of them cheap.
SAMPLE = (1, 2, 9, 12, 14, 15, 23, 34, 40, 41)
CLOSE = 0.03


def step(case: WaferCase) -> Step:
    efficiencies = calibration(case.cluster.chip, case.job.precision).efficiencies
    return step_of(case.plan, case.job, case.cluster, plan_facts(case.plan, FRAMEWORK, case.job), efficiencies)


def not_hidden_s(case: WaferCase) -> float:
    """What a store sends before the first forward can begin, and receives after the last backward.

    The model lets all streams of micro-batches overlap computation. In simulation a stage waits for its weights before
    it begins with them, and the last gradients leave when all is computed: with few micro-batches that shows. Streams
    that take nearly as long as computation, or longer, come in bursts besides; the most that they can add is all of
    the shorter of the two.
    """
    found = step(case)
    use = found.wafer.store
    each = [t.weights_in + t.gradients_out + t.activations for t in use.by_stage]
    at_ends = max((sum(b for b, on in zip(each, use.wafers, strict=True) if w in on) for w in range(8)), default=0.0)
    pipelined = float(found.seconds) - use.end_s - max(float(np.ravel(found.breakdown.get("store", 0.0))[0]), 0.0)
    bursts = min(use.overlapped_s, pipelined) if use.overlapped_s > 0.4 * pipelined else 0.0
    return at_ends / use.bytes_per_s + bursts


def check_case(seed: int) -> tuple[WaferCase, Simulation]:
    """The ratio of simulated to modelled seconds, apart from what is explained, and the same peak of memory."""
    case = wafer_case(seed)
    check_runs(case.plan, case.job, case.cluster, FRAMEWORK)
    found = evaluate(case.plan, case.job, case.cluster, FRAMEWORK)
    run = simulate(case.plan, case.job, case.cluster, FRAMEWORK)
    beyond = not_hidden_s(case) / found.step_time_s if case.plan.wafer and case.plan.wafer.store else 0.0
    assert 1 - CLOSE <= run.ratio <= 1 + CLOSE + beyond, case.words
    assert run.peak_memory_bytes == pytest.approx(found.peak_bytes, rel=1e-3), case.words
    return case, run


@pytest.mark.parametrize("seed", SAMPLE)
def test_model_and_simulation_of_ten_wafer_plans_agree(seed: int) -> None:
    check_case(seed)


@pytest.mark.slow
def test_model_and_simulation_of_fifty_wafer_plans_agree() -> None:
    cases = [check_case(seed) for seed in range(50)]
    ratios = np.array([run.ratio for _, run in cases])
    parts = [case.plan.wafer for case, _ in cases]
    # the cases are what they should be
    assert sum(part is not None and bool(part.tiles) for part in parts) >= 15
    assert sum(part is not None and bool(part.defects) for part in parts) >= 15
    assert sum(part is not None and bool(part.loans) for part in parts) >= 8
    assert sum(part is not None and bool(part.store) for part in parts) >= 8
    assert len({case.plan.pipeline_schedule for case, _ in cases}) == 3
    assert (np.abs(ratios - 1) <= CLOSE).sum() == 50
    assert abs(float(np.median(ratios)) - 1) < 0.005


@pytest.mark.parametrize("seed", [1, 2, 6, 10, 25, 29, 41])
def test_no_wafer_plan_is_simulated_faster_than_its_least_step(seed: int) -> None:
    case = wafer_case(seed)
    run = simulate(case.plan, case.job, case.cluster, FRAMEWORK)
    assert least_step_s(case.plan, case.job, case.cluster, FRAMEWORK) <= run.step_time_s * (1 + 1e-9)
