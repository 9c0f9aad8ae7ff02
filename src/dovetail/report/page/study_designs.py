"""The designs of a study as data of a chart: the front, what else was evaluated, and a sample of what is ruled out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration import wafers
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.result import SILICON, StudyResult
from dovetail.exploration.run_rows import bounded_rows, evaluated_rows
from dovetail.exploration.scores import Scores
from dovetail.exploration.store import RunStore
from dovetail.hardware.silicon import Silicon
from dovetail.plans.words import plan_words
from dovetail.report.design_words import variable_label, variable_text
from dovetail.report.page.floor_plan import die_sketch, wafer_sketch
from dovetail.report.svg import PALETTE
from dovetail.step.evaluate import evaluate
from dovetail.units import percent_text, seconds_text

#: Designs shown besides the front, and those of the front whose details are worked out.
MOST_DESIGNS, MOST_DETAILS = 3_000, 40
#: Values of a variable that can be filtered by.
MOST_VALUES = 24


def designs_data(study: ResolvedStudy, store: RunStore, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns of figures, which group each design is in, and what is told of those on the front."""
    on_front = np.array([study.code_of(point) for point in points], np.int64)
    codes, figures = evaluated_rows(study, store)
    bounded, bounds = _ruled_out(study, store, codes)
    if len(codes):
        others = ~np.isin(codes, on_front)
        front_rows = [int(np.nonzero(codes == code)[0][0]) for code in on_front]
        order = [*front_rows, *_sample(np.nonzero(others)[0], MOST_DESIGNS).tolist()]
        codes, figures = codes[order], figures[order]
    rest = _sample(np.arange(len(bounded)), MOST_DESIGNS - max(len(codes) - len(on_front), 0))
    group = np.concatenate([np.full(len(codes), 1), np.full(len(rest), 2)])
    group[: len(on_front)] = 0
    codes, figures = np.concatenate([codes, bounded[rest]]), np.concatenate([figures, bounds[rest]])
    columns = {"code": codes.tolist(), **_columns(study, codes, figures)}
    variables = [name for name in study.variables if name in columns]
    return {
        "columns": columns,
        "names": {each.name: f"{each.title} ({each.unit})" for each in study.scored}
        | {name: variable_label(name).replace("_", " ") for name in columns if name not in study.objectives},
        "axes": [name for name in columns if name != "code" and name not in variables],
        "filters": _filters(columns, variables),
        "groups": [
            {
                "name": "Pareto front" if len(study.objectives) > 1 else "best",
                "colour": PALETTE[1],
                "symbol": "star",
                "size": 12,
            },
            {"name": "evaluated", "colour": PALETTE[0], "symbol": "circle", "size": 6},
            {"name": "ruled out, at its lower bound", "colour": "#8c8c8c", "symbol": "circle", "size": 4},
        ],
        "group": group.tolist(),
        "detail": _details(study, points[:MOST_DETAILS]),
    }


def _ruled_out(study: ResolvedStudy, store: RunStore, evaluated: Ints) -> tuple[Ints, Floats]:
    """Candidates that were bounded and never searched, and the lower bounds of their figures."""
    codes, means = bounded_rows(study, store)
    open_rows = ~np.isin(codes, evaluated) & np.isfinite(means)
    codes, means = codes[open_rows], means[open_rows]
    sampled = _sample(np.arange(len(codes)), MOST_DESIGNS)
    codes, means = codes[sampled], means[sampled]
    if not len(codes):
        return codes, np.zeros((0, len(study.objectives)))
    return codes, Scores.of(study, codes).points(means)


def _sample(rows: Ints, most: int) -> Ints:
    """Rows at even distances, the same ones each time."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, max(most, 0)).astype(np.int64)]


def _columns(study: ResolvedStudy, codes: Ints, figures: Floats) -> dict[str, list[float]]:
    """Objectives as users see them, silicon and variables of designs."""
    columns = {
        each.name: [_rounded(each.shown(float(value))) for value in figures[:, number]]
        for number, each in enumerate(study.scored)
    }
    silicon = wafers.SILICON if study.of_wafers else SILICON
    names = [*(silicon if study.space.formulas.technology is not None else ()), *study.variables]
    values = {name: np.zeros(len(codes)) for name in names}
    for position, rows, designs in study.candidates(codes):
        space = study.positions[position].space
        designed = space.designs(designs)
        for name in names if space.formulas.technology is not None else space.variables:
            values[name][rows] = np.asarray(space.values(name, designed), np.float64)
    columns |= {name: [_rounded(value) for value in array.tolist()] for name, array in values.items()}
    if len(study.counts) > 1:
        columns["chips"] = [float(study.located(int(code))[0].count) for code in codes]
    return columns


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _filters(columns: Mapping[str, Sequence[float]], variables: Sequence[str]) -> dict[str, list[list[Any]]]:
    filters: dict[str, list[list[Any]]] = {}
    for name in variables:
        values = sorted(set(columns[name]))
        if 1 < len(values) <= MOST_VALUES:
            filters[name] = [[value, variable_text(name, value)] for value in values]
    return filters


def _details(study: ResolvedStudy, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Floor plan, figures, plans and bottlenecks of designs on the front."""
    result = StudyResult(study, {"front": list(points)}, None)
    return {
        str(study.code_of(point)): {"picture": _sketch(study, point), "rows": _detail_rows(study, result, point)}
        for point in points
    }


def _sketch(study: ResolvedStudy, point: Mapping[str, Any]) -> str:
    if "wafer" in point:
        return wafer_sketch(point["wafer"])
    position, design = study.located(study.code_of(point))
    technology = position.space.formulas.technology
    if technology is None:
        return ""
    designs = position.space.designs([design])
    parts = {name: float(np.ravel(value)[0]) for name, value in Silicon(designs, technology).area_parts.items()}
    return die_sketch(parts, int(np.ravel(designs.value("hbm_stacks"))[0]))


def _detail_rows(study: ResolvedStudy, result: StudyResult, point: Mapping[str, Any]) -> list[list[str]]:
    rows = [[each.title, f"{point['objectives'][each.name]:,.5g} {each.unit}"] for each in study.scored]
    figures = {**point["silicon"], **point["variables"]}
    rows += [[variable_label(name).replace("_", " "), variable_text(name, value)] for name, value in figures.items()]
    for job in study.jobs:
        plan = result.plan_of(point, job.name)
        cost = evaluate(plan, job.job, study.cluster_of(study.code_of(point)), study.framework, energy=False)
        largest = sorted(cost.breakdown.items(), key=lambda part: -part[1])[:3]
        parts = ", ".join(f"{name} {percent_text(seconds / cost.step_time_s)}" for name, seconds in largest)
        rows.append([job.name, f"{seconds_text(cost.step_time_s)}: {plan_words(plan)}; most of it {parts}"])
    return rows
