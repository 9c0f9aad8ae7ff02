"""The search's tables and bounds against `evaluate`, plan by plan."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.bounds.hardware_bound import hardware_bound
from dovetail.plans.plan_batch import PlanBatch
from dovetail.plans.runs import check_runs
from dovetail.step.evaluate import evaluate
from random_plans import QUESTIONS, random_plans


def check(question, number, seed):
    """Time and memory of every plan agree, and no bound is above its time."""
    found = random_plans(question, number, seed)
    batch, candidates, evaluated = found.batch, found.candidates, found.evaluated()
    exact = evaluated.pipeline_s.copy()
    (open_rows,) = np.nonzero(~evaluated.exact)
    exact[open_rows] = batch.pipeline_seconds(candidates, evaluated, open_rows)
    seconds = exact + evaluated.rest_s
    bounds = batch.bound(candidates, None, float("inf"))
    physical = hardware_bound(found.job, found.cluster, PlanBatch.of(found.plans))
    for row, i in enumerate(evaluated.candidate.tolist()):
        plan = found.plans[i]
        check_runs(plan, found.job, found.cluster, found.framework)
        one = evaluate(plan, found.job, found.cluster, found.framework, energy=False)
        assert seconds[row] == pytest.approx(one.step_time_s, rel=1e-9), plan
        assert evaluated.peak_bytes[row] == pytest.approx(one.peak_bytes, rel=1e-9), plan
        assert evaluated.pipeline_s[row] <= exact[row] * (1 + 1e-9), plan
        # L0 ≤ L1⁻ ≤ L1: no plan beats the hardware, and nothing that is pruned could win
        assert physical[i] <= one.step_time_s * (1 + 1e-12), plan
        assert physical[i] <= bounds[i], plan
        assert bounds[i] <= one.step_time_s or one.peak_bytes > found.limit_bytes, plan


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: f"{q[0]}-{q[4]}")
def test_tables_say_what_evaluations_say(question):
    check(question, 56, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(11))
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: f"{q[0]}-{q[4]}")
def test_tables_say_what_evaluations_say_of_many_plans(question, seed):
    check(question, 112, seed)
