"""A search that ends early claims no more than it has been through: counts add up, and its bound holds."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from dovetail import compilation, hardware, models
from dovetail.compilation.progress import CompilationProgress
from dovetail.models import Job
from dovetail.search import SearchProgress, Space, best_first, open_pairs, plan, progress
from dovetail.search.time_limit import TimeLimit

JOB = Job(models.load("llama-3.1-8b"), 8192, 64)
CLUSTER = hardware.cluster("h100-sxm", 32)
QUESTIONS = {"megatron": (JOB, CLUSTER), "ideal": (Job(JOB.model, 8192, 16), hardware.cluster("h100-sxm", 8))}
SPACES = {
    "megatron": Space(context_parallel=(1, 2), micro_batch=(1, 2), recompute=("none", "full"), virtual_stages=(1, 2)),
    # eight chips: partitions of some plans stay open to the end
    "ideal": Space(
        tensor_parallel=(1, 2), context_parallel=(1,), pipeline_parallel=(2, 4), micro_batch=(1, 2),
        virtual_stages=(1,), pipeline_schedule=("1f1b",), zero_stage=(0, 1),
    ),
}  # fmt: skip


def in_small_parts(patched: pytest.MonkeyPatch) -> None:
    """Reports wherever it can, and has many sets of plans open at once, as large searches do."""
    patched.setattr(progress, "REPORT_EVERY_S", 0.0)
    patched.setattr(open_pairs, "FIRST_ROUND", 2)
    patched.setattr(open_pairs, "FEW", 0)
    patched.setattr(best_first, "OPENED", 8)
    patched.setattr(best_first, "BATCH", 2)


@pytest.fixture(scope="module")
def whole():
    """The whole search of every space, and all that it reported."""
    found = {}
    with pytest.MonkeyPatch.context() as patched:
        in_small_parts(patched)
        for framework, space in SPACES.items():
            reports: list[SearchProgress] = []
            answer = plan(*QUESTIONS[framework], framework, space=space, on_progress=reports.append)
            found[framework] = answer, reports
    return found


def adds_up(counts) -> bool:
    parts = counts.pruned, counts.infeasible, counts.evaluated, counts.open
    return min(parts) >= 0 and sum(parts) == counts.counted


@pytest.mark.parametrize("framework", SPACES)
def test_every_report_holds(whole, framework):
    answer, reports = whole[framework]
    best_s = answer.certificate.lower_bound_s
    assert len(reports) > 15
    for report in reports:
        assert adds_up(report)
        assert report.lower_bound_s <= answer.step_time_s * (1 + 1e-9)
        assert (report.plan is None) == (report.step_time_s is None) == (report.gap is None)
        if report.step_time_s is not None:
            assert report.step_time_s >= best_s * (1 - 1e-9)
            assert report.gap == pytest.approx(1 - report.lower_bound_s / report.step_time_s)
    bounds = [report.lower_bound_s for report in reports]
    assert max(bounds) > bounds[0]
    assert answer.certificate.open == 0
    assert adds_up(answer.certificate)
    # once the first rounds have begun most plans are still open, and none comes back
    opened = [report.open for report in reports if report.counted]
    assert opened == sorted(opened, reverse=True)


@pytest.mark.parametrize("part", [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97])
@pytest.mark.parametrize("framework", SPACES)
def test_wherever_a_search_ends_its_claims_hold(whole, framework, part, monkeypatch):
    """At any of the places where it looks at the clock."""
    in_small_parts(monkeypatch)
    full, reports = whole[framework]
    at, heard = int(part * len(reports)), [0]

    def ends(_: SearchProgress) -> bool:
        heard[0] += 1
        return heard[0] > at

    answer = plan(*QUESTIONS[framework], framework, space=SPACES[framework], on_progress=ends)
    certificate = answer.certificate
    assert adds_up(certificate)
    assert certificate.lower_bound_s is not None
    assert certificate.lower_bound_s <= full.step_time_s * (1 + 1e-9)
    if answer.evaluation is None:
        assert (certificate.status, certificate.gap) == ("feasible", None)
    else:
        assert answer.step_time_s >= full.certificate.lower_bound_s * (1 - 1e-9)
        if certificate.status == "optimal":
            assert answer.step_time_s == pytest.approx(full.step_time_s, rel=1e-8)
    if certificate.counted and certificate.status == "feasible" and framework == "megatron":
        assert certificate.open + certificate.evaluated > 0


def test_a_clock_that_runs_out_leaves_partitions_open(whole, monkeypatch):
    """Without a listener, at every place from where partitions are solved on."""
    in_small_parts(monkeypatch)
    full, reports = whole["ideal"]
    bounds = []
    for at in range(len(reports) // 3, len(reports), 7):
        asked = [0]

        def over(_: TimeLimit, asked: list[int] = asked, at: int = at) -> bool:
            asked[0] += 1
            return asked[0] > at

        monkeypatch.setattr(TimeLimit, "over", property(over))
        answer = plan(*QUESTIONS["ideal"], "ideal", space=SPACES["ideal"])
        assert adds_up(answer.certificate)
        assert answer.certificate.lower_bound_s <= full.step_time_s * (1 + 1e-9)
        bounds.append(answer.certificate.lower_bound_s)
    assert bounds == sorted(bounds)
    assert bounds[0] < full.step_time_s * (1 - 1e-6)


def test_a_first_plan_comes_soon(whole):
    """Before any plan was counted as evaluated or pruned by another."""
    _, reports = whole["megatron"]
    first = next(report for report in reports if report.plan is not None)
    assert first.counted > 0
    assert first.evaluated == 0


def test_an_expired_limit_proves_nothing():
    answer = plan(JOB, CLUSTER, space=SPACES["megatron"], time_limit_s=0)
    assert answer.evaluation is None
    assert answer.certificate.status == "feasible"
    assert answer.certificate.open == answer.certificate.counted - answer.certificate.infeasible > 0
    assert adds_up(answer.certificate)


def test_simulated_plans_that_were_not_replayed_are_open():
    few = Space(tensor_parallel=(2,), context_parallel=(1,), recompute=("none", "full"), virtual_stages=(1,))
    answer = plan(Job(JOB.model, 2048, 8), hardware.cluster("h100-sxm", 8), space=few, simulate_top=2)
    assert adds_up(answer.certificate)
    assert answer.certificate.evaluated == len(answer.simulated)
    assert (answer.certificate.open > 0) == (answer.certificate.status == "feasible")


def test_a_listener_is_told_a_few_times_a_second(whole):
    """With as many places to report from, far fewer reports."""
    moments: list[float] = []
    plan(JOB, CLUSTER, space=SPACES["megatron"], on_progress=lambda _: moments.append(time.monotonic()))
    between = sorted(later - earlier for earlier, later in pairwise(moments))
    # one report may come early: that of the first plan
    assert all(seconds >= 0.99 * progress.REPORT_EVERY_S for seconds in between[2:])


def test_compiling_does_not_count(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    limit, compiling = TimeLimit(5.0), CompilationProgress()
    monkeypatch.setattr("dovetail.compilation.progress.PROGRESS", compiling)
    clock[0] += 60
    assert not limit.over, "it has not begun"
    limit.start()
    clock[0] += 4
    compiling.begin("kernel", 2)
    clock[0] += 10
    compiling.begin("kernel", 2)
    clock[0] += 10
    compiling.end(counts=True)
    compiling.end(counts=True)
    assert compiling.seconds == 20
    assert not limit.over
    clock[0] += 1
    assert limit.over
    unlimited = TimeLimit()
    unlimited.start()
    assert not unlimited.over
    unlimited.end()
    assert unlimited.over


def test_kernels_that_compile_are_noticed(monkeypatch, tmp_path):
    from numba.core import config

    from dovetail.compilation import compiled

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    told: list[compilation.Compiling] = []
    before = compilation.compiling_s()
    compilation.watch(told.append)
    try:
        assert compiled(lambda x: x + 1)(1) == 2
    finally:
        compilation.watch(None)
    assert compilation.compiling_s() > before
    assert [(each.done, each.total) for each in told] == [(0, 1), (1, 1)]
