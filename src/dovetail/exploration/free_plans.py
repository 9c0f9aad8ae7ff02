"""Free mappings of candidates, in three stages: block bounds, a short search, and the search to the study's gap.

Each stage costs some ten times the one before it and leaves a higher lower bound. What a stage does depends only on its
candidates and the front, never on the clock: searches are limited by their work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from functools import partial

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration.best_plans import PlanSearch, SearchedCandidate, bound_of, searched
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.scores import Scores
from dovetail.hardware import Cluster
from dovetail.mapping.tiles.free_plan import FreeLimits, free_plan
from dovetail.mapping.tiles.work_bounds import least_free_s
from dovetail.models import Job
from dovetail.plans.space import Space
from dovetail.search.answer import Answer
from dovetail.search.plan import plan

#: Skeletons whose layouts the short search looks at, and leading designs that are searched for a warm start.
SHORT_WORK, SEARCHED = 4, 4


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


def warm_start_rows(study: ResolvedStudy, codes: Ints, least_s: Floats) -> list[SearchedCandidate]:
    """Plans to beat of leading candidates, which prove nothing about those not searched.

    They are the best named strategies of some; named strategies use no stores, so with stores they are free mappings
    of those whose blocks promise most.
    """
    nothing = np.zeros((0, len(study.objectives)))
    if study.cluster_of(int(codes[0])).store is not None:
        least_s = np.array([row.least_s for row in _bounded(study, codes, least_s, nothing)])
    rows = np.lexsort((codes, study.mean.of(least_s)))[:SEARCHED]
    return searched(study, codes[rows], least_s[rows], nothing, _warm_search)


def _warm_search(study: ResolvedStudy, job: Job, cluster: Cluster, below_s: float) -> tuple[Answer, float]:
    if cluster.store is not None:
        return _free_search(study, job, cluster, below_s, work_limit=SHORT_WORK)[0], 0.0
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
    latest = Scores.of(study, codes).latest_s(study.to_beat(front))
    known: dict[tuple[Cluster, int, float], float] = {}
    for row, code in enumerate(codes.tolist()):
        cluster = study.cluster_of(code)
        # blocks send nothing, so links do not matter
        unlinked = replace(figures(cluster), tiers=tuple(replace(tier, bytes_per_s=1.0) for tier in cluster.tiers))
        for number, job in enumerate(study.jobs):
            most_s = float(study.mean.left(latest[row : row + 1], bounds_s[row : row + 1], number)[0])
            if bounds_s[row, number] < most_s:
                key = unlinked, number, most_s
                if key not in known:
                    known[key] = least_free_s(job.job, cluster, study.framework, below_s=most_s)
                bounds_s[row, number] = max(float(bounds_s[row, number]), known[key])
    return [SearchedCandidate(code, tuple(bounds_s[row].tolist())) for row, code in enumerate(codes.tolist())]


def figures(cluster: Cluster) -> Cluster:
    """All that plans and their times depend on: the cluster without names."""
    chip = replace(cluster.chip, name="", title="", source="", area_mm2=None, tdp_w=None)
    return replace(cluster, name="", source="", chip=chip)
