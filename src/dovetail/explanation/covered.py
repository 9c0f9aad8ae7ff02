"""A plan held against an answer: whether the space has it, what it takes, and where it loses its seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.plans.plan_file import plan_of_document
from dovetail.search.answer import Answer
from dovetail.search.membership import covers
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation
from dovetail.units import percent_text, seconds_text

#: Parts of a step that are named where a plan loses.
_NAMED = 2


@frozen
class Covered:
    """What is to say of the plan."""

    covered: bool
    #: which field or rule says no; None where the space has it
    reason: str | None
    #: whether its partition is one that is tried or solved for; bounded alone otherwise
    partition_tried: bool
    #: what it takes, where the space has it
    evaluation: Evaluation | None
    #: how much longer it takes than the fastest, as a part of that
    loss: float | None
    why: str


def covered(answer: Answer, document: Mapping[str, Any], where: str) -> Covered:
    """Whether the space of an answer has the plan of a plan file, and why it is not the answer.

    Only the `plan` part of the file is read: job and cluster are those of the question.
    """
    job, cluster, framework = answer.job, answer.cluster, answer.framework
    try:
        plan = plan_of_document(document, job, cluster, where)
    except InputError as error:
        return _left_out(f"{error.where.removeprefix(f'{where}: plan.')} {error.what}")
    coverage = covers(plan, job, cluster, framework, answer.space)
    if coverage.reason is not None:
        return _left_out(coverage.reason)
    evaluation = evaluate(coverage.plan, job, cluster, framework)
    fits = evaluation.peak_bytes <= answer.limit_bytes
    loss, why = None, "in the space" if fits else "in the space, but does not fit"
    if answer.evaluation is not None:
        loss = evaluation.step_time_s / answer.fastest.step_time_s - 1
        why = _why(answer, evaluation, loss, fits=fits)
    return Covered(True, None, coverage.partition_tried, evaluation, loss, why)


def _left_out(reason: str) -> Covered:
    return Covered(False, reason, False, None, None, f"not in the space: {reason}")


def _why(answer: Answer, evaluation: Evaluation, loss: float, *, fits: bool) -> str:
    takes = f"in the space: it takes {seconds_text(evaluation.step_time_s)}"
    if not fits:
        return f"{takes}, but needs more memory than plans may take"
    if loss <= 0:
        return f"{takes}, no longer than the answer"
    parts, best = evaluation.breakdown, answer.fastest.breakdown
    more = sorted(((parts.get(name, 0.0) - best.get(name, 0.0), name) for name in {*parts, *best}), reverse=True)
    named = [f"{name} +{seconds_text(seconds)}" for seconds, name in more[:_NAMED] if seconds > 0]
    return f"{takes}, {percent_text(loss)} longer than the fastest ({', '.join(named)})"
