"""Leading designs of a study, simulated (L2): what workers simulate, and what that proves about simulated time.

Why the bound holds. Every bound a study prunes with is also a bound of simulated time: physics (L0) always, profiles
because their tables use lower bounds of simulated steps (L1⁻). A candidate is then one of

- dropped by physics or profiles. They compare with a time no less than the simulated time of the best warm start,
  which is simulated first; so simulating a dropped candidate takes no less than the best simulated one;
- left by profiles and not simulated. Its lower bound counts, whatever the model's search says of it;
- simulated. Each job's leading plans are simulated in the order of their own bounds, so the rest takes no less than
  the certificate of that search says; the weighted sum of these is the candidate's bound.

The minimum of these and of the best simulated time bounds every simulated time, over designs and plans, each plan with
its fastest partition (and recompute choice of blocks) before contention.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration.best_plans import plan_of
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.result import space_words, variables_of
from dovetail.exploration.store import Part
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan import Plan
from dovetail.plans.write import plan_part
from dovetail.search.answer import SimulatedPlan
from dovetail.search.certificate import proof
from dovetail.search.progress import simplicity
from dovetail.search.simulated import simulated_plans
from dovetail.simulation import simulate
from dovetail.step.evaluate import least_step_s

#: Columns of a job, in the order of `Replayed.figures`.
FIGURES = ("least_s", "plan_least_s", "model_s", "step_s")


@frozen
class Replayed:
    """A simulated candidate; without plans if none fits."""

    code: int
    #: number of plans simulated, over all jobs
    simulated: int
    #: of every job: bound of all its plans, bound of the fastest, its modelled and its simulated seconds
    figures: tuple[tuple[float, float, float, float], ...] = ()
    plans: tuple[str, ...] = ()


def replayed(study: ResolvedStudy, code: int, modelled: Sequence[str] = (), least_s: Sequence[float] = ()) -> Replayed:
    """The fastest plan of every job by simulation, among the leading ones and the model's best if given.

    Of free mappings only the model's best are simulated; `least_s` bounds the rest of each job.
    """
    cluster = study.cluster_of(code)
    if study.mapping is not None:
        return _free_replayed(study, code, cluster, modelled, least_s)
    figures: list[tuple[float, float, float, float]] = []
    plans: list[str] = []
    top, simulated = study.search.simulate_top or 1, 0
    for number, job in enumerate(each.job for each in study.jobs):
        space = study.plans.resolve(job, cluster, study.framework)
        simulation = simulated_plans(job, cluster, study.framework, space, top)
        if simulation is None:
            return Replayed(code, simulated)
        candidates = list(simulation.plans)
        if modelled:
            modelled_best = plan_of(modelled[number], job, cluster)
            if all(each.plan != modelled_best for each in candidates):
                candidates.append(_simulated(study, modelled_best, job, cluster))
        best = min(candidates, key=lambda each: (each.step_time_s, simplicity(each.plan)))
        bound = simulation.certificate.lower_bound_s
        assert bound is not None, "a plan fits"
        # the model's best may have another partition, and so be faster than all plans of the certificate
        figures.append((min(bound, best.step_time_s), best.least_s, best.model_s, best.step_time_s))
        plans.append(json.dumps(plan_part(best.plan), sort_keys=True))
        simulated += len(candidates)
    return Replayed(code, simulated, tuple(figures), tuple(plans))


def _free_replayed(
    study: ResolvedStudy, code: int, cluster: Cluster, modelled: Sequence[str], least_s: Sequence[float]
) -> Replayed:
    figures: list[tuple[float, float, float, float]] = []
    for job, text, bound in zip(study.jobs, modelled, least_s, strict=True):
        best = _simulated(study, plan_of(text, job.job, cluster), job.job, cluster)
        figures.append((min(bound, best.step_time_s), best.least_s, best.model_s, best.step_time_s))
    return Replayed(code, len(figures), tuple(figures), tuple(modelled))


def _simulated(study: ResolvedStudy, plan: Plan, job: Job, cluster: Cluster) -> SimulatedPlan:
    step = simulate(plan, job, cluster, study.framework)
    lower_bound_s = least_step_s(plan, job, cluster, study.framework)
    return SimulatedPlan(plan, lower_bound_s, step.model_step_time_s, step.step_time_s)


def replay_columns(study: ResolvedStudy, row: Replayed) -> dict[str, Any]:
    """A simulated candidate as columns of a part."""
    columns: dict[str, Any] = {"code": np.array([row.code], np.int64)}
    columns["simulated"] = np.array([row.simulated], np.int64)
    figures = np.array(row.figures or [(np.inf,) * len(FIGURES)] * len(study.jobs), np.float64)
    for n, job in enumerate(study.jobs):
        for m, name in enumerate(FIGURES):
            columns[f"{name}.{job.name}"] = figures[n, m : m + 1].copy()
        columns[f"plan.{job.name}"] = [row.plans[n] if row.plans else None]
    return columns


def weighted(study: ResolvedStudy, part: Part, name: str) -> Floats:
    """A figure of simulated candidates, weighted over all jobs; infinite if no plan fits."""
    return study.mean.of(np.stack([np.asarray(part.columns[f"{name}.{job.name}"]) for job in study.jobs], axis=1))


def codes_of(parts: Sequence[Part]) -> list[int]:
    """The candidates of parts."""
    return [int(code) for part in parts for code in np.asarray(part.columns["code"]).tolist()]


def plans_of(study: ResolvedStudy, searched: Sequence[Part], code: int) -> tuple[str, ...]:
    """The model's best plans, one of every job; empty if their search was stopped or never started."""
    found: list[tuple[float, tuple[str, ...]]] = []
    for part in searched:
        rows = np.nonzero(np.asarray(part.columns["code"]) == code)[0].tolist()
        if rows and bool(np.asarray(part.columns["evaluated"])[rows[0]]):
            plans = tuple(str(part.columns[f"plan.{job.name}"][rows[0]]) for job in study.jobs)
            found.append((float(weighted(study, part, "step_s")[rows[0]]), plans))
    return min(found, default=(0.0, ()))[1]


def simulation_document(
    study: ResolvedStudy, parts: Sequence[Part], codes: Ints, bounds_s: Floats, dropped_s: float = float("inf")
) -> dict[str, Any]:
    """The simulated candidates, fastest first, and the certificate; `bounds_s` are those of all left by profiles.

    Other candidates take at least `dropped_s`, or no less than the best simulated one.
    """
    rows = [_row(study, part) for part in parts]
    ordered = sorted((row for row in rows if row), key=lambda row: (row["step_time_s"], row["chips"], row["design"]))
    best = None
    if ordered:
        best = {key: value for key, value in ordered[0].items() if key not in ("plans", "lower_bound_s")}
    unseen = bounds_s[~np.isin(codes, np.array(codes_of(parts), np.int64))]
    open_s = min([dropped_s, *unseen.tolist(), *(row["lower_bound_s"] for row in ordered)])
    return {
        "best": best,
        "replayed": [{key: value for key, value in row.items() if key not in ("variables", "jobs")} for row in ordered],
        "certificate": _certificate(open_s, ordered[0]["step_time_s"] if ordered else None, space_words(study)),
    }


def _certificate(open_s: float, best_s: float | None, space: str) -> dict[str, Any]:
    proven = proof(best_s, float("inf") if best_s is None else open_s)
    return {
        "status": proven.status,
        "time": "simulated",
        "lower_bound": proven.lower_bound_s,
        "gap": proven.gap,
        "space": space,
    }


def _row(study: ResolvedStudy, part: Part) -> dict[str, Any]:
    """A simulated candidate as JSON; empty if no plan fits."""
    sums = {name: float(weighted(study, part, name)[0]) for name in FIGURES}
    if not np.isfinite(sums["step_s"]):
        return {}
    code = int(np.asarray(part.columns["code"])[0])
    return {
        **study.numbers_of(code),
        "variables": variables_of(study.space, code % study.space.size),
        "least_s": sums["plan_least_s"],
        "model_s": sums["model_s"],
        "step_time_s": sums["step_s"],
        "lower_bound_s": sums["least_s"],
        "plans": int(np.asarray(part.columns["simulated"])[0]),
        "jobs": {
            job.name: {
                "least_s": float(np.asarray(part.columns[f"plan_least_s.{job.name}"])[0]),
                "model_s": float(np.asarray(part.columns[f"model_s.{job.name}"])[0]),
                "step_time_s": float(np.asarray(part.columns[f"step_s.{job.name}"])[0]),
                "plan": json.loads(str(part.columns[f"plan.{job.name}"][0])),
            }
            for job in study.jobs
        },
    }
