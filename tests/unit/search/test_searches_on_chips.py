"""Searches on chips that differ in rates and bytes, with one set of tables, prove what searches of their own do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail import frameworks, hardware, models
from dovetail.models import Job
from dovetail.search import Space, plan
from dovetail.search.related_searches import CLOSE, SearchesOnChips
from dovetail.step.evaluate import evaluate

JOB = Job(models.load("mixtral-8x7b"), 4096, 64)
CLUSTER = hardware.cluster("h100-sxm", 32)
SPACE = Space(micro_batch=(1, 2), recompute=("none", "full"), virtual_stages=(1,), context_parallel=(1,))
MORE: tuple[dict[str, float], ...] = ({}, {"hbm_bytes": 200e9}, {"clock_hz": 1e9, "hbm_bytes_per_s": 9e12})
MEGATRON = frameworks.load("megatron")


@pytest.mark.parametrize(
    "changes",
    [{"hbm_bytes": 60e9, "hbm_bytes_per_s": 1e12}, *(pytest.param(c, marks=pytest.mark.slow) for c in MORE)],
)
def test_what_is_proven_is_true_and_close(changes):
    searches = SearchesOnChips(JOB, CLUSTER, MEGATRON, SPACE)
    searches.best(CLUSTER, float("inf"))  # what it leaves must not matter
    cluster = replace(CLUSTER, chip=replace(CLUSTER.chip, **changes))
    best_s = plan(JOB, cluster, MEGATRON, space=SPACE).step_time_s
    found, bound_s = searches.best(cluster, float("inf"))
    assert found is not None
    evaluation = evaluate(found, JOB, cluster, MEGATRON)
    assert evaluation.fits
    assert evaluation.step_time_s * CLOSE * (1 - 1e-9) <= bound_s <= best_s <= evaluation.step_time_s * (1 + 1e-9)
    for part in (0.5, 0.95):
        assert searches.best(cluster, part * best_s) == (None, part * best_s)
    found, bound_s = searches.best(cluster, 1.05 * best_s)
    assert found is not None
    assert bound_s <= best_s <= evaluate(found, JOB, cluster, MEGATRON).step_time_s * (1 + 1e-9) <= 1.05 * best_s
