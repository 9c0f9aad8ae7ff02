"""The best plans of candidates (L1): a plan search for each job, given up as soon as the front beats a candidate."""

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
class Row:
    """What the search for one candidate's plans found."""

    code: int
    #: of every job, what is proven
    least_s: tuple[float, ...]
    #: of every objective; None where the candidate is beaten or nothing fits
    figures: tuple[float, ...] | None = None
    step_s: tuple[float, ...] = ()
    plans: tuple[str, ...] = ()


def searched(study: ResolvedStudy, codes: Ints, least_s: Floats, front: Floats) -> list[Row]:
    """Candidates one after the other, those with the least bound first, each also against what those before it found.

    `least_s` are candidates × jobs.
    """
    every, rows = candidate_lower_bounds(study, codes), list[Row]()
    for i in np.lexsort((codes, least_s @ study.weights)).tolist():
        latest = float(every.take(np.array([i])).latest(front)[0])
        if least_s[i] @ study.weights >= latest:
            rows.append(Row(int(codes[i]), tuple(least_s[i].tolist())))
            continue
        row = _best_plans(study, int(codes[i]), least_s[i], latest)
        rows.append(row)
        if row.figures is not None:
            front = np.concatenate([front, np.array(row.figures)[None]])
    return rows


def limits(latest_s: Floats, least_s: Floats, weights: Floats, number: int) -> Floats:
    """What one job may take, if the others take their least and all together no longer than they may."""
    rest = np.arange(len(weights)) != number
    others = least_s[:, rest] @ weights[rest]
    with np.errstate(invalid="ignore"):
        left = (latest_s - others) / weights[number]
    # where another job fits nowhere there is nothing to win
    return np.where(np.isfinite(others), left, -np.inf)


def _best_plans(study: ResolvedStudy, code: int, least_s: Floats, latest_s: float) -> Row:
    """The best plan of every job, as long as all together can stay below a weighted step time."""
    cluster = study.cluster_of(code)
    least, answers = least_s.copy(), list[Answer]()
    for number, job in enumerate(study.jobs):
        limit = float(limits(np.array([latest_s]), least[None], study.weights, number)[0])
        answer = plan(job.job, cluster, study.framework, space=study.plans, below_s=limit)
        bound = answer.certificate.lower_bound_s
        least[number] = np.inf if bound is None else max(float(least[number]), bound)
        if answer.evaluation is None:
            return Row(code, tuple(least.tolist()))
        answers.append(answer)
    plans = tuple(json.dumps(plan_part(answer.plan), sort_keys=True) for answer in answers)
    step_s = tuple(answer.step_time_s for answer in answers)
    return Row(code, tuple(least.tolist()), _figures(study, code, answers), step_s, plans)


def _figures(study: ResolvedStudy, code: int, answers: Sequence[Answer]) -> tuple[float, ...]:
    """Of every objective: what its floor says at the step times found, and the energy of the plans."""
    weighted = np.array([answer.step_time_s for answer in answers]) @ study.weights
    floor = candidate_lower_bounds(study, np.array([code])).points(weighted[None])[0]
    found = dict(zip(study.objectives, floor.tolist(), strict=True))
    if "tokens_per_joule" in found:
        joules = [answer.best.energy_j for answer in answers]
        assert all(each is not None for each in joules), "a design has a power at least"
        found["tokens_per_joule"] = np.array(joules, np.float64) @ study.weights / study.tokens
    return tuple(float(figure) for figure in found.values())


def columns_of(study: ResolvedStudy, rows: Sequence[Row]) -> dict[str, Any]:
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
