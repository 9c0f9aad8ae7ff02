"""Designs that others beat: more of a variable never makes a step longer, and studies find what trying all finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from study_brute_force import every_design
from test_explore import check

import dovetail as dt
from dovetail.documents import to_yaml
from dovetail.exploration import drive
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.resolving import study_of
from dovetail.exploration.study import Study
from dovetail.exploration.unbeaten import faster_with_more, unbeaten
from dovetail.hardware import Cluster
from dovetail.plans.space import Space
from dovetail.step.evaluate import evaluate

#: Rounding of sums taken in another order.
ROUNDING = 1e-9
SMALL: dict[str, Any] = {
    "name": "similar",
    "jobs": [
        {"model": "gpt2-1.5b", "seq_len": 1024, "global_batch": 64},
        {"model": "gpt3-1.3b", "seq_len": 2048, "global_batch": 32},
    ],
    "hardware": {
        "base": "h100-sxm",
        "vary": {
            "vector_cores": [66, 132],
            "tensor_cores": [264, 528, 660],
            "hbm_stacks": [3, 5, 6],
            "link_ports": [9, 18],
        },
    },
    "cluster": {"chips": 16, "framework": "megatron"},
    "plans": {"tensor_parallel": [1, 2], "context_parallel": [1], "pipeline_parallel": [1, 2], "micro_batch": [1]},
    "objectives": ["step_time"],
}
LIMITS = {"area_mm2": 880, "power_w": 690}


def corner(study: ResolvedStudy, codes: Any) -> Cluster:
    """A cluster of a chip with the most of every variable of some designs."""
    space = study.space
    designs = space.designs(codes)
    most = {name: np.array([np.max(designs.value(name))]) for name in space.variables}
    (chip,) = space.chips_of(space.fixed.varied(most), ["corner"], ["corner"])
    return study.positions[0].cluster(chip)


@pytest.mark.parametrize(
    "changed",
    [
        {"limits": LIMITS},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"limits": LIMITS, "over_jobs": {"mean": "geometric"}}, marks=pytest.mark.slow),
        pytest.param({"limits": LIMITS, "search": {"gap": 0.0, "window": 1, "batch": 1}}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("profiles", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_best_is_that_of_all_designs(changed, profiles, tmp_path, monkeypatch):
    study = {**SMALL, **changed}
    if not profiles:
        monkeypatch.setattr(drive, "profiles_pay", lambda _: False)
    path = tmp_path / "study.yaml"
    path.write_text(to_yaml(study))
    result = Study.load(path).run()
    counts = result.document["counts"]
    assert counts["unbeaten"] < counts["kept"]
    assert ("profile" in counts) == profiles
    check(study, every_design(study), result)


def test_a_design_is_unbeaten_if_no_neighbour_has_more():
    study = study_of({**SMALL, "limits": LIMITS}, "s")
    space = study.space
    assert set(faster_with_more(space)) == {"tensor_cores", "hbm_stacks", "link_ports"}
    within = np.nonzero(space.keeps(np.arange(space.size)))[0]
    designs = space.designs(within)
    values = np.stack([np.broadcast_to(designs.value(name), len(within)) for name in space.variables], axis=1)
    expected: list[bool] = []
    for one in values.tolist():
        more = [other for other in values.tolist() if other[0] == one[0] and other != one]
        beaten = any(
            sum(a != b for a, b in zip(one, other, strict=True)) == 1
            and all(a <= b for a, b in zip(one, other, strict=True))
            for other in more
        )
        expected.append(not beaten)
    found = unbeaten(space, within).tolist()
    # limits that grow with every variable: whoever is beaten from afar is beaten by a neighbour
    assert found == expected
    assert 0 < sum(found) < len(found)


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
def test_no_plan_is_slower_on_the_corner_of_a_group(base, model):
    """One variable at a time, and several together: of the same plan, seconds and whether it fits."""
    document: dict[str, Any] = {
        "name": "more",
        "jobs": [{"model": model, "seq_len": 2048, "global_batch": 64}],
        "hardware": {"base": base, "vary": MORE[base]} | ({"shares_cores": False} if base == "tpu-v5p" else {}),
        "cluster": {"chips": 16, "framework": "megatron"},
    }
    study = study_of(document, "more")
    assert set(faster_with_more(study.space)) == set(MORE[base])
    job, rng = study.jobs[0].job, np.random.default_rng(7)
    best = study.cluster_of(study.space.size - 1)
    answers = [dt.plan(job, best, study.framework, space=space) for space in PLANS]
    plans = [answer.plan for answer in answers if answer.evaluation is not None]
    assert len(plans) >= 3
    changed = 0
    for _ in range(25):
        codes = np.unique(rng.integers(study.space.size, size=int(rng.integers(1, 4))))
        above = corner(study, codes)
        for plan in plans:
            bounding = evaluate(plan, job, above, study.framework)
            for code in codes.tolist():
                own = evaluate(plan, job, study.cluster_of(code), study.framework)
                assert bounding.step_time_s <= own.step_time_s * (1 + ROUNDING)
                assert bounding.fits or not own.fits
                changed += bounding.step_time_s < own.step_time_s * 0.99
    assert changed > 20, "they differ"
