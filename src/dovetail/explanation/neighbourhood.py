"""The neighbourhood of an answer: the spaces next to its plan, and one set of tables for all that is asked of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from dovetail.plans.plan import Plan
from dovetail.plans.space import BY_BLOCK, Choice, Space
from dovetail.search.answer import Answer
from dovetail.search.related_searches import RelatedSearches

#: Degrees of neighbours are at most so many times those of the plan, and at least as small a part of them.
REACH = 2

_DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel", "micro_batch")


class Neighbourhood:
    """The space of an answer with every degree at half of the plan's to double, and what is forced in it."""

    def __init__(self, answer: Answer, time_limit_s: float | None = None) -> None:
        self.answer = answer
        #: of each search
        self.time_limit_s = time_limit_s
        self.whole = answer.space.resolve(answer.job, answer.cluster, answer.framework)
        self.space = replace(
            self.whole, **{name: near(getattr(self.whole, name), getattr(answer.plan, name)) for name in _DEGREES}
        )
        #: a field, a value of it as text, and the neighbourhood with that value
        self.forced = [
            (field, value, replace(self.space, **forced))
            for field, value, forced in _forced(self.whole, answer.plan, self.space)
        ]

    @cached_property
    def searches(self) -> RelatedSearches:
        """Searches in the neighbourhood and in all that is forced, on the cluster of the answer."""
        answer = self.answer
        spaces = (self.space, *(space for _, _, space in self.forced))
        values = {name: {value for space in spaces for value in getattr(space, name)} for name in _DEGREES}
        widest = replace(self.space, **{name: tuple(sorted(of_name)) for name, of_name in values.items()})
        searches = RelatedSearches(answer.job, answer.cluster, answer.framework, widest, answer.search)
        searches.learn([answer.plan, *(each.plan for each in answer.alternatives)], answer.memory_limit_bytes)
        return searches


def near(values: tuple[int, ...], centre: int) -> tuple[int, ...]:
    """The values within reach; the nearest where there is none."""
    within = tuple(value for value in values if centre <= value * REACH and value <= centre * REACH)
    return within or (min(values, key=lambda value: abs(value - centre)),)


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


def _next_to(values: tuple[int, ...], current: int) -> tuple[int, ...]:
    """The next lower and the next higher value."""
    lower, higher = [v for v in values if v < current], [v for v in values if v > current]
    return (*((max(lower),) if lower else ()), *((min(higher),) if higher else ()))


def _above_one(values: tuple[int, ...] | None) -> tuple[int, ...]:
    assert values is not None, "the neighbourhood has every degree"
    return tuple(value for value in values if value > 1)
