"""The best plans of candidates (L1): a plan search for each job, stopped as soon as the front beats a candidate.

How one job is searched on one cluster is a `PlanSearch`: named strategies, or free mappings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration import wafers
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.scores import Scores
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.write import plan_part
from dovetail.search.answer import Answer
from dovetail.search.plan import plan
from dovetail.step.evaluate import evaluate

#: The best plan of a job on a cluster if it takes less than some seconds, and a lower bound of all plans of the study.
PlanSearch = Callable[[ResolvedStudy, Job, Cluster, float], tuple[Answer, float]]


def named_search(study: ResolvedStudy, job: Job, cluster: Cluster, below_s: float) -> tuple[Answer, float]:
    """The best plan of the study's named strategies."""
    answer = plan(job, cluster, study.framework, space=study.plans, below_s=below_s)
    return answer, bound_of(answer)


def bound_of(answer: Answer) -> float:
    """The proven lower bound; infinite if nothing fits."""
    bound = answer.certificate.lower_bound_s
    return np.inf if bound is None else bound


@frozen
class SearchedCandidate:
    """What the search for one candidate's plans found."""

    code: int
    #: of every job: the proven lower bound
    least_s: tuple[float, ...]
    #: of every objective; None if the front beats the candidate or nothing fits
    figures: tuple[float, ...] | None = None
    step_s: tuple[float, ...] = ()
    plans: tuple[str, ...] = ()
    #: whether searching on would find nothing better, however long
    ended: bool = False


def searched(
    study: ResolvedStudy, codes: Ints, least_s: Floats, front: Floats, search: PlanSearch = named_search
) -> list[SearchedCandidate]:
    """Searches candidates in the order of their bounds, each also against the results before it.

    `least_s` is candidates × jobs. Those that no plan can bring out of the study's gap are not searched.
    """
    bounds, rows = Scores.of(study, codes), list[SearchedCandidate]()
    for i in np.lexsort((codes, study.mean.of(least_s))).tolist():
        own = bounds.take(np.array([i]))
        latest_s = float(own.latest_s(study.to_beat(front))[0])
        if study.mean.of(least_s[i]) >= latest_s:
            rows.append(SearchedCandidate(int(codes[i]), tuple(least_s[i].tolist())))
            continue
        row = _best_plans(study, int(codes[i]), least_s[i], latest_s, search)
        rows.append(row)
        if row.figures is not None:
            front = np.concatenate([front, np.array(row.figures)[None]])
    return rows


def _best_plans(
    study: ResolvedStudy, code: int, least_s: Floats, latest_s: float, search: PlanSearch
) -> SearchedCandidate:
    """The best plan of every job, as long as all together can stay below a weighted step time."""
    cluster = study.cluster_of(code)
    proven_s, answers, ended = least_s.copy(), list[Answer](), True
    for number, job in enumerate(study.jobs):
        limit = float(study.mean.left(np.array([latest_s]), proven_s[None], number)[0])
        answer, bound = search(study, job.job, cluster, limit)
        proven_s[number] = max(float(proven_s[number]), bound)
        ended = ended and not answer.certificate.open
        if answer.evaluation is None:
            return SearchedCandidate(code, tuple(proven_s.tolist()), ended=ended)
        answers.append(answer)
    plans = tuple(json.dumps(plan_part(answer.plan), sort_keys=True) for answer in answers)
    step_s = tuple(answer.step_time_s for answer in answers)
    return SearchedCandidate(code, tuple(proven_s.tolist()), _figures(study, code, answers), step_s, plans, ended)


def plan_of(text: str, job: Job, cluster: Cluster) -> Plan:
    """A plan as written in a part."""
    spec = PlanSpec.model_validate(json.loads(text))
    return resolve_plan(spec, chips=cluster.chips, global_batch=job.global_batch, num_layers=job.model.num_layers)


def _figures(study: ResolvedStudy, code: int, answers: Sequence[Answer]) -> tuple[float, ...]:
    """The figure of every objective at the step times found; energy is that of the plans."""
    scores = Scores.of(study, np.array([code]))
    mean_s = np.atleast_1d(study.mean.of(np.array([answer.step_time_s for answer in answers])))
    energy_j = scores.least_j + scores.idle_w * mean_s
    if any(objective.counts_energy for objective in study.scored):
        energy_j = np.atleast_1d(study.mean.of(np.array([_joules(study, answer) for answer in answers], np.float64)))
    return tuple(scores.figures(mean_s, energy_j)[0].tolist())


def _joules(study: ResolvedStudy, answer: Answer) -> float:
    """The energy of a plan; searches of free mappings leave it out."""
    joules = answer.best.energy_j
    if joules is None:
        joules = evaluate(answer.plan, answer.job, answer.cluster, study.framework).energy_j
    assert joules is not None, "every design has a power"
    return joules


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
