"""The best plan of every neighbouring choice, and what it loses."""

from __future__ import annotations

from dataclasses import replace

from dovetail.errors import InputError
from dovetail.explanation.neighbourhood import Neighbourhood
from dovetail.frozen import frozen
from dovetail.plans.plan import Plan
from dovetail.plans.runs import check_runs


@frozen
class Neighbour:
    """The best plan with one field forced to another value."""

    field: str
    value: str
    plan: Plan | None
    """None: nothing fits"""
    step_time_s: float | None
    loss: float | None
    """seconds more, as a part of the best"""
    proven: bool
    """of the neighbourhood, none with this value is faster"""


def neighbours(around: Neighbourhood) -> tuple[Neighbour, ...]:
    """For every field of the plan the values next to its own, in the space of the answer.

    The other fields are free and the other degrees in the neighbourhood; a value that a plan of one stage, one tensor
    part or one context part cannot have brings more of them.
    """
    answer = around.answer
    others: list[Neighbour] = []
    for field, value, narrowed in around.forced:
        found = around.searches.best(narrowed, around.time_limit_s, answer.memory_limit_bytes)
        best = found.evaluation
        if best is None:
            others.append(Neighbour(field, value, None, None, None, found.proven))
        else:
            loss = best.step_time_s / answer.step_time_s - 1
            others.append(Neighbour(field, value, best.plan, best.step_time_s, loss, found.proven))
    return (*others, *_turned(around))


def _turned(around: Neighbourhood) -> list[Neighbour]:
    """The same plan with its axes in the other order: the search cannot be restricted to one of them."""
    answer, best = around.answer, around.answer.plan
    if best.pipeline_parallel == 1 or best.data_parallel == 1 or len(answer.cluster.tiers) == 1:
        return []
    return [_with_order(around, replace(best, axis_order=o)) for o in around.whole.axis_order if o != best.axis_order]


def _with_order(around: Neighbourhood, turned: Plan) -> Neighbour:
    answer, order = around.answer, turned.axis_order
    try:
        check_runs(turned, answer.job, answer.cluster, answer.framework)
        evaluation = around.searches.evaluated(turned)
    except InputError:
        return Neighbour("axis_order", order, None, None, None, proven=True)
    if evaluation.peak_bytes > answer.limit_bytes:
        return Neighbour("axis_order", order, None, None, None, proven=True)
    loss = evaluation.step_time_s / answer.step_time_s - 1
    return Neighbour("axis_order", order, turned, evaluation.step_time_s, loss, proven=False)
