"""Free mappings of candidates, in three stages: block bounds, a short search, and the search to the study's gap.

Each stage costs some ten times the one before it and leaves a higher lower bound. What a stage does depends only on its
candidates and the front, never on the clock: searches are limited by their work.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import partial

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration.best_plans import PlanSearch, SearchedCandidate, bound_of, limits, searched
from dovetail.exploration.lower_bounds import candidate_lower_bounds
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.hardware import Cluster
from dovetail.mapping.tiles.free_plan import FreeLimits, free_plan
from dovetail.mapping.tiles.work_bounds import least_free_s
from dovetail.models import Job
from dovetail.plans.space import Space
from dovetail.search.answer import Answer
from dovetail.search.plan import plan

#: Skeletons whose layouts the short search looks at.
SHORT_WORK = 4


class FreeStage(IntEnum):
    """The next stage of a candidate."""

    BLOCKS = 0
    SHORT = 1
    FULL = 2
    DONE = 3


#: Stages as rows of a run name them.
STAGE_WORDS: Mapping[FreeStage, str] = {
    FreeStage.BLOCKS: "blocks", FreeStage.SHORT: "short", FreeStage.FULL: "full",
}  # fmt: skip


def free_rows(
    study: ResolvedStudy, codes: Ints, least_s: Floats, front: Floats, stage: FreeStage
) -> list[SearchedCandidate]:
    """What a stage finds of candidates; `least_s` is candidates × jobs."""
    if stage is FreeStage.BLOCKS:
        return _bounded(study, codes, least_s, front)
    assert study.mapping is not None
    limit = study.mapping.work_limit
    if stage is FreeStage.SHORT:
        limit = SHORT_WORK if limit is None else min(SHORT_WORK, limit)
    search: PlanSearch = partial(_free_search, work_limit=limit)
    return searched(study, codes, least_s, front, search)


def named_rows(study: ResolvedStudy, codes: Ints, least_s: Floats) -> list[SearchedCandidate]:
    """The best named strategies of candidates: plans to beat, which prove nothing about free mappings."""
    return searched(study, codes, least_s, np.zeros((0, len(study.objectives))), _warm_search)


def _warm_search(study: ResolvedStudy, job: Job, cluster: Cluster, below_s: float) -> tuple[Answer, float]:
    space = Space(partition="ends", micro_batch=WARM_BATCHES)
    return plan(job, cluster, study.framework, space=space, below_s=below_s), 0.0


#: Micro-batches of the named strategies that are searched first.
WARM_BATCHES = (1, 2, 4)


def _free_search(
    study: ResolvedStudy, job: Job, cluster: Cluster, below_s: float, *, work_limit: int | None
) -> tuple[Answer, float]:
    assert study.mapping is not None
    # without named strategies of its own: their search is limited by the clock
    ends = FreeLimits(below_s=below_s, gap=study.mapping.gap, work_limit=work_limit, named_s=0.0)
    answer = free_plan(job, cluster, study.framework, ends)
    return answer, bound_of(answer)


def _bounded(study: ResolvedStudy, codes: Ints, least_s: Floats, front: Floats) -> list[SearchedCandidate]:
    """Bounds from the blocks of every skeleton; jobs that no longer matter keep theirs."""
    bounds_s = least_s.copy()
    latest = candidate_lower_bounds(study, codes).latest(study.to_beat(front))
    for row, code in enumerate(codes.tolist()):
        cluster = study.cluster_of(code)
        for number, job in enumerate(study.jobs):
            most_s = float(limits(latest[row : row + 1], bounds_s[row : row + 1], study.weights, number)[0])
            if bounds_s[row, number] < most_s:
                bound = least_free_s(job.job, cluster, study.framework, below_s=most_s)
                bounds_s[row, number] = max(float(bounds_s[row, number]), bound)
    return [SearchedCandidate(code, tuple(bounds_s[row].tolist())) for row, code in enumerate(codes.tolist())]
