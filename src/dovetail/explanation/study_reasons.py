"""Why a study answers as it does: what came next after a design, what it is short of, and what more of it would gain.

Everything follows from the run and its result, and from a limited number of plan searches around them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from dovetail.explanation.asked_study import AskedStudy
from dovetail.explanation.job_bottleneck import JobBottleneck, job_bottleneck
from dovetail.explanation.limit_use import LimitUse, limit_uses
from dovetail.explanation.runner_ups import RunnerUps, runner_ups
from dovetail.explanation.variable_gains import OnProgress, Planner, VariableGains, with_stops
from dovetail.exploration.memory import InMemoryStore
from dovetail.exploration.records import to_json
from dovetail.exploration.result import StudyResult
from dovetail.exploration.run_rows import Store
from dovetail.exploration.store import RunStore
from dovetail.frozen import frozen

#: Plan searches around the best designs of a study, if nothing else is asked for.
MOST_SEARCHES = 200


@frozen
class PointReasons:
    """Those of one best design."""

    #: as the result names it
    numbers: Mapping[str, Any]
    objectives: Mapping[str, float]
    #: estimates of the chip or wafer
    silicon: Mapping[str, float]
    runner_ups: RunnerUps
    gains: VariableGains
    jobs: Mapping[str, JobBottleneck]
    #: estimate → part of the chip → what it takes; empty without a technology
    parts: Mapping[str, Mapping[str, float]]
    limits: tuple[LimitUse, ...]

    @property
    def as_json(self) -> dict[str, Any]:
        """Its fields, with those that name the design among them."""
        return {
            **self.numbers,
            "objectives": dict(self.objectives),
            "silicon": dict(self.silicon),
            "runner_ups": self.runner_ups.as_json,
            "gains": self.gains.as_json,
            "jobs": {name: job.as_json for name, job in self.jobs.items()},
            "parts": {name: dict(parts) for name, parts in self.parts.items()},
            "limits": [limit.as_json for limit in self.limits],
        }


@frozen
class StudyReasons:
    """Those of the best design, or of every point of the Pareto front in the order of its first objective."""

    study: str
    points: tuple[PointReasons, ...]
    #: plan searches that this took
    searches: int
    #: of the result these are the reasons of
    result_sha256: str
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def as_json(self) -> dict[str, Any]:
        """Its fields."""
        return {
            "study": self.study,
            "points": [point.as_json for point in self.points],
            "searches": self.searches,
            "result_sha256": self.result_sha256,
            "provenance": dict(self.provenance),
        }


def study_reasons(
    result: StudyResult, *, most_searches: int = MOST_SEARCHES, on_progress: OnProgress | None = None
) -> StudyReasons:
    """The reasons of a result."""
    asked, points = AskedStudy.of(result), result.ordered_points()
    store: Store = InMemoryStore() if result.run_dir is None else RunStore.view(result.run_dir)
    codes, figures = asked.evaluated(store)
    # searches of free mappings that a study stops early find less than one alone
    known = {} if asked.study.mapping else dict(zip(codes.tolist(), figures, strict=True))
    planner = Planner(asked, known, most_searches, on_progress)
    gains = {n: planner.gains(points[n]) for n in _order(asked, points)}
    told = tuple(_point(planner, store, point, gains[n]) for n, point in enumerate(points))
    digest = digest_of(result.document)
    return StudyReasons(result.study.name, told, planner.searches, digest, result.document.get("provenance", {}))


def digest_of(document: Mapping[str, Any]) -> str:
    """That of a result, by which reasons say whose they are."""
    return hashlib.sha256(to_json(document)).hexdigest()


def _order(asked: AskedStudy, points: Sequence[Mapping[str, Any]]) -> list[int]:
    """Points with the best of each objective first: the number of searches is limited."""
    if not points:
        return []
    figures = np.stack([asked.figures(point) for point in points])
    return list(dict.fromkeys([*figures.argmin(axis=0).tolist(), *range(len(points))]))


def _point(planner: Planner, store: Store, point: Mapping[str, Any], gains: VariableGains) -> PointReasons:
    asked, study = planner.asked, planner.asked.study
    code = study.code_of(point)
    position, design = study.located(code)
    designs, cluster = position.space.designs([design]), study.cluster_of(code)
    estimated = position.space.formulas.technology is not None
    parts = position.space.silicon_parts(designs) if estimated else {}
    return PointReasons(
        study.numbers_of(code),
        asked.shown(asked.figures(point)),
        point["silicon"],
        runner_ups(planner, store, point),
        gains,
        {
            job.name: job_bottleneck(asked.result.plan_of(point, job.name), job.job, cluster, study.framework)
            for job in study.jobs
        },
        {
            figure: {name: float(np.ravel(value)[0]) for name, value in by_part.items()}
            for figure, by_part in parts.items()
        },
        with_stops(limit_uses(study, position, designs), gains),
    )
