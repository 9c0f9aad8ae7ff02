"""The smallest fix: the least change that makes a job fit."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.explanation.changed_hardware import memory_changes_seconds, with_chips, with_memory
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.plans.plan import Plan
from dovetail.search.answer import Answer
from dovetail.search.related_searches import BestOfSpace, RelatedSearches, best_plan
from dovetail.step.capacity import memory_limit

#: The largest change that is tried, and how closely the least memory is told.
MOST, CLOSE = 64, 0.01
#: What can be changed.
MEMORY, CHIPS = "memory of each chip", "chips"
#: Nodes more or fewer that are tried where nothing divides the chips.
NODES = 4


@frozen
class SmallestFix:
    """A change of the hardware that makes the job fit, and the plan it fits with."""

    what: str
    before: float
    after: float
    plan: Plan
    step_time_s: float
    too_little: float | None
    """the most that was tried and is proven not to do"""
    proven: bool
    """of all that was tried, no smaller change does; otherwise a search for one ran out of time"""


@frozen
class Fixes:
    """The smallest changes that were found, each of one thing; and what could not be settled in the time given."""

    found: tuple[SmallestFix, ...] = ()
    unknown: tuple[str, ...] = ()
    """of these it is not known whether some change is enough: searches ran out of time"""


def smallest_fixes(answer: Answer, time_limit_s: float | None = None) -> Fixes:
    """The least memory on each chip, and the fewest chips in steps of two, up to 64 times what there is.

    Where no degrees divide the chips, neither helps: then the nearest number of chips, node by node. Nothing is tried
    where it is not known whether the job fits as it is.
    """
    if answer.certificate.status != "infeasible":
        return Fixes(unknown=(MEMORY, CHIPS))
    ways = (_more_memory, _more_chips) if answer.certificate.counted else (_other_chips,)
    tried = [way(answer, time_limit_s) for way in ways]
    return Fixes(
        tuple(each for each in tried if isinstance(each, SmallestFix)),
        tuple(each for each in tried if isinstance(each, str)),
    )


def _other_chips(answer: Answer, time_limit_s: float | None) -> SmallestFix | str | None:
    """The nearest cluster of whole nodes on which a plan fits; of two as near the larger."""
    chips, proven = answer.cluster.chips, True
    node = answer.cluster.tiers[0].size if len(answer.cluster.tiers) > 1 else 1
    for change in (sign * node * count for count in range(1, NODES + 1) for sign in (1, -1)):
        other = with_chips(answer.cluster, chips + change) if chips + change > 0 else None
        if other is None:
            continue
        found = _searched(answer, other, time_limit_s)
        fitting = found.evaluation
        if fitting is not None:
            return SmallestFix(CHIPS, chips, other.chips, fitting.plan, fitting.step_time_s, None, proven)
        proven = proven and found.proven
    return None if proven else CHIPS


def _more_memory(answer: Answer, time_limit_s: float | None) -> SmallestFix | str | None:
    """The least memory; the thing's name where it is not known whether any is enough, None where none is."""
    capacity, tried = answer.limit_bytes, _with_memory(answer, time_limit_s)
    too_small, proven, fitting = 1.0, True, None
    while fitting is None and too_small < MOST:
        found = tried(2 * too_small)
        fitting = found.evaluation
        if fitting is None:
            too_small, proven = 2 * too_small, proven and found.proven
    if fitting is None:
        return None if proven else MEMORY
    while answer.memory_factor(fitting.peak_bytes) > too_small * (1 + CLOSE):
        # the fastest plan that fits tends to fill what there is: what it needs is no least, so halve from there
        middle = (too_small * answer.memory_factor(fitting.peak_bytes)) ** 0.5
        found = tried(middle)
        if found.evaluation is not None:
            fitting = found.evaluation
        else:
            too_small, proven = middle, proven and found.proven
    small = with_memory(answer.cluster, too_small)
    too_little = memory_limit(small.chip, answer.framework, answer.limit_on(small)) if proven else None
    return SmallestFix(MEMORY, capacity, fitting.peak_bytes, fitting.plan, fitting.step_time_s, too_little, proven)


def _with_memory(answer: Answer, time_limit_s: float | None) -> Callable[[float], BestOfSpace]:
    """The best plan on chips with so many times the memory: where seconds stay, with the tables of one search."""
    job, cluster, framework = answer.job, answer.cluster, answer.framework
    if memory_changes_seconds(cluster):
        return lambda factor: _searched(answer, with_memory(cluster, factor), time_limit_s)
    whole = answer.space.resolve(job, cluster, framework)
    searches = RelatedSearches(job, cluster, framework, whole, answer.search)

    def tried(factor: float) -> BestOfSpace:
        larger = with_memory(cluster, factor)
        return searches.best(whole, time_limit_s, memory_limit(larger.chip, framework, answer.limit_on(larger)))

    return tried


def _more_chips(answer: Answer, time_limit_s: float | None) -> SmallestFix | str | None:
    """The same of chips; None also where the cluster cannot be larger."""
    chips, factor, proven = answer.cluster.chips, 1, True
    while factor < MOST:
        larger = with_chips(answer.cluster, chips * factor * 2)
        if larger is None:
            break
        found = _searched(answer, larger, time_limit_s)
        fitting = found.evaluation
        if fitting is not None:
            too_little = float(chips * factor) if proven else None
            return SmallestFix(CHIPS, chips, larger.chips, fitting.plan, fitting.step_time_s, too_little, proven)
        factor, proven = factor * 2, proven and found.proven
    return None if proven else CHIPS


def _searched(answer: Answer, cluster: Cluster, time_limit_s: float | None) -> BestOfSpace:
    """The same question on another cluster."""
    job, framework, limit = answer.job, answer.framework, answer.limit_on(cluster)
    return best_plan(job, cluster, framework, answer.space, time_limit_s, limit)
