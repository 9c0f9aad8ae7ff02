"""Plans found on one design, priced on others, and the climb from one to the next."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dovetail.exploration.best_plans import plan_of, searched
from dovetail.exploration.known_plans import KnownPlans
from dovetail.exploration.resolving import study_of
from dovetail.step.evaluate import evaluate

DOCUMENT = {
    "name": "climb",
    "jobs": [
        {"model": "llama-3.2-1b", "seq_len": 2048, "global_batch": 128},
        {"model": "gpt2-1.5b", "seq_len": 1024, "global_batch": 128},
    ],
    "hardware": {
        "base": "h100-sxm",
        "vary": {
            "tensor_cores": {"range": [132, 792], "step": 132},
            "hbm_stacks": {"range": [1, 8]},
            "link_ports": [3, 6, 12, 18, 24],
            "clock_hz": ["1.2 GHz", "1.5 GHz", "1.8 GHz"],
        },
    },
    "cluster": {"chips": 16, "framework": "megatron", "networks": ["switch-8", "torus-3d"]},
    "limits": {"area_mm2": 800, "power_w": 700},
    "plans": {"context_parallel": [1], "pipeline_schedule": ["1f1b"], "zero_stage": [1], "recompute": ["none", "full"]},
}


@pytest.fixture(scope="module")
def known():
    study = study_of(DOCUMENT, "climb")
    every = np.arange(study.space.size)
    within = every[np.array(study.keeps(every))]
    (row,) = searched(study, within[len(within) // 2 :][:1], np.zeros((1, 2)), np.zeros((0, 1)))
    return study, row, KnownPlans(study, row.plans, study.positions[0].count)


def test_plans_take_elsewhere_what_their_evaluation_says_or_a_little_less(known):
    study, row, plans = known
    rng = np.random.default_rng(3)
    codes = np.sort(rng.choice(2 * study.space.size, 40, replace=False))
    fitting = 0
    for code, seconds in zip(codes.tolist(), plans.least_s(codes).tolist(), strict=True):
        cluster = study.cluster_of(code)
        found = [
            evaluate(plan_of(text, job.job, cluster), job.job, cluster, study.framework)
            for text, job in zip(row.plans, study.jobs, strict=True)
        ]
        if all(each.fits for each in found):
            fitting += 1
            exact = float(study.mean.of(np.array([each.step_time_s for each in found])))
            assert 0.95 * exact <= seconds <= exact
    assert fitting > 10
    assert plans.least_s(np.array([row.code]))[0] == pytest.approx(row.figures[0], rel=0.05)


def test_a_climb_ends_where_no_neighbour_is_faster_and_within_the_limits(known):
    study, row, plans = known
    for start in (row.code, study.space.size + row.code):
        least_s, end = plans.climbed(start)
        assert least_s <= plans.least_s(np.array([start]))[0]
        assert least_s == plans.least_s(np.array([end]))[0]
        assert study.keeps(np.array([end])) == [True]
        assert end // study.space.size == start // study.space.size, "a climb stays on one network"
        position, design = divmod(end, study.space.size)
        every = study.codes(position, np.arange(study.space.size))
        kept = every[np.array(study.keeps(every))]
        sizes = [len(axis) for axis in study.space.axes]
        places = np.stack(np.unravel_index(kept - position * study.space.size, sizes), axis=1)
        one_away = (np.abs(places - np.stack(np.unravel_index(design, sizes))).sum(axis=1)) == 1
        assert (plans.least_s(kept[one_away]) >= least_s).all()


def test_plans_are_for_a_number_of_chips():
    study = study_of({**DOCUMENT, "cluster": {**DOCUMENT["cluster"], "chips": [16, 32]}}, "climb")
    (row,) = searched(study, np.array([study.space.size - 1]), np.zeros((1, 2)), np.zeros((0, 1)))
    assert all(json.loads(text) for text in row.plans)
    counts = np.array([place.count for place in study.positions])
    codes = np.arange(len(counts)) * study.space.size + study.space.size - 1
    seconds = KnownPlans(study, row.plans, int(counts[0])).least_s(codes)
    assert (np.isfinite(seconds) == (counts == counts[0])).all()
