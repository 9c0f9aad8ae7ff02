"""Every study of `studies/`, cut to one or two designs and few plans, runs with the package alone and is proven."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dovetail import models
from dovetail.arrays import TOLERANCE
from dovetail.exploration.fidelity import Worker
from dovetail.exploration.resolved import StudyJob
from dovetail.exploration.study import Study
from dovetail.hardware.design_space.space import Axis, DesignSpace
from dovetail.models import Model
from dovetail.models.catalogue import document_of
from dovetail.step.evaluate import evaluate

STUDIES = sorted((Path(__file__).parents[3] / "studies").glob("*.yaml"))

#: Designs drawn, of which the most promising is kept with a neighbour.
DRAWN = 500


def small(study: Study) -> Study:
    """The same study with the most promising of some designs, its neighbour on the first axis, and micro-batches of 1.

    A wafer is cut further: the smallest grid, two layers and two sequences.
    """
    if study.of_wafers:
        grid = {"grid_rows": slice(1), "grid_cols": slice(2)}
        study = replaced(study, cut(study.space, grid))
        study = replace(study, jobs=tuple(map(two_layers, study.jobs)))
    jobs = study.jobs[:2]
    weights = tuple(job.weight / sum(each.weight for each in jobs) for job in jobs)
    study = replace(study, jobs=jobs, mean=replace(study.mean, weights=weights, units=(1.0,) * len(jobs)))
    sample = study.space.sample(DRAWN, seed=0)
    weighted_s = study.mean.of(Worker(study).physical_of(0, sample.index))
    places = np.unravel_index(int(sample.index[weighted_s.argmin()]), [len(axis) for axis in study.space.axes])
    kept = {axis.name: slice(place, place + 1) for axis, place in zip(study.space.axes, map(int, places), strict=True)}
    first = study.space.axes[0].name
    kept[first] = slice(max(kept[first].start - 1, 0), kept[first].stop)
    study = replaced(study, cut(study.space, kept))
    plans = replace(study.plans, micro_batch=(1,))
    if not study.of_wafers:
        tensor = 1 if study.name.startswith("phaze") else 8  # GPT-2 XL has 25 heads
        plans = replace(plans, tensor_parallel=(tensor,), pipeline_parallel=(8, 32))
    if study.name in ("portfolio", "chip-2026"):
        plans = replace(plans, pipeline_schedule=("1f1b",), context_parallel=(1,), zero_stage=(1,), recompute=("full",))
    search = study.search.model_copy(update={"simulate_top": None, "gap": 0.0})
    mapping = study.mapping and replace(study.mapping, work_limit=1)
    return replace(study, plans=plans, search=search, mapping=mapping)


def two_layers(job: StudyJob) -> StudyJob:
    """The same job with two of its layers, and two sequences a step."""
    document = document_of(models.load("gpt3-1.3b"))
    model = Model.model_validate({**document, "layers": [{**document["layers"][0], "repeat": 2}]})
    return replace(job, job=replace(job.job, model=model, global_batch=2))


def cut(space: DesignSpace, kept: dict[str, slice]) -> DesignSpace:
    """A space with some values of the axes named."""
    whole = slice(None)
    axes = [
        Axis(axis.name, {name: column[kept.get(axis.name, whole)] for name, column in axis.values.items()})
        for axis in space.axes
    ]
    return replace(space, axes=tuple(axes))


def replaced(study: Study, space: DesignSpace) -> Study:
    """A study with other designs, the same for every number of chips."""
    return replace(study, positions=tuple(replace(position, space=space) for position in study.explored))


def case(path: Path):
    """A study; those that take seconds are slow: of most wafers, half of Megatron's models, and the largest spaces."""
    slow = path.stem.startswith("wafer-gpt3-") or (path.stem.startswith("phaze-mega") and "torus" not in path.stem)
    slow |= path.stem in ("chip-2026", "million", "portfolio")
    return pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * slow)


@pytest.mark.parametrize("path", [case(path) for path in STUDIES])
def test_a_study_of_the_repository_runs(path):
    assert "../" not in path.read_text(encoding="utf-8"), "it needs a file outside the repository"
    study = small(Study.load(path))
    result = study.run()
    # of free mappings one skeleton is searched here, which proves little
    assert result.certificate["status"] == ("optimal" if study.mapping is None else "feasible")
    assert result.pareto_front()
    for point in result.pareto_front():
        assert study.space.keeps([point["design"]]).all()
        cluster = study.cluster_of(study.code_of(point))
        for job in study.jobs:
            of_job = point["jobs"][job.name]
            assert 0 < of_job["lower_bound_s"] <= of_job["step_time_s"] * (1 + TOLERANCE)
            plan = result.plan_of(point, job.name)
            evaluated_s = evaluate(plan, job.job, cluster, study.framework).step_time_s
            assert evaluated_s == pytest.approx(of_job["step_time_s"], rel=1e-9)
