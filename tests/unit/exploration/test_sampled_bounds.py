"""What a sampled study says of the designs it never saw."""

from __future__ import annotations

import pytest

from dovetail.exploration.resolving import study_of
from dovetail.exploration.study import Study

PLANS = {"context_parallel": [1], "micro_batch": [1], "pipeline_parallel": [1], "tensor_parallel": [1, 2]}


def sampled(hardware, objective: str, seed: int, evaluations: int):
    document = {
        "name": "sampled",
        "jobs": [{"model": "gpt3-1.3b", "seq_len": 512, "global_batch": 16}],
        "hardware": hardware,
        "cluster": {"chips": 8, "framework": "ideal"},
        "plans": {**PLANS, "recompute": ["none"], "zero_stage": [0]},
        "objectives": [objective],
        "search": {"method": "random", "evaluations": evaluations},
        "seed": seed,
    }
    found = study_of(document, "study.yaml")
    return Study(**{name: getattr(found, name) for name in found.__dataclass_fields__}).run()


def test_a_design_without_stacks_may_be_the_best_of_all():
    hardware = {
        "base": "wse-3",
        "set": {"hbm_stack_bytes_per_s": "5 GB/s", "hbm_stack_bytes": "64 GiB"},
        "vary": {"hbm_stacks": [0, 1], "clock_hz": ["0.9 GHz", "1.1 GHz"]},
    }
    best = sampled(hardware, "step_time", 0, 4).pareto_front()[0]["objectives"]["step_time"]
    for seed in range(4):
        certificate = sampled(hardware, "step_time", seed, 1).certificate
        assert certificate["lower_bound"] <= best
        assert certificate["status"] == "feasible"


@pytest.mark.parametrize("objective", ["tokens_per_joule", "tokens_per_dollar", "area"])
def test_what_nothing_is_known_of_has_no_bound(objective):
    result = sampled({"base": "tpu-v4", "vary": {"rows": [64, 128], "hbm_stacks": [2, 4]}}, objective, 0, 2)
    assert result.certificate["status"] == "feasible"
    assert result.certificate["gap"] == 1
    assert result.certificate["lower_bound"] in (None, 0)
