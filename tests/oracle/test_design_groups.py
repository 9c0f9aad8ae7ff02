"""Groups of designs: more of a variable never makes a step longer, and studies by groups find what trying all finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_studies import random_study
from study_brute_force import every_design
from test_explore import WRITTEN, check

import dovetail as dt
from dovetail.documents import to_yaml
from dovetail.exploration import group_drive, groups
from dovetail.exploration import study as study_module
from dovetail.exploration.executors import EXECUTORS
from dovetail.exploration.group_drive import GroupDrive
from dovetail.exploration.groups import best_cluster, faster_with_more, groupable
from dovetail.exploration.resolved import study_of
from dovetail.exploration.result import StudyResult
from dovetail.exploration.study import Study
from dovetail.plans.space import Space
from dovetail.step.evaluate import evaluate

#: Rounding of sums taken in another order.
ROUNDING = 1e-9


@pytest.fixture(autouse=True)
def by_groups(monkeypatch) -> None:
    """Small plan spaces too are taken for too many to profile."""
    monkeypatch.setattr(groups, "MOST_PROFILED", 0)


def explored(study: dict[str, Any], folder: Path, **search: float) -> StudyResult:
    path = folder / "study.yaml"
    path.write_text(to_yaml({**study, "search": {**study.get("search", {}), **search}}))
    return Study.load(path).run()


@pytest.mark.parametrize(
    "objectives",
    [
        ("step_time", "area"),
        *(
            pytest.param(objectives, marks=pytest.mark.slow)
            for objectives in (("step_time",), ("tokens_per_dollar",), ("area", "step_time", "tokens_per_joule"))
        ),
    ],
)
def test_the_front_is_that_of_all_designs(objectives, tmp_path):
    study = {**WRITTEN, "objectives": list(objectives)}
    result = explored(study, tmp_path)
    assert result.document["counts"]["groups"] > 0
    check(study, every_design(study), result)


@pytest.mark.parametrize("seed", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in range(30) if n != 2)])
def test_random_studies_are_answered_as_by_trying_all_designs(seed, tmp_path):
    study = random_study(seed, 24)
    check(study, every_design(study), explored(study, tmp_path))


@pytest.mark.slow
def test_a_gap_saves_searches_and_holds(tmp_path):
    study = {**WRITTEN, "objectives": ["step_time"]}
    exact, within = explored(study, tmp_path), explored(study, tmp_path, gap=0.2)
    best_s = exact.document["best"]["objectives"]["step_time"]
    found_s, bound_s = within.document["best"]["objectives"]["step_time"], within.certificate["lower_bound"]
    assert found_s / 1.2 * (1 - ROUNDING) <= bound_s <= best_s <= found_s
    assert within.certificate["gap"] == pytest.approx(1 - bound_s / found_s)
    work = [sum(each.document["counts"][name] for name in ("groups", "searched")) for each in (exact, within)]
    assert work[1] < work[0]


#: Every kind of value that is better when larger, on chips of several kinds whose cores work on one operator at a time.
MORE: dict[str, dict[str, list[Any]]] = {
    "h100-sxm": {
        "tensor_cores": [132, 264, 396, 528, 1056],
        "vector_lanes": [64, 128, 256],
        "clock_hz": ["0.9 GHz", "1.4 GHz", "1.9 GHz"],
        "shared_sram_bytes": ["8 MiB", "20 MiB", "50 MiB", "200 MiB"],
        "hbm_stacks": [1, 2, 5, 8],
        "link_ports": [1, 4, 18, 36],
        "link_port_bytes_per_s": ["5 GB/s", "25 GB/s"],
    },
    "mi300x": {"tensor_cores": [608, 1216], "clock_hz": ["1 GHz", "2.1 GHz"], "hbm_stacks": [2, 8]},
    "tpu-v5p": {"clock_hz": ["0.9 GHz", "1.75 GHz"], "hbm_stacks": [1, 3, 6], "link_ports": [1, 6, 12]},
}
PLANS = [
    Space(tensor_parallel=(8,), recompute=("selective",)),
    Space(tensor_parallel=(2,), pipeline_parallel=(2,), virtual_stages=(1,), recompute=("none",)),
    Space(tensor_parallel=(1,), pipeline_parallel=(4,), recompute=("full",), zero_stage=(1,)),
    Space(context_parallel=(2,), pipeline_parallel=(2,), micro_batch=(1,)),
    Space(pipeline_parallel=(1,), zero_stage=(3,)),
]


@pytest.mark.parametrize("model", ["llama-3.2-1b", pytest.param("deepseek-v2-lite", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "base", ["h100-sxm", *(pytest.param(b, marks=pytest.mark.slow) for b in ("mi300x", "tpu-v5p"))]
)
def test_no_plan_is_slower_on_the_best_of_a_group(base, model):
    """One variable at a time, and several together: of the same plan, seconds and whether it fits."""
    document: dict[str, Any] = {
        "name": "more",
        "jobs": [{"model": model, "seq_len": 2048, "global_batch": 64}],
        "hardware": {"base": base, "vary": MORE[base]} | ({"shares_cores": False} if base == "tpu-v5p" else {}),
        "cluster": {"chips": 16, "framework": "megatron"},
    }
    study = study_of(document, "more")
    assert groupable(study.space)
    assert set(faster_with_more(study.space)) == set(MORE[base])
    job, rng = study.jobs[0].job, np.random.default_rng(7)
    best = study.cluster_of(study.space.size - 1)
    answers = [dt.plan(job, best, study.framework, space=space) for space in PLANS]
    plans = [answer.plan for answer in answers if answer.evaluation is not None]
    assert len(plans) >= 3
    changed = 0
    for _ in range(25):
        codes = np.unique(rng.integers(study.space.size, size=int(rng.integers(1, 4))))
        above = best_cluster(study, codes)
        for plan in plans:
            bounding = evaluate(plan, job, above, study.framework)
            for code in codes.tolist():
                own = evaluate(plan, job, study.cluster_of(code), study.framework)
                assert bounding.step_time_s <= own.step_time_s * (1 + ROUNDING)
                assert bounding.fits or not own.fits
                changed += bounding.step_time_s < own.step_time_s * 0.99
    assert changed > 20, "they differ"


class Shuffled:
    """An executor of several workers that end in any order."""

    workers = in_flight = 3

    def __init__(self, work: Any, *_: Any) -> None:
        self._work, self._tasks, self._rng = work, list[tuple[int, Any]](), np.random.default_rng(3)

    def submit(self, number: int, task: Any) -> None:
        """Takes a task."""
        self._tasks.append((number, task))

    def take(self) -> tuple[int, Any]:
        """Any of those it has."""
        number, task = self._tasks.pop(int(self._rng.integers(len(self._tasks))))
        return number, self._work(task)

    def close(self) -> None:
        """Forgets what is left."""
        self._tasks.clear()


def test_the_same_bytes_in_any_order_and_after_a_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(group_drive, "WINDOW", 3)
    path = tmp_path / "study.yaml"
    path.write_text(to_yaml({**WRITTEN, "objectives": ["step_time"]}))
    study = Study.load(path)
    assert study_module._drive(study) is GroupDrive  # pyright: ignore[reportPrivateUsage]
    whole = study.run(tmp_path / "whole")

    def stop(progress: Any) -> None:
        if progress.level == "search" and progress.batches == 4:
            raise KeyboardInterrupt

    partly = study.run(tmp_path / "stopped", listener=stop)
    assert partly.stopped == "interrupt"
    assert partly.certificate["status"] == "feasible"
    assert study.run(tmp_path / "stopped", resume=True).document == whole.document
    monkeypatch.setitem(EXECUTORS, "inline", Shuffled)
    study.run(tmp_path / "shuffled")
    files = [_files(tmp_path / name) for name in ("whole", "stopped", "shuffled")]
    assert files[0] == files[1] == files[2]


def _files(run: Path) -> dict[str, bytes]:
    apart = ("timing.json", "progress.json", ".lock")
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name not in apart}
