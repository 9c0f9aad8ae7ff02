"""Groups of designs: no design of a group is faster than one with the best value of every variable in it.

That holds for variables of which more never makes a step longer, whatever the plan: rates, sizes and numbers of what
works side by side on one operator. Designs that differ in anything else are in groups of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from dovetail.arrays import Bools, Floats, Ints
from dovetail.exploration.best_plans import limits, plan_of
from dovetail.exploration.lower_bounds import candidate_lower_bounds
from dovetail.exploration.pareto import dominated
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.hardware.design_space.space import DesignSpace
from dovetail.plans.plan import Plan
from dovetail.plans.stage_degrees import stage_degrees
from dovetail.step.evaluate import evaluate

#: Stage degrees × pipelines beyond which designs are not profiled: a search that has something to beat takes less.
MOST_PROFILED = 2**18

#: Groups of so few designs are split without a bound of their own where plans are known that are fast enough; of others
#: we prove that no plan takes less than this part of them, which takes a tenth of proving the best.
FEW, FAR_BELOW = 32, 0.7

#: Of every chip: clock, memories and links.
_MORE_IS_FASTER = (
    "clock_hz", "hbm_stacks", "hbm_stack_bytes", "hbm_stack_bytes_per_s", "link_ports", "link_port_bytes_per_s",
)  # fmt: skip
#: Of chips that spread a product over cores by its tiles, where more matrix units make each core faster.
_MORE_IS_FASTER_ON_GPUS = ("tensor_cores", "vector_lanes", "shared_sram_bytes")


def groupable(space: DesignSpace) -> bool:
    """Whether designs of a space can be compared by their variables: schedules of operators side by side cannot."""
    shares = space.base.shares_cores if space.shares_cores is None else space.shares_cores
    return space.wafer is None and not shares


def too_many_to_profile(study: ResolvedStudy) -> bool:
    """Whether bounding all plans of a job by profiles takes longer, and more memory, than searching them."""
    for job in study.jobs:
        cluster = study.usual_clusters[-1]
        plans = study.plans.resolve(job.job, cluster, study.framework)
        pipelines = (plans.pipeline_parallel, plans.micro_batch, plans.virtual_stages, plans.pipeline_schedule)
        rows = len(stage_degrees(job.job, cluster, study.framework, plans))
        if rows * prod(len(values) for values in pipelines) > MOST_PROFILED:
            return True
    return False


def faster_with_more(space: DesignSpace) -> tuple[str, ...]:
    """The variables of a space of which more never makes a step longer."""
    names = _MORE_IS_FASTER + (_MORE_IS_FASTER_ON_GPUS if space.base.kind == "gpu" else ())
    values = {name: v for axis in space.axes for name, v in axis.values.items()}
    # a chip without stacks streams from its SRAM, which may be faster than some
    bare = "hbm_stacks" in dict(space.formulas.derived) or bool((values.get("hbm_stacks", np.ones(1)) == 0).any())
    return tuple(name for name in space.variables if name in names and not (bare and name == "hbm_stacks"))


@frozen
class Group:
    """Candidates with one number of chips, and what is proven of all of them."""

    codes: Ints
    #: jobs: lower bounds
    least_s: Floats


def first_groups(study: ResolvedStudy, codes: Ints) -> list[Group]:
    """Candidates that differ only in what groups may differ in."""
    groups: list[Group] = []
    several = faster_with_more(study.space)
    for _, rows, designs in study.candidates(codes):
        values = columns_of(study.space, designs)
        rest = [values[name] for name in study.space.variables if name not in several]
        _, kind = np.unique(np.stack([np.zeros(len(rows)), *rest]), axis=1, return_inverse=True)
        kind = kind.reshape(-1)
        groups += [Group(codes[rows[kind == k]], np.zeros(len(study.jobs))) for k in range(int(kind.max()) + 1)]
    return groups


def columns_of(space: DesignSpace, designs: Ints) -> dict[str, Floats]:
    """The variables of designs as columns."""
    found = space.designs(designs)
    return {name: np.broadcast_to(found.value(name), len(designs)) for name in space.variables}


def best_cluster(study: ResolvedStudy, codes: Ints) -> Cluster:
    """A cluster of a chip with the best of every variable of a group."""
    ((position, _, designs),) = study.candidates(codes)
    return _cluster_with(study, position, {name: v.max() for name, v in columns_of(study.space, designs).items()})


def _cluster_with(study: ResolvedStudy, position: int, values: dict[str, Floats]) -> Cluster:
    space = study.space
    (chip,) = space.chips_of(space.fixed.varied(values), ["group"], [f"the best of a group of {space.name}"])
    return study.cluster(chip, study.counts[position])


@frozen
class SearchedGroup:
    """What the best of every variable of a group proves."""

    #: jobs
    least_s: Floats
    #: where to split it: a variable, and the least value of the upper part; None if nothing of it is left
    split: tuple[str, float] | None


#: A plan of a job, by number, on a cluster if one takes less than some seconds; and a lower bound of all plans.
GroupSearch = Callable[[int, Cluster, float], tuple[Plan | None, float]]


def searched_group(
    study: ResolvedStudy,
    codes: Ints,
    least_s: Floats,
    to_beat: Floats,
    search: GroupSearch,
    texts: Sequence[str] = (),
) -> SearchedGroup:
    """Searches plans on the best of a group, as long as some design of it may still matter.

    `least_s` is candidates × jobs, `to_beat` what a design must beat. Where plans that are known already, one of each
    job, are fast enough on the best of the group, it has to be split anyway: we only bound what is far below them.
    """
    cluster, latest = best_cluster(study, codes), candidate_lower_bounds(study, codes).latest(to_beat)
    proven, plans = least_s.min(axis=0), list[Plan]()
    if texts:
        known = [plan_of(text, job.job, cluster) for text, job in zip(texts, study.jobs, strict=True)]
        known_s = seconds_on(study, cluster, known)
        if known_s @ study.weights < latest.max():
            if len(codes) > FEW:
                bounds = [search(number, cluster, FAR_BELOW * seconds)[1] for number, seconds in enumerate(known_s)]
                proven = np.maximum(proven, bounds)
            return SearchedGroup(proven, best_split(study, codes, known))
    for number in range(len(study.jobs)):
        # what is known of each candidate counts for the limit, what is found holds for all
        each = np.maximum(least_s, proven)
        limit = float(limits(latest, each, study.weights, number).max())
        plan, bound = search(number, cluster, limit)
        proven[number] = max(float(proven[number]), bound)
        if plan is None:
            return SearchedGroup(proven, None)
        plans.append(plan)
    return SearchedGroup(proven, best_split(study, codes, plans))


def seconds_on(study: ResolvedStudy, cluster: Cluster, plans: Sequence[Plan], *, if_fits: bool = True) -> Floats:
    """What plans, one of each job, take on a cluster; infinite where one does not fit, if that matters."""
    seconds: list[float] = []
    for plan, job in zip(plans, study.jobs, strict=True):
        evaluation = evaluate(plan, job.job, cluster, study.framework, energy=False)
        seconds.append(evaluation.step_time_s if evaluation.fits or not if_fits else np.inf)
    return np.array(seconds)


def best_split(study: ResolvedStudy, codes: Ints, plans: Sequence[Plan]) -> tuple[str, float] | None:
    """The variable whose lower half makes the plans of the group slowest; None for a single design."""
    ((position, _, designs),) = study.candidates(codes)
    columns = columns_of(study.space, designs)
    best = {name: values.max() for name, values in columns.items()}
    found, slowest = None, -1.0
    for name in faster_with_more(study.space):
        values = np.unique(columns[name])
        if len(values) == 1:
            continue
        middle = len(values) // 2
        cluster = _cluster_with(study, position, {**best, name: values[middle - 1]})
        step_s = seconds_on(study, cluster, plans, if_fits=False)
        if (seconds := float(step_s @ study.weights)) > slowest:
            found, slowest = (name, float(values[middle])), seconds
    return found


def halves(study: ResolvedStudy, group: Group, split: tuple[str, float]) -> list[Group]:
    """A group in two parts: below a value of a variable, and from it on."""
    ((_, _, designs),) = study.candidates(group.codes)
    name, value = split
    upper = columns_of(study.space, designs)[name] >= value
    return [Group(group.codes[part], group.least_s) for part in (~upper, upper) if part.any()]


def still_open(study: ResolvedStudy, codes: Ints, least_s: Floats, to_beat: Floats) -> tuple[Bools, Floats]:
    """Which candidates may still matter, and the lower bounds of their objectives."""
    points = candidate_lower_bounds(study, codes).points(least_s @ study.weights)
    return ~dominated(points, to_beat) & np.isfinite(points).all(axis=1), points


def balanced(study: ResolvedStudy, codes: Ints) -> Ints:
    """Candidates in an order to try: first those that are poor in nothing, by the lowest of their ranks."""
    ranks = np.ones(len(codes))
    for _, rows, designs in study.candidates(codes):
        columns = columns_of(study.space, designs)
        for name in faster_with_more(study.space):
            values, rank = np.unique(columns[name], return_inverse=True)
            ranks[rows] = np.minimum(ranks[rows], (rank.reshape(-1) + 1) / len(values))
    return codes[np.lexsort((codes, -ranks))]


def best_with(study: ResolvedStudy, codes: Ints, plans: Sequence[Plan]) -> int | None:
    """The candidate on which these plans, one of each job, take least; None if they fit on none."""
    best, least_s = None, np.inf
    for position, rows, designs in study.candidates(codes):
        for row, cluster in zip(rows.tolist(), study.clusters(position, designs), strict=True):
            step_s = float(seconds_on(study, cluster, plans) @ study.weights)
            if step_s < least_s:
                best, least_s = int(codes[row]), step_s
    return best
