"""A rule of what runs: which fields it reads, and what of a plan breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.models import Job
from dovetail.plans.plan import Plan

#: The field, what is wrong with it, and what would be right.
Obstacle = tuple[str, str, str]

#: Which fields a rule reads: those of a step of the search, or any. A step of the search asks the rules of its level.
Level = Literal["degrees", "pipeline", "sharding", "recompute", "plan"]

#: Fields that all plans of a space have alike, so that every level knows them.
_SWITCHES = (
    "overlap_tensor_parallel",
    "overlap_expert_parallel",
    "overlap_gradients",
    "overlap_parameters",
    "dispatcher",
    "cuda_graphs",
    "fp8_recipe",
    "offload",
)
#: What rules of a level may read of a plan; those of the level `plan` read what they like. Of virtual stages a rule of
#: the pipeline may ask whether there are several.
READS: dict[Level, tuple[str, ...]] = {
    "degrees": (
        "tensor_parallel",
        "context_parallel",
        "context_kind",
        "expert_parallel",
        "expert_tensor_parallel",
        "sequence_parallel",
        *_SWITCHES,
    ),
    "pipeline": ("pipeline_parallel", "virtual_stages", "pipeline_schedule", "num_microbatches"),
    "sharding": (
        "tensor_parallel",
        "context_parallel",
        "expert_parallel",
        "expert_tensor_parallel",
        "data_parallel",
        "pipeline_parallel",
        "zero_stage",
        "zero_group",
        "layouts",
        *_SWITCHES,
    ),
    "recompute": ("recompute_choices", *_SWITCHES),
}


@frozen
class PlanRule:
    """One reason for which a plan may not run; certificates name the rules of a space by their ids."""

    id: str
    level: Level
    #: what it asks, in a sentence for the documentation
    text: str
    check: Callable[[Plan, Job, Framework], Iterator[Obstacle]]


def broken(rules: Iterable[PlanRule], level: Level, plan: Plan, job: Job, framework: Framework) -> bool:
    """Whether a plan breaks a rule of a level; only the fields of that level need to be settled."""
    return any(True for rule in rules if rule.level == level for _ in rule.check(plan, job, framework))


def one_of_names(names: Iterable[str]) -> str:
    """What would be right, where it is one of some words."""
    return f"it should be one of {', '.join(names) or 'none'}"
