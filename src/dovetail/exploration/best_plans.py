"""The best plans of candidates (L1): a plan search for each job, stopped as soon as the front beats a candidate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration import wafers
from dovetail.exploration.lower_bounds import candidate_lower_bounds
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.plans.write import plan_part
from dovetail.search.answer import Answer
from dovetail.search.plan import plan


@dataclass(frozen=True, slots=True)
class SearchedCandidate:
    """What the search for one candidate's plans found."""

    code: int
    #: of every job: the proven lower bound
    least_s: tuple[float, ...]
    #: of every objective; None if the front beats the candidate or nothing fits
    figures: tuple[float, ...] | None = None
    step_s: tuple[float, ...] = ()
    plans: tuple[str, ...] = ()


def searched(study: ResolvedStudy, codes: Ints, least_s: Floats, front: Floats) -> list[SearchedCandidate]:
    """Searches candidates in the order of their bounds, each also against the results before it.

    `least_s` is candidates × jobs.
    """
    bounds, rows = candidate_lower_bounds(study, codes), list[SearchedCandidate]()
    for i in np.lexsort((codes, least_s @ study.weights)).tolist():
        latest = float(bounds.take(np.array([i])).latest(front)[0])
        if least_s[i] @ study.weights >= latest:
            rows.append(SearchedCandidate(int(codes[i]), tuple(least_s[i].tolist())))
            continue
        row = _best_plans(study, int(codes[i]), least_s[i], latest)
        rows.append(row)
        if row.figures is not None:
            front = np.concatenate([front, np.array(row.figures)[None]])
    return rows


def limits(latest_s: Floats, least_s: Floats, weights: Floats, number: int) -> Floats:
    """The step time one job may take if the others take their lower bounds and all together stay in time."""
    rest = np.arange(len(weights)) != number
    others = least_s[:, rest] @ weights[rest]
    with np.errstate(invalid="ignore"):
        left = (latest_s - others) / weights[number]
    # if another job does not fit, nothing can be won
    return np.where(np.isfinite(others), left, -np.inf)


def _best_plans(study: ResolvedStudy, code: int, least_s: Floats, latest_s: float) -> SearchedCandidate:
    """The best plan of every job, as long as all together can stay below a weighted step time."""
    cluster = study.cluster_of(code)
    proven_s, answers = least_s.copy(), list[Answer]()
    for number, job in enumerate(study.jobs):
        limit = float(limits(np.array([latest_s]), proven_s[None], study.weights, number)[0])
        answer = plan(job.job, cluster, study.framework, space=study.plans, below_s=limit)
        bound = answer.certificate.lower_bound_s
        proven_s[number] = np.inf if bound is None else max(float(proven_s[number]), bound)
        if answer.evaluation is None:
            return SearchedCandidate(code, tuple(proven_s.tolist()))
        answers.append(answer)
    plans = tuple(json.dumps(plan_part(answer.plan), sort_keys=True) for answer in answers)
    step_s = tuple(answer.step_time_s for answer in answers)
    return SearchedCandidate(code, tuple(proven_s.tolist()), _figures(study, code, answers), step_s, plans)


def _figures(study: ResolvedStudy, code: int, answers: Sequence[Answer]) -> tuple[float, ...]:
    """The figure of every objective at the step times found; energy is that of the plans."""
    weighted = np.array([answer.step_time_s for answer in answers]) @ study.weights
    bounds = candidate_lower_bounds(study, np.array([code])).points(weighted[None])[0]
    figures = dict(zip(study.objectives, bounds.tolist(), strict=True))
    if "tokens_per_joule" in figures:
        joules = [answer.best.energy_j for answer in answers]
        assert all(each is not None for each in joules), "every design has a power"
        figures["tokens_per_joule"] = np.array(joules, np.float64) @ study.weights / study.tokens
    return tuple(float(figure) for figure in figures.values())


def columns_of(study: ResolvedStudy, rows: Sequence[SearchedCandidate]) -> dict[str, Any]:
    """Rows as columns of a part."""
    empty = (float("nan"),) * max(len(study.objectives), len(study.jobs))
    columns: dict[str, Any] = {"code": np.array([row.code for row in rows], np.int64)}
    if study.of_wafers:
        columns |= wafers.columns_of(study.space, columns["code"] % study.space.size)
    columns["evaluated"] = np.array([row.figures is not None for row in rows], np.bool_)
    for n, name in enumerate(study.objectives):
        columns[f"figure.{name}"] = np.array([(row.figures or empty)[n] for row in rows], np.float64)
    for n, job in enumerate(study.jobs):
        columns[f"least_s.{job.name}"] = np.array([row.least_s[n] for row in rows], np.float64)
        columns[f"step_s.{job.name}"] = np.array([(row.step_s or empty)[n] for row in rows], np.float64)
        columns[f"plan.{job.name}"] = [row.plans[n] if row.plans else None for row in rows]
    return columns
