"""Pairs of stage degrees and stage counts are opened a few at a time: which ones first changes no answer."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import frameworks, hardware, models
from dovetail.bounds.degree_bounds import DegreeBounds
from dovetail.models import Job
from dovetail.plans.plan import Plan
from dovetail.search import Space, open_pairs, plan
from dovetail.search.enumeration import Enumeration
from dovetail.search.open_pairs import OpenPairs
from dovetail.step.layer_tables import Setting

JOB = Job(models.load("mixtral-8x7b"), 4096, 64)
CLUSTER = hardware.cluster("h100-sxm", 32)
SPACE = Space(micro_batch=(1, 2), recompute=("none", "full"), virtual_stages=(1,), context_parallel=(1,))


@pytest.fixture(scope="module")
def pairs() -> DegreeBounds:
    framework = frameworks.load("megatron")
    setting, space = Setting.of(JOB, CLUSTER, framework), SPACE.resolve(JOB, CLUSTER, framework)
    every = Enumeration(setting, space, lambda: None)
    return DegreeBounds(setting, space, every.degrees, every.tables)


def test_rounds_change_no_answer(monkeypatch):
    at_once = plan(JOB, CLUSTER, space=SPACE)
    monkeypatch.setattr(open_pairs, "FIRST_ROUND", 2)
    monkeypatch.setattr(open_pairs, "FEW", 0)
    by_few = plan(JOB, CLUSTER, space=SPACE)
    assert by_few.fastest.plan == at_once.fastest.plan
    assert by_few.step_time_s == at_once.step_time_s
    assert by_few.certificate.status == "optimal"
    assert by_few.certificate.counted == at_once.certificate.counted


def test_each_pair_is_opened_once_and_those_near_the_best_plan_before_the_rest(pairs, monkeypatch):
    monkeypatch.setattr(open_pairs, "FIRST_ROUND", 3)
    monkeypatch.setattr(open_pairs, "FEW", 0)
    unopened, seen = OpenPairs(pairs, np.ones(pairs.seconds.shape, np.int64), np.inf), np.zeros(pairs.seconds.shape)
    best = next(each.plan for each in pairs.degrees if each.plan.tensor_parallel == each.plan.expert_parallel == 2)
    rounds = []
    while len(unopened):
        rounds.append(unopened.take(best))
        seen += rounds[-1]
    assert (seen == np.isfinite(pairs.seconds)).all()
    assert len(rounds) == 3
    first, near, _ = rounds
    assert first.sum() == 3
    for row, position in np.argwhere(np.isfinite(pairs.seconds) & ~first):
        other, stages = pairs.degrees[row].plan, pairs.space.pipeline_parallel[position]
        assert near[row, position] == (factor(other, best) * stages <= 2)


def test_layers_are_profiled_before_skeletons_are_bounded_by_them(monkeypatch):
    """Where only plans below some seconds matter, pairs beyond them are never profiled, so nothing may look at them."""
    known, found = DegreeBounds.skeleton_bounds, list[bool]()

    def skeleton_bounds(self, skeletons, limit_s):
        found.extend(self._layers[0, skeletons.degrees].any(axis=1).tolist())
        return known(self, skeletons, limit_s)

    monkeypatch.setattr(DegreeBounds, "skeleton_bounds", skeleton_bounds)
    step_s = plan(JOB, CLUSTER, space=SPACE).step_time_s
    for part in (0.25, 0.35, 0.45, 0.6):
        assert plan(JOB, CLUSTER, space=SPACE, below_s=part * step_s).certificate.lower_bound_s == part * step_s
    assert len(found) > 100
    assert all(found)


def factor(plan: Plan, other: Plan) -> float:
    """How far degrees are apart, as a product of ratios."""
    fields = ("tensor_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel")
    ratios = [getattr(plan, name) / getattr(other, name) for name in fields]
    return float(np.prod([max(ratio, 1 / ratio) for ratio in ratios]))


def test_what_cannot_win_is_not_opened(pairs):
    limit_s = float(np.median(pairs.seconds[np.isfinite(pairs.seconds)]))
    unopened = OpenPairs(pairs, np.ones(pairs.seconds.shape, np.int64), np.inf)
    unopened.prune(limit_s)
    assert len(unopened) == (pairs.seconds < limit_s).sum()
    assert (unopened.left.bounds_s < limit_s).all()
