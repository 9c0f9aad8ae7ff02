"""PHAZE's order of designs against its definition, and sampled studies with it and with hardware chosen first."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dovetail as dt
from dovetail.documents import to_yaml
from dovetail.errors import InputError
from dovetail.exploration.area_groups import GROUP_MM2, GROUPS, AreaGroups
from dovetail.exploration.operator_score import operator_score
from dovetail.exploration.study import Study
from dovetail.hardware.catalogue import space_from

GRID = dt.hardware.space("phaze-grid")


def groups_of(space) -> list[list[int]]:
    """Designs by area range, the largest first; in a range the last first."""
    (batch,) = space.batches()
    areas = space.values("phaze_area_mm2", batch.designs)
    groups: dict[int, list[int]] = {}
    for index, area in zip(batch.index.tolist(), areas.tolist(), strict=True):
        groups.setdefault(math.floor(area / GROUP_MM2), []).append(index)
    return [sorted(groups[key], reverse=True) for key in sorted(groups, reverse=True)]


def expected(groups: list[list[int]], seconds: NDArray[np.float64]) -> list[int]:
    """One group after the other, until the best of the last five never gets better."""
    asked: list[int] = []
    bests: list[float] = []
    for group in groups:
        asked += group
        bests.append(min(seconds[design] for design in group))
        last = bests[-GROUPS:]
        if len(last) == GROUPS and all(a <= b for a, b in pairwise(last)):
            break
    return asked


@pytest.mark.parametrize("seed", range(8))
def test_designs_come_by_area_until_smaller_ones_have_stopped_to_gain(seed):
    random = np.random.default_rng(seed)
    seconds = np.linspace(random.uniform(0.2, 2.0), 1.0, GRID.size)[::-1] + random.uniform(0, 0.3, GRID.size)
    seconds[random.random(GRID.size) < 0.2] = math.inf
    sampler, asked = AreaGroups(GRID, 1, 0), list[int]()
    while len(some := sampler.ask(int(random.integers(1, 40)))):
        asked += some.tolist()
        sampler.tell(some, seconds[some][:, None])
    assert asked == expected(groups_of(GRID), seconds)
    assert len(asked) < 29_360


def test_designs_told_before_are_skipped_and_nothing_is_asked_twice():
    first = AreaGroups(GRID, 1, 0)
    some = first.ask(10**6)
    assert sum(map(len, groups_of(GRID)[:GROUPS])) == len(some)
    assert len(first.ask(5)) == 0
    resumed = AreaGroups(GRID, 1, 0)
    for sampler in (first, resumed):
        sampler.tell(some, np.linspace(2, 1, len(some))[:, None])
    assert np.array_equal(first.ask(10), resumed.ask(10))


def test_a_space_too_large_to_order_is_refused():
    clocks = {"range": ["1 GHz", "2 GHz"], "step": "2 kHz"}
    document = {"name": "many", "base": "tpu-v4", "vary": {"clock_hz": clocks, "hbm_stacks": {"range": [1, 20]}}}
    with pytest.raises(InputError, match="phaze orders every design by area"):
        AreaGroups(space_from(document, "many"), 1, 0)


STUDY: dict[str, Any] = {
    "name": "sampled",
    "jobs": [{"model": "gpt3-1.3b", "seq_len": 512, "global_batch": 16}],
    "hardware": {
        "base": "tpu-v4",
        "vary": {"tensor_cores": [2, 4, 8], "rows": [64, 128], "hbm_stacks": [4, 6], "link_ports": [2, 6]},
    },
    "cluster": {"chips": 8, "framework": "ideal"},
    "plans": {
        "tensor_parallel": [1],
        "context_parallel": [1],
        "pipeline_parallel": [1],
        "micro_batch": [1],
        "zero_stage": [0],
        "recompute": ["none"],
        "sequence_parallel": [False],
    },
}


def load(folder, method: str, evaluations: int) -> Study:
    search = {"method": method, "evaluations": evaluations}
    (folder / "study.yaml").write_text(to_yaml({**STUDY, "search": search}))
    return Study.load(folder / "study.yaml")


@pytest.mark.parametrize("method", ["phaze", "hardware_first"])
def test_the_same_study_gives_the_same_bytes_and_its_bound_holds(method, tmp_path):
    study = load(tmp_path, method, 12)
    runs = [study.run(tmp_path / name) for name in ("one", "other")]
    results = [(tmp_path / name / "result.json").read_bytes() for name in ("one", "other")]
    assert results[0] == results[1]
    best = load(tmp_path, "exact", 1).run().pareto_front()[0]["objectives"]["step_time"]
    assert runs[0].certificate["lower_bound"] <= best * (1 + 1e-9)
    assert runs[0].pareto_front()[0]["objectives"]["step_time"] >= best * (1 - 1e-9)


def test_phaze_evaluates_every_design_it_asks_for(tmp_path):
    counts = load(tmp_path, "phaze", 6).run().document["counts"]
    assert counts["sampled"] == counts["evaluated"] >= GROUPS


def test_the_score_of_hardware_knows_of_no_network_and_no_memory(tmp_path):
    study = load(tmp_path, "hardware_first", 1)
    score = operator_score(study)
    designs = study.space.designs(range(study.space.size))
    seconds = score(np.arange(study.space.size))
    key = np.stack([designs.value(name) for name in ("tensor_cores", "rows", "hbm_stacks")], axis=1)
    for kind in np.unique(key, axis=0):
        alike = seconds[(key == kind).all(axis=1)]
        assert len(alike) == 2  # links
        assert alike[0] == alike[1] > 0
    at_most_s = seconds[(key[:, 0] == 8) & (key[:, 1] == 128)]
    assert at_most_s.max() <= seconds.max()
