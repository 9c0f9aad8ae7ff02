"""The figures of `benchmarks/model_and_simulation.py`, and that it runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dovetail import frameworks, hardware, models
from dovetail.models import Job

PATH = Path(__file__).parents[3] / "benchmarks" / "model_and_simulation.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("model_and_simulation", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def times(benchmark: ModuleType, *pairs: tuple[float, float]) -> list[tuple[float, float]]:
    return [benchmark.Times(model_s, simulated_s) for model_s, simulated_s in pairs]


def test_pairs_in_both_orders_are_counted(benchmark):
    # simulated 10 < 11 < 12: the model swaps the last two
    found = times(benchmark, (9, 10), (12, 11), (11, 12))
    assert sorted(benchmark.pair_orders(found)) == [-1, 1, 1]
    assert benchmark.inverted(benchmark.pair_orders(found)) == pytest.approx(1 / 3)


def test_the_order_in_which_plans_are_given_does_not_matter(benchmark):
    found = times(benchmark, (9, 10), (12, 11), (11, 12), (8, 15))
    assert sorted(benchmark.pair_orders(found)) == sorted(benchmark.pair_orders(found[::-1]))


def test_pairs_that_the_simulation_cannot_tell_apart_do_not_count(benchmark):
    assert benchmark.pair_orders(times(benchmark, (2, 100), (1, 101.9))) == []
    assert benchmark.pair_orders(times(benchmark, (2, 100), (1, 102.1))) == [-1]
    assert benchmark.inverted([]) == 0


def test_plans_that_are_equal_by_the_model_are_no_inversion(benchmark):
    assert benchmark.pair_orders(times(benchmark, (1, 100), (1, 110))) == [0]
    assert benchmark.inverted([0, 1, -1, 1]) == 0.25


def test_regret_is_of_the_plan_that_the_model_ranks_first(benchmark):
    assert benchmark.regret(times(benchmark, (10, 10.5), (11, 10), (12, 20))) == pytest.approx(0.05)
    assert benchmark.regret(times(benchmark, (10, 10), (11, 10.5))) == 0


def test_errors_count_either_way(benchmark):
    assert benchmark.median_error(times(benchmark, (9, 10), (13, 10), (10, 10))) == pytest.approx(0.1)


def test_plans_are_near_the_best_and_differ(benchmark, monkeypatch):
    """Each is a plan that the framework runs, once, and no slower by the model than is allowed."""
    monkeypatch.setattr(benchmark, "TRIES", 150)
    job = Job(models.load("gpt3-1.3b"), seq_len=2048, global_batch=64)
    cluster, framework = hardware.cluster("dgx-a100-80gb", chips=8), frameworks.load("megatron")
    found = benchmark.near_plans(job, cluster, framework, np.random.default_rng(1))
    plans = [plan for _, plan in found]
    best_s = found[0][0]
    assert len(set(plans)) == len(plans) > 10
    assert all(best_s <= seconds <= (1 + benchmark.WITHIN) * best_s for seconds, _ in found)
    for seconds, plan in found:
        assert benchmark.seconds_of(plan, job, cluster, framework) == pytest.approx(seconds, rel=1e-9)
    assert benchmark.near_plans(job, cluster, framework, np.random.default_rng(1)) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        ("gpt3-1.3b", 2048, 64, "dgx-a100-80gb", 16, "megatron"),
        ("llama-3.2-1b", 4096, 64, "hgx-h100", 16, "torchtitan"),
    ],
)
def test_the_model_orders_plans_as_the_simulation_does(benchmark, case):
    found = benchmark.compare(benchmark.Case(*case))
    goals = benchmark.GOALS
    assert len(found.times) > 10
    assert benchmark.inverted(found.orders) <= goals["inversions"]
    assert benchmark.regret(found.times) <= goals["regret"]
    assert benchmark.median_error(found.times) <= goals["error"]
    assert case[0] in benchmark.row(found)
    assert "inversions" in benchmark.summary([found])
