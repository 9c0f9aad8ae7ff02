"""Designs to begin a study with: one that is poor in nothing, and those on which plans found before take least."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration.best_plans import SearchedCandidate, searched
from dovetail.exploration.known_plans import KnownPlans
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.unbeaten import faster_with_more, unbeaten
from dovetail.plans.stage_degrees import stage_degrees

#: Designs searched at most until one has a plan.
SEARCHED = 4
#: Designs on which its plans are tried, and networks or bases where we climb from the best of these.
TRIED, CLIMBED = 512, 3
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
    """Searches the most balanced of some candidates until one fits."""
    nothing, unknown = np.zeros((0, len(study.objectives))), np.zeros((1, len(study.jobs)))
    rows = list[SearchedCandidate]()
    for code in _balanced(study, codes)[:SEARCHED].tolist():
        rows += searched(study, np.array([code]), unknown, nothing)
        if rows[-1].figures is not None:
            break
    return rows


def next_rows(
    study: ResolvedStudy, codes: Ints, code: int, plans: Sequence[str], front: Floats
) -> list[SearchedCandidate]:
    """Searches the design where a climb with the plans found for another ends, unless it is that one.

    We climb from the candidates of a sample on which the plans take least, one at each of some networks or bases.
    """
    known = KnownPlans(study, plans, study.located(code)[0].count)
    itself = np.array([code] if _explored(study, code) else [], np.int64)
    tried = np.concatenate([itself, _balanced(study, codes)[:TRIED]])
    seconds, positions = known.least_s(tried), tried // study.space.size
    starts: dict[int, int] = {}
    for row in np.lexsort((tried, seconds)).tolist():
        if np.isfinite(seconds[row]):
            starts.setdefault(int(positions[row]), int(tried[row]))
    ends = [known.climbed(start) for start in list(starts.values())[:CLIMBED]]
    _, best = min(ends, default=(np.inf, code))
    if best == code:
        return []
    return searched(study, np.array([best]), np.zeros((1, len(study.jobs))), front)


def _explored(study: ResolvedStudy, code: int) -> bool:
    """Whether a candidate is a design, not a chip to compare with."""
    return code // study.space.size < len(study.explored)


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
