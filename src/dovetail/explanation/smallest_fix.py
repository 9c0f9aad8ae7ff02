"""The smallest fix: the least change that makes a job fit."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.errors import InputError
from dovetail.explanation.changed_hardware import with_chips, with_memory
from dovetail.hardware import Cluster
from dovetail.plans.narrowed_space import within
from dovetail.plans.plan import Plan
from dovetail.search.answer import Answer
from dovetail.search.plan import plan as search

#: The largest change that is tried, and how closely the least memory is told.
MOST, CLOSE = 64, 0.01
#: Nodes more or fewer that are tried where nothing divides the chips.
NODES = 4


@dataclass(frozen=True, slots=True)
class SmallestFix:
    """A change of the hardware that makes the job fit, and the plan it fits with."""

    what: str
    before: float
    after: float
    plan: Plan
    step_time_s: float
    too_little: float | None
    """the most that was tried and is proven not to do"""


def smallest_fixes(answer: Answer, time_limit_s: float | None = None) -> tuple[SmallestFix, ...]:
    """The least memory on each chip, and the fewest chips in steps of two, up to 64 times what there is.

    Where no degrees divide the chips, neither helps: then the nearest number of chips, node by node.
    """
    if answer.certificate.status == "infeasible" and not answer.certificate.counted:
        nearest = _other_chips(answer, time_limit_s)
        return () if nearest is None else (nearest,)
    fixes = (_more_memory(answer, time_limit_s), _more_chips(answer, time_limit_s))
    return tuple(fix for fix in fixes if fix is not None)


def best_with(answer: Answer, cluster: Cluster, time_limit_s: float | None) -> Answer | None:
    """The best plan of the answer's space on a cluster of other chips; None where no value of a field suits these."""
    try:
        space = within(answer.space, answer.job, cluster, answer.framework, leave_out=True)
    except InputError:
        return None
    return search(answer.job, cluster, answer.framework, space=space, time_limit_s=time_limit_s)


def _other_chips(answer: Answer, time_limit_s: float | None) -> SmallestFix | None:
    """The nearest cluster of whole nodes on which a plan fits; of two as near the larger."""
    chips = answer.cluster.chips
    node = answer.cluster.tiers[0].size if len(answer.cluster.tiers) > 1 else 1
    for change in (sign * node * count for count in range(1, NODES + 1) for sign in (1, -1)):
        other = with_chips(answer.cluster, chips + change) if chips + change > 0 else None
        if other is None:
            continue
        answered = best_with(answer, other, time_limit_s)
        if answered is not None and answered.evaluation is not None:
            return SmallestFix("chips", chips, other.chips, answered.plan, answered.step_time_s, None)
    return None


def _more_memory(answer: Answer, time_limit_s: float | None) -> SmallestFix | None:
    capacity = answer.cluster.chip.memory_bytes

    def tried(factor: float) -> Answer:
        changed = with_memory(answer.cluster, factor)
        return search(answer.job, changed, answer.framework, space=answer.space, time_limit_s=time_limit_s)

    def needed(fitting: Answer) -> float:
        return fitting.best.peak_bytes / capacity

    too_small, proven, fitting = 1.0, answer.certificate.status == "infeasible", None
    while fitting is None and too_small < MOST:
        other = tried(2 * too_small)
        fitting = other if other.evaluation is not None else None
        if fitting is None:
            too_small, proven = 2 * too_small, proven and other.certificate.status == "infeasible"
    if fitting is None:
        return None
    while needed(fitting) > too_small * (1 + CLOSE):
        # the fastest plan that fits tends to fill what there is: what it needs is no least, so halve from there
        middle = (too_small * needed(fitting)) ** 0.5
        other = tried(middle)
        if other.evaluation is not None:
            fitting = other
        else:
            too_small, proven = middle, proven and other.certificate.status == "infeasible"
    after, too_little = needed(fitting) * capacity, too_small * capacity if proven else None
    return SmallestFix("memory of each chip", capacity, after, fitting.plan, fitting.step_time_s, too_little)


def _more_chips(answer: Answer, time_limit_s: float | None) -> SmallestFix | None:
    chips, factor, proven = answer.cluster.chips, 1, answer.certificate.status == "infeasible"
    while factor < MOST:
        larger = with_chips(answer.cluster, chips * factor * 2)
        if larger is None:
            return None
        other = best_with(answer, larger, time_limit_s)
        if other is not None and other.evaluation is not None:
            too_little = float(chips * factor) if proven else None
            return SmallestFix("chips", chips, larger.chips, other.plan, other.step_time_s, too_little)
        factor, proven = factor * 2, proven and (other is None or other.certificate.status == "infeasible")
    return None
