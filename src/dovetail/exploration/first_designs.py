"""Designs to begin a study with: one that is poor in nothing, and one on which its plans take least."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration.best_plans import SearchedCandidate, plan_of, searched
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.unbeaten import faster_with_more, unbeaten
from dovetail.hardware import Cluster
from dovetail.plans.stage_degrees import stage_degrees
from dovetail.step.evaluate import evaluate

#: Designs on which known plans are tried, and those searched at most until one has a plan.
TRIED, SEARCHED = 128, 4
#: Stage degrees × pipelines of a job beyond which profiles take longer, and more memory, than searches that have
#: something to beat.
MOST_PROFILED = 2**18


def profiles_pay(study: ResolvedStudy) -> bool:
    """Whether bounding all plans of all jobs by profiles takes less than searching them."""
    for job in study.jobs:
        cluster = study.usual_clusters[-1]
        plans = study.plans.resolve(job.job, cluster, study.framework)
        pipelines = (plans.pipeline_parallel, plans.micro_batch, plans.virtual_stages, plans.pipeline_schedule)
        rows = len(stage_degrees(job.job, cluster, study.framework, plans))
        if rows * prod(len(values) for values in pipelines) > MOST_PROFILED:
            return False
    return True


def first_rows(study: ResolvedStudy, codes: Ints) -> list[SearchedCandidate]:
    """Searches the most balanced of some candidates that fits, and the one on which its plans take least."""
    nothing, unknown = np.zeros((0, len(study.objectives))), np.zeros((1, len(study.jobs)))
    codes, rows = _balanced(study, codes), list[SearchedCandidate]()
    for code in codes[:SEARCHED].tolist():
        rows += searched(study, np.array([code]), unknown, nothing)
        if rows[-1].figures is not None:
            break
    first = rows[-1]
    if first.figures is None:
        return rows
    best = _best_with(study, first.code, codes[:TRIED], first.plans)
    if best is not None and best != first.code:
        rows += searched(study, np.array([best]), unknown, np.array([first.figures]))
    return rows


def _balanced(study: ResolvedStudy, codes: Ints) -> Ints:
    """Unbeaten candidates, first those that are poor in nothing, by the lowest of their ranks."""
    ranks = np.zeros(len(codes))
    for position, rows, designs in study.candidates(codes):
        space = study.positions[position].space
        here = space.designs(designs)
        ranks[rows] = 1.0
        for name in faster_with_more(space):
            values, rank = np.unique(np.broadcast_to(here.value(name), len(designs)), return_inverse=True)
            ranks[rows] = np.minimum(ranks[rows], (rank.reshape(-1) + 1) / len(values))
        # what another beats comes last
        ranks[rows] += unbeaten(space, designs)
    return codes[np.lexsort((codes, -ranks))]


def _best_with(study: ResolvedStudy, code: int, codes: Ints, plans: Sequence[str]) -> int | None:
    """The candidate on which the plans found for one, one of each job, take least; None if they fit on none."""
    best, least_s, chips = None, np.inf, study.located(code)[0].count
    for position, rows, designs in study.candidates(codes):
        if study.positions[position].count != chips:
            continue  # plans are for a number of chips
        for row, cluster in zip(rows.tolist(), study.clusters(position, designs), strict=True):
            mean_s = float(study.mean.of(_step_times(study, cluster, plans)))
            if mean_s < least_s:
                best, least_s = int(codes[row]), mean_s
    return best


def _step_times(study: ResolvedStudy, cluster: Cluster, plans: Sequence[str]) -> Floats:
    """Seconds of each job's step with its plan; infinite where it does not fit."""
    taken: list[float] = []
    for text, each in zip(plans, study.jobs, strict=True):
        job, plan = each.job, plan_of(text, each.job, cluster)
        found = evaluate(plan, job, cluster, study.framework, energy=False)
        taken.append(found.step_time_s if found.fits else np.inf)
    return np.array(taken)
