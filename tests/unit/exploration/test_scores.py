"""Lower bounds of objectives hold for every plan of a design, whatever the chip is made of."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as dt
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
