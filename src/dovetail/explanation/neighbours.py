"""The best plan of every neighbouring choice, and what it loses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dovetail.errors import InputError
from dovetail.plans.plan import Plan
from dovetail.plans.runs import check_runs
from dovetail.plans.space import BY_BLOCK, Choice, Space
from dovetail.search.answer import Answer
from dovetail.search.plan import plan as search
from dovetail.step.evaluate import evaluate

#: Degrees of neighbours are at most so many times those of the plan, and at least as small a part of them.
REACH = 2

_DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel", "micro_batch")


@dataclass(frozen=True, slots=True)
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


def neighbourhood(answer: Answer) -> Space:
    """The space of an answer with every degree at half of the plan's to double."""
    whole, best = answer.space.resolve(answer.job, answer.cluster, answer.framework), answer.plan
    return replace(answer.space, **{name: near(getattr(whole, name), getattr(best, name)) for name in _DEGREES})


def near(values: tuple[int, ...], centre: int) -> tuple[int, ...]:
    """The values within reach; the nearest where there is none."""
    within = tuple(value for value in values if centre <= value * REACH and value <= centre * REACH)
    return within or (min(values, key=lambda value: abs(value - centre)),)


def neighbours(answer: Answer, time_limit_s: float | None = None) -> tuple[Neighbour, ...]:
    """For every field of the plan the values next to its own, in the space of the answer.

    The other fields are free and the other degrees in the neighbourhood; a value that a plan of one stage, one tensor
    part or one context part cannot have brings more of them.
    """
    whole, around = answer.space.resolve(answer.job, answer.cluster, answer.framework), neighbourhood(answer)
    others: list[Neighbour] = []
    for field, value, forced in _forced(whole, answer.plan, around):
        other = search(
            answer.job,
            answer.cluster,
            answer.framework,
            space=replace(around, **forced),
            time_limit_s=time_limit_s,
            memory_limit_bytes=answer.memory_limit_bytes,
        )
        proven = other.certificate.status != "feasible"
        if other.evaluation is None:
            others.append(Neighbour(field, value, None, None, None, proven))
        else:
            loss = other.step_time_s / answer.step_time_s - 1
            others.append(Neighbour(field, value, other.plan, other.step_time_s, loss, proven))
    return (*others, *_turned(answer, whole))


def _forced(whole: Space, best: Plan, around: Space) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A field, a value of it as text, and what the neighbourhood is narrowed to for it."""
    for field in _DEGREES:
        for value in _next_to(getattr(whole, field), getattr(best, field)):
            yield field, str(value), {field: (value,)}
    for value in _next_to(whole.zero_stage, best.zero_stage):
        yield "zero_stage", str(value), {"zero_stage": (value,)}
    yield from _forced_recompute(whole, best)
    if best.pipeline_parallel > 1:
        yield from _forced_pipeline(whole, best, _above_one(around.pipeline_parallel))
    if best.tensor_parallel > 1:
        for value in whole.sequence_parallel:
            if value != best.sequence_parallel:
                forced = {"sequence_parallel": (value,), "tensor_parallel": _above_one(around.tensor_parallel)}
                yield "sequence_parallel", str(value).lower(), forced
    if best.context_parallel > 1:
        for kind in whole.context_kind:
            if kind != best.context_kind:
                forced = {"context_kind": (kind,), "context_parallel": _above_one(around.context_parallel)}
                yield "context_kind", kind, forced


def _forced_pipeline(whole: Space, best: Plan, stages: tuple[int, ...]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for value in _next_to(whole.virtual_stages, best.virtual_stages):
        # other schedules have one chunk a stage whatever the space says of chunks
        schedules = tuple(s for s in whole.pipeline_schedule if (s == "interleaved") == (value > 1))
        if schedules:
            forced = {"virtual_stages": (value,), "pipeline_schedule": schedules, "pipeline_parallel": stages}
            yield "virtual_stages", str(value), forced
    for schedule in whole.pipeline_schedule:
        if schedule != best.pipeline_schedule:
            forced = {"pipeline_schedule": (schedule,), "pipeline_parallel": stages}
            yield "pipeline_schedule", schedule, forced


def _forced_recompute(whole: Space, best: Plan) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Nothing, whole blocks, and the best of the lists of modules; where each block has its own policy, none."""
    if BY_BLOCK in whole.recompute:
        return
    kinds: dict[str, tuple[Choice, ...]] = {
        "none": tuple(c for c in whole.recompute if c == "none"),
        "modules": tuple(c for c in whole.recompute if c not in ("none", "full", best.recompute)),
        "full": tuple(c for c in whole.recompute if c == "full"),
    }
    for name, choices in kinds.items():
        if choices and choices != (best.recompute,):
            yield "recompute", name if name != "modules" else "some modules", {"recompute": choices}


def _turned(answer: Answer, whole: Space) -> list[Neighbour]:
    """The same plan with its axes in the other order: the search cannot be restricted to one of them."""
    best = answer.plan
    if best.pipeline_parallel == 1 or best.data_parallel == 1 or len(answer.cluster.tiers) == 1:
        return []
    return [_with_order(answer, replace(best, axis_order=o)) for o in whole.axis_order if o != best.axis_order]


def _with_order(answer: Answer, turned: Plan) -> Neighbour:
    order = turned.axis_order
    try:
        check_runs(turned, answer.job, answer.cluster, answer.framework)
        evaluation = evaluate(turned, answer.job, answer.cluster, answer.framework, energy=False)
    except InputError:
        return Neighbour("axis_order", order, None, None, None, proven=True)
    if evaluation.peak_bytes > answer.limit_bytes:
        return Neighbour("axis_order", order, None, None, None, proven=True)
    loss = evaluation.step_time_s / answer.step_time_s - 1
    return Neighbour("axis_order", order, turned, evaluation.step_time_s, loss, proven=False)


def _next_to(values: tuple[int, ...], current: int) -> tuple[int, ...]:
    """The next lower and the next higher value."""
    lower, higher = [v for v in values if v < current], [v for v in values if v > current]
    return (*((max(lower),) if lower else ()), *((min(higher),) if higher else ()))


def _above_one(values: tuple[int, ...] | None) -> tuple[int, ...]:
    assert values is not None, "the neighbourhood has every degree"
    return tuple(value for value in values if value > 1)
