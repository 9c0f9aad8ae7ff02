"""What can be changed of a plan so that it needs less memory on the same chips: kinds of changes and their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

from dovetail.frozen import frozen
from dovetail.plans.derive import even_layers
from dovetail.plans.domains import BY_BLOCK
from dovetail.plans.partitions import listed_partitions
from dovetail.plans.plan import Plan
from dovetail.plans.plan_file import Task
from dovetail.plans.space import Space
from dovetail.plans.words import layer_words
from dovetail.step.layer_tables import RecomputePolicy, recompute_policies

#: Values of fields of a plan, by name.
Values = Mapping[str, Any]
#: What a change can be for a task, in its resolved space, where these values are changed already.
ValuesOf = Callable[[Task, Space, Values], Iterator[dict[str, Any]]]

#: The fields that say what is recomputed; nothing else of a plan follows from them.
RECOMPUTE = ("recompute", "recompute_share", "recompute_by_block")


@frozen
class ChangeKind:
    """One thing that can be changed."""

    values: ValuesOf
    words: Callable[[Plan], str]
    #: whether other chips share other parts then: not of plans that say which chips have what
    moves: bool = False


def _smaller(field: str) -> ValuesOf:
    return lambda task, space, _: ({field: v} for v in getattr(space, field) if v < getattr(task.plan, field))


def _larger(field: str, choice: str = "") -> ValuesOf:
    """Larger values; where it is 1 so far, with each value of what else has to be chosen then."""

    def values(task: Task, space: Space, _: Values) -> Iterator[dict[str, Any]]:
        own = getattr(task.plan, field)
        for value in (value for value in getattr(space, field) if value > own):
            if own > 1 or not choice:
                yield {field: value}
            else:
                # interleaved schedules need virtual stages as well
                yield from ({field: value, choice: c} for c in getattr(space, choice) if c != "interleaved")

    return values


def _recompute(task: Task, space: Space, _: Values) -> Iterator[dict[str, Any]]:
    """Every other policy of the framework, the same for all blocks, and shares of the blocks where it has them."""
    plan, policies = task.plan, list[RecomputePolicy]()
    if BY_BLOCK in space.recompute:
        policies += [(word, 1.0) for word in task.framework.recompute if word != "operators"]
    else:
        policies += recompute_policies(space)
    own = None if plan.recompute_by_block is not None else (plan.recompute, plan.recompute_share)
    for policy in policies:
        if policy != own:
            yield dict(zip(RECOMPUTE, (*policy, None), strict=True))


def _sequence_parallel(task: Task, space: Space, _: Values) -> Iterator[dict[str, Any]]:
    if task.plan.tensor_parallel > 1 and not task.plan.sequence_parallel and True in space.sequence_parallel:
        yield {"sequence_parallel": True}


def _partition(task: Task, space: Space, changed: Values) -> Iterator[dict[str, Any]]:
    """The partitions that a search lists: even, and with a first and a last stage that differ."""
    plan, blocks = task.plan, task.job.model.num_layers
    stages = changed.get("pipeline_parallel", plan.pipeline_parallel)
    schedule = changed.get("pipeline_schedule", plan.pipeline_schedule)
    uneven = task.framework.uneven_stages
    partitions = listed_partitions(blocks, stages, plan.virtual_stages, schedule, space.partition, uneven)
    # more stages have the even partition where none is given
    own = (
        plan.layers_per_stage if stages == plan.pipeline_parallel else even_layers(stages * plan.virtual_stages, blocks)
    )
    yield from ({"layers_per_stage": layers} for layers in partitions if layers != own)


def _offload(task: Task, space: Space, _: Values) -> Iterator[dict[str, Any]]:
    """What hosts can hold besides what they do."""
    del space
    own, parts = set(task.plan.offload), task.framework.offload
    for together in (part for n in range(1, len(parts) + 1) for part in combinations(parts, n)):
        if own < set(together):
            yield {"offload": together}


def _recompute_words(plan: Plan) -> str:
    if isinstance(plan.recompute, tuple):
        return f"recompute of {' + '.join(plan.recompute)}"
    words = "no recompute" if plan.recompute == "none" else f"{plan.recompute} recompute"
    layers = sum(plan.layers_per_stage)
    return words if plan.recompute_share == 1 else f"{words} of {plan.recompute_share * layers:.0f} of {layers} layers"


#: What can be changed, by the field it is called after; pairs of them are tried in this order.
KINDS: Mapping[str, ChangeKind] = {
    "micro_batch": ChangeKind(_smaller("micro_batch"), lambda p: f"micro-batch {p.micro_batch}"),
    "recompute": ChangeKind(_recompute, _recompute_words),
    "zero_stage": ChangeKind(_larger("zero_stage"), lambda p: f"ZeRO stage {p.zero_stage}"),
    "offload": ChangeKind(_offload, lambda p: f"offload of {' and '.join(p.offload)}"),
    "sequence_parallel": ChangeKind(_sequence_parallel, lambda _: "sequence parallel"),
    "context_parallel": ChangeKind(
        _larger("context_parallel", "context_kind"), lambda p: f"context parallel {p.context_parallel}", moves=True
    ),
    "tensor_parallel": ChangeKind(
        _larger("tensor_parallel", "sequence_parallel"), lambda p: f"tensor parallel {p.tensor_parallel}", moves=True
    ),
    "expert_parallel": ChangeKind(
        _larger("expert_parallel"), lambda p: f"expert parallel {p.expert_parallel}", moves=True
    ),
    "pipeline_parallel": ChangeKind(
        _larger("pipeline_parallel", "pipeline_schedule"), lambda p: f"pipeline parallel {p.pipeline_parallel}",
        moves=True,
    ),
    "layers_per_stage": ChangeKind(
        _partition, lambda p: f"layers per stage {layer_words(p.layers_per_stage)}", moves=True
    ),
}  # fmt: skip
