"""The result of a study: the best design or the Pareto front with their plans, the certificate and counts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from dovetail.arrays import TOLERANCE, Floats
from dovetail.digests import STUDY_PACKAGES, package_provenance
from dovetail.exploration import wafers
from dovetail.exploration.free_mapping import mapping_words
from dovetail.exploration.objective import Objective
from dovetail.exploration.pareto import dominated
from dovetail.exploration.pareto_front import ParetoFront, gap_between
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.scores import Scores
from dovetail.exploration.stopping import Reason
from dovetail.exploration.store import Part, RunStore
from dovetail.frozen import frozen
from dovetail.hardware.design_space.space import DesignSpace
from dovetail.models import Job
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.stated_space import stated
from dovetail.plans.write import plan_document
from dovetail.search.certificate import status_of
from dovetail.step.ties import ratio_interval

#: Estimates listed with a point.
SILICON = ("area_mm2", "peak_power_w", "cost_usd", "system_cost_usd")


@frozen
class StudyResult:
    """The answer of a study, as JSON and by name."""

    study: ResolvedStudy
    document: Mapping[str, Any]
    run_dir: str | None
    #: messages about damaged files in the run directory that were redone
    repairs: tuple[str, ...] = ()
    #: seconds this run took; not part of the answer
    timing: Mapping[str, float] = field(default_factory=dict[str, float])
    #: what ended the study early: the run goes on if it is resumed
    stopped: Reason | None = None

    def pareto_front(self) -> list[dict[str, Any]]:
        """The points of the Pareto front; with one objective only the best."""
        if "front" in self.document:
            return list(self.document["front"])
        best = self.document["best"]
        return [] if best is None else [best]

    def ordered_points(self) -> list[dict[str, Any]]:
        """The same from the best to the worst in the first objective; the nth has the nth folder of plan files."""
        first = self.study.scored[0]
        points, most = self.pareto_front(), first.better == "most"
        return sorted(points, key=lambda point: point["objectives"][first.name], reverse=most)

    @property
    def answered(self) -> ResolvedStudy:
        """The study with step times in the units of the answer, if it is relative to any."""
        units_s: Mapping[str, float] = self.document.get("units_s", {})
        return self.study.in_units(tuple(units_s.values())) if units_s else self.study

    @property
    def certificate(self) -> Mapping[str, Any]:
        """What is proven."""
        return self.document["certificate"]

    def plan_of(self, point: Mapping[str, Any], name: str) -> Plan:
        """The plan of one job on one point's design."""
        job = self._job(name)
        spec = PlanSpec.model_validate(point["jobs"][name]["plan"])
        blocks = job.model.num_layers
        return resolve_plan(spec, chips=point["chips"], global_batch=job.global_batch, num_layers=blocks)

    def plan_file(self, point: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The plan as a plan file, for `dovetail estimate` and other commands."""
        study = self.study
        cluster = study.cluster_of(study.code_of(point))
        return plan_document(self.plan_of(point, name), self._job(name), cluster, study.framework.name)

    def _job(self, name: str) -> Job:
        return next(each.job for each in self.study.jobs if each.name == name)

    def to_pandas(self, level: str = "search") -> Any:
        """The rows of a fidelity level as a pandas data frame."""
        from dovetail.exploration.views import to_pandas

        assert self.run_dir is not None, "a study that is not saved has no tables"
        return to_pandas(RunStore.view(self.run_dir), level)


def result_document(
    study: ResolvedStudy,
    front: ParetoFront,
    searched: Sequence[Part],
    counts: Mapping[str, int],
    unproven: Floats,
    references: Sequence[Part] = (),
) -> dict[str, Any]:
    """The result as JSON; `unproven` are lower bounds of what was never searched, or not to its end."""
    compared = {"references": [_reference(study, part) for part in references]} if references else {}
    points = _points(study, front, searched)
    if len(study.objectives) == 1:
        answer: dict[str, Any] = {"best": points[0] if points else None}
    else:
        answer = {"front": compared_points(study.scored, points)}
    return {
        "study": study.name,
        **answer,
        **compared,
        "certificate": _certificate(study, front, unproven),
        "counts": dict(counts),
        "provenance": package_provenance(STUDY_PACKAGES),
    }


def points_so_far(study: ResolvedStudy, store: RunStore) -> list[dict[str, Any]]:
    """The front of what a run has searched until now, for a study that is not finished."""
    numbers = [(level, number) for level in ("warm_start", "search") for number in sorted(store.numbers(level))]
    parts = [part for level, number in numbers if (part := store.read(level, number)) is not None]
    front = ParetoFront.empty(len(study.objectives))
    for part in parts:
        front = front.with_part(part, study.objectives)
    return _points(study, front, parts)


def _points(study: ResolvedStudy, front: ParetoFront, searched: Sequence[Part]) -> list[dict[str, Any]]:
    """The points of a front, each with its best plans."""
    rows: dict[int, list[tuple[Part, int]]] = {int(code): [] for code in front.codes}
    for part in searched:
        for row, code in enumerate(np.asarray(part.columns["code"]).tolist()):
            if code in rows:
                rows[code].append((part, row))
    return [point_of(study, code, *_evaluated(study, rows[code])) for code in rows]


def _evaluated(study: ResolvedStudy, rows: Sequence[tuple[Part, int]]) -> tuple[Part, int, Floats]:
    """The row with the best plans of a candidate, and the highest lower bounds that any of its rows proves."""
    least = [[float(np.asarray(part.columns[f"least_s.{j.name}"])[row]) for j in study.jobs] for part, row in rows]
    evaluated = [(part, row) for part, row in rows if bool(np.asarray(part.columns["evaluated"])[row])]
    name = f"figure.{study.objectives[0]}"
    return *min(evaluated, key=lambda each: float(np.asarray(each[0].columns[name])[each[1]])), np.max(least, axis=0)


def _reference(study: ResolvedStudy, part: Part) -> dict[str, Any]:
    """A chip to compare with: as a point, with what its maker published, and whether it keeps the limits."""
    code = int(np.asarray(part.columns["code"])[0])
    position, _ = study.located(code)
    chip = position.space.base
    published = {"area_mm2": chip.area_mm2, "tdp_w": chip.tdp_w, "price_usd": chip.price_usd}
    told = {"within_limits": study.keeps(np.array([code]))[0] if position.limited else None, "published": published}
    if not bool(np.asarray(part.columns["evaluated"])[0]):
        return {**study.numbers_of(code), "chip": position.name, **told, "objectives": None, "jobs": None}
    return {**point_of(study, code, part), "chip": position.name, **told}


def point_of(
    study: ResolvedStudy, code: int, part: Part, row: int = 0, least_s: Floats | None = None
) -> dict[str, Any]:
    """A candidate with its figures and plans; `least_s` are lower bounds of its jobs if not those of its row."""
    if least_s is None:
        least_s = np.array([float(np.asarray(part.columns[f"least_s.{job.name}"])[row]) for job in study.jobs])
    position, design = study.located(code)
    space = position.space
    designs = space.designs([design])
    estimated = SILICON if space.formulas.technology is not None else ()
    told: dict[str, Any] = {}
    if study.of_wafers:
        estimated, told = wafers.SILICON, {"wafer": wafers.wafer_facts(space, design)}
    figures = {name: float(np.asarray(part.columns[f"figure.{name}"])[row]) for name in study.objectives}
    return {
        **study.numbers_of(code),
        "objectives": {name: study.objective(name).shown(figure) for name, figure in figures.items()},
        "variables": variables_of(space, design),
        "silicon": {name: float(space.values(name, designs)[0]) for name in estimated},
        **told,
        "jobs": {
            job.name: {
                "step_time_s": float(np.asarray(part.columns[f"step_s.{job.name}"])[row]),
                "lower_bound_s": float(least_s[number]),
                "plan": json.loads(str(part.columns[f"plan.{job.name}"][row])),
            }
            for number, job in enumerate(study.jobs)
        },
    }


def compared_points(objectives: Sequence[Objective], points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Points of a front, each with whether a measurement would tell its figures from the best of the front.

    Designs of one base sustain the same of their peaks, so what that is wrong by cancels. Areas have no error of time.
    """
    told: list[dict[str, Any]] = []
    for point in points:
        distinguishable: dict[str, bool] = {}
        for objective in objectives:
            name, figure = objective.name, point["objectives"][objective.name]
            best = objective.best(each["objectives"][name] for each in points)
            apart = not objective.timed or ratio_interval(figure / best).distinguishable
            distinguishable[name] = figure != best and apart
        told.append({**point, "distinguishable": distinguishable})
    return told


def variables_of(space: DesignSpace, design: int) -> dict[str, float | int]:
    """The variables of a design in its space."""
    designs = space.designs([design])
    return {name: _plain(np.ravel(designs.value(name))[0]) for name in space.variables}


def _plain(value: float) -> float | int:
    """A number as written in a file: integers without a point, so that they match the values of the space."""
    return int(value) if float(value).is_integer() else float(value)


def _certificate(study: ResolvedStudy, front: ParetoFront, unproven: Floats) -> dict[str, Any]:
    """Optimal if the front beats the bounds of everything open."""
    still_open = unproven[np.isfinite(unproven).all(axis=1)]
    still_open = still_open[~dominated(still_open * (1 + TOLERANCE), front.points)]
    document: dict[str, Any] = {"status": status_of(answered=len(front) > 0, proven=not len(still_open))}
    if len(study.objectives) == 1:
        best = float(front.points[0, 0]) if len(front) else None
        lowest = float(min(still_open[:, 0].min(initial=np.inf), np.inf if best is None else best))
        shown = study.scored[0].shown(lowest)
        document["lower_bound"] = shown if np.isfinite(shown) else None
    document["gap"] = gap_between(still_open, front.points) if len(front) else None
    document["space"] = space_words(study)
    return document


def open_points(study: ResolvedStudy, part: Part) -> Floats:
    """Lower bounds of candidates whose plans are not proven optimal, or whose search was stopped."""
    codes = np.asarray(part.columns["code"], np.int64)
    bounds_s = np.stack([np.asarray(part.columns[f"least_s.{job.name}"]) for job in study.jobs], axis=1)
    taken = np.stack([np.asarray(part.columns[f"step_s.{job.name}"]) for job in study.jobs], axis=1)
    proven = np.asarray(part.columns["evaluated"], np.bool_) & (bounds_s >= taken * (1 - TOLERANCE)).all(axis=1)
    rows = np.nonzero(~proven)[0]
    return Scores.of(study, codes[rows]).points(study.mean.of(bounds_s[rows]))


def _network_words(study: ResolvedStudy) -> str:
    names = dict.fromkeys(position.network.name for position in study.explored if position.network)
    return f" on {', '.join(names)}" if names else ""


def space_words(study: ResolvedStudy) -> str:
    """The space of a certificate, in words."""
    job, usual = study.jobs[0].job, study.usual_clusters
    if study.mapping is not None:
        return wafers.space_words(study.space, study.counts, f"free mappings, {mapping_words(study.framework)}")
    if study.of_wafers:
        resolved = wafers.joined_space([study.plans.resolve(job, cluster, study.framework) for cluster in usual])
        return wafers.space_words(study.space, study.counts, stated(resolved, study.plans, study.framework)[1])
    plans = stated(study.plans.resolve(job, usual[-1], study.framework), study.plans, study.framework)[1]
    counts = f"{study.counts[0]:,}" if len(study.counts) == 1 else f"{study.counts[0]:,} to {study.counts[-1]:,}"
    over = f"{study.design_words} within their limits, {counts} chips{_network_words(study)}"
    return f"{over}, each with its fastest plans: {plans}"
