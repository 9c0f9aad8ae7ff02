"""Lower bounds of objectives hold for every plan of a design, whatever the chip is made of."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as dt
from dovetail.arrays import Bools, Floats
from dovetail.exploration.resolving import study_of
from dovetail.exploration.scores import Scores

OBJECTIVES = ["step_time", "tokens_per_joule", "tokens_per_dollar", "area"]


def study(base: str, vary: dict[str, list[int]]):
    document = {
        "name": "bounds",
        "jobs": [{"model": "gpt3-1.3b", "seq_len": 1024, "global_batch": 32}],
        "hardware": {"base": base, "vary": vary},
        "cluster": {"chips": 8, "framework": "megatron"},
        "plans": {"context_parallel": [1], "micro_batch": [1], "pipeline_parallel": [1], "zero_stage": [1]},
        "objectives": OBJECTIVES,
    }
    return study_of(document, "bounds.yaml")


@pytest.mark.parametrize(
    ("base", "vary"),
    [
        ("a100-80gb", {"rows": [2, 5, 8], "cols": [16, 256]}),
        ("tpu-v4", {"rows": [16, 128], "cols": [64, 256]}),
        ("h100-sxm", {"rows": [8, 64], "tensor_cores": [264, 528]}),
    ],
)
def test_no_design_takes_less_energy_than_its_floor(base, vary):
    found = study(base, vary)
    codes = np.arange(found.size)
    scores = Scores.of(found, codes)
    for code, chip in enumerate(found.space.chips(codes)):
        best = dt.plan(found.jobs[0].job, found.positions[0].cluster(chip), found.framework, space=found.plans).fastest
        floor = scores.take(np.array([code])).points(np.array([best.step_time_s]))[0]
        assert best.energy_j is not None
        assert floor[1] <= best.energy_j / found.tokens
        assert floor[0] == best.step_time_s


#: Lines of the step time, and what bends.
FORMULAS = [
    ("tokens_per_joule", None),
    ("tokens_per_dollar", None),
    ("tokens_per_s_per_w", None),
    ("area", None),
    ("step_s * cost_usd + energy_j", "line"),
    ("(step_s + 0.1) / cost_usd", "line"),
    ("1 / (step_s * area_mm2 + 3)", "line"),
    ("max(step_s, 0.2) * peak_power_w + step_s", "curve"),
    ("step_s ** 2 * area_mm2", "curve"),
    ("sqrt(step_s * energy_j)", "curve"),
    ("min(tokens_per_s, 1e6) / cost_usd", "curve"),
    ("step_s if tensor_cores > 300 else 3 * step_s + 1", "curve"),
]


def bisected(scores: Scores, front: Floats) -> Floats:
    """The step time from which each candidate is no better than a point, by halving; 0 and infinity are the ends."""

    def beaten(times: Floats) -> Bools:
        return np.asarray((scores.points(times) >= front).all(axis=1))

    low, high = np.full(len(scores.least_j), 1e-12), np.full(len(scores.least_j), 1e12)
    always, never = beaten(low), ~beaten(high)
    for _ in range(40):
        middle = np.sqrt(low * high)
        late = beaten(middle)
        low, high = np.where(late, low, middle), np.where(late, middle, high)
    return np.where(never, np.inf, np.where(always, 0.0, high))


def asked(formula: str, kind: str | None) -> object:
    return formula if kind is None else {"name": "own", "formula": formula}


@pytest.mark.parametrize(("formula", "kind"), FORMULAS)
def test_the_step_time_from_which_a_design_is_beaten(formula, kind):
    document = {
        "name": "latest",
        "jobs": [{"model": "gpt3-1.3b", "seq_len": 1024, "global_batch": 32}],
        "hardware": {"base": "h100-sxm", "vary": {"tensor_cores": [264, 528], "hbm_stacks": [3, 5]}},
        "cluster": {"chips": 8},
        "prices": {"usd_per_kwh": 0.2},
    }
    alone = study_of({**document, "objectives": [asked(formula, kind)]}, "study.yaml")
    both = study_of({**document, "objectives": [asked(formula, kind), "step_time"]}, "study.yaml")
    codes = np.arange(alone.size)
    for found in (alone, both):
        scores = Scores.of(found, codes)
        for step_s in (1e-3, 0.15, 0.2, 0.7, 40.0):
            points = scores.points(np.full(len(codes), step_s))
            latest = scores.latest_s(points[:1])
            expected = bisected(scores, points[0])
            assert latest == pytest.approx(expected, rel=1e-6, abs=1e-11)
            # of several points the one that beats a candidate first counts
            more = scores.latest_s(np.concatenate([points[:1], points[2:3] * 1.5]))
            first = np.minimum(expected, bisected(scores, points[2] * 1.5))
            assert more == pytest.approx(first, rel=1e-6, abs=1e-11)
    assert (Scores.of(alone, codes).latest_s(np.zeros((0, 1))) == np.inf).all()
