"""What workers do for groups of designs: bound one group, or search a first design."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration.best_plans import SearchedCandidate, columns_of, plan_of, searched
from dovetail.exploration.groups import GroupSearch, balanced, best_with, searched_group
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.store import Part
from dovetail.frozen import frozen

#: Designs drawn for a first one, those on which plans are tried, and those searched at most until one has a plan.
DRAWN, TRIED, SEARCHED = 4096, 128, 4


@frozen
class GroupBatch:
    """Candidates to bound together, and what a design must beat."""

    number: int
    codes: Ints
    #: candidates × jobs
    least_s: Floats
    to_beat: Floats
    #: of every job, those of the best design
    plans: tuple[str, ...] = ()


@frozen
class FirstDesign:
    """Search one design of a sample: a balanced one, or where plans are given the one on which these take least."""

    number: int
    #: of every job, as in a part
    plans: tuple[str, ...] = ()
    #: the design they were found on, and what another must beat
    known: int | None = None
    front: Floats | None = None


def group_part(study: ResolvedStudy, task: GroupBatch, search: GroupSearch) -> Part:
    """Bounds a group: its best of every variable is searched."""
    found = searched_group(study, task.codes, task.least_s, task.to_beat, search, task.plans)
    columns: dict[str, Floats | Ints] = {"code": task.codes[:1], "designs": np.array([len(task.codes)], np.int64)}
    columns |= {f"least_s.{job.name}": found.least_s[n : n + 1] for n, job in enumerate(study.jobs)}
    return Part("group", task.number, columns, {"split": found.split})


def first_design(study: ResolvedStudy, task: FirstDesign) -> Part:
    """Searches a first design, or the best of a sample for some plans."""
    nothing = np.zeros((0, len(study.objectives)))
    drawn = [space.sample(max(DRAWN // len(study.counts), 1), study.seed).index for space in study.spaces]
    codes = np.concatenate([study.codes(position, designs) for position, designs in enumerate(drawn)])
    tried = balanced(study, codes)[:TRIED]
    if task.plans and task.known is not None:
        # plans are for one number of chips
        tried = tried[tried // study.space.size == task.known // study.space.size]
        cluster = study.cluster_of(task.known)
        plans = [plan_of(text, job.job, cluster) for text, job in zip(task.plans, study.jobs, strict=True)]
        best = best_with(study, tried, plans)
        tried = np.array([] if best in (None, task.known) else [best], np.int64)
    rows: list[SearchedCandidate] = []
    for code in tried[:SEARCHED].tolist():
        front = nothing if task.front is None else task.front
        rows += searched(study, np.array([code]), np.zeros((1, len(study.jobs))), front)
        if rows[-1].figures is not None:
            break
    return Part("warm_start", task.number, columns_of(study, rows), {"searched": len(rows)})
