"""The bottleneck of a job on a design: where its step goes, and what binds the operators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dovetail.explanation.bottleneck import spans
from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan import Plan
from dovetail.plans.words import plan_words
from dovetail.step.roofline import OperatorPoint, roofline

#: Operators that are told.
MOST = 8
#: Parts of a step that communicate.
_SENDING = (
    "tensor-parallel", "context-parallel", "expert-parallel", "weight-gather", "data-parallel", "gradient reduction",
    "updated weights", "tied embeddings",
)  # fmt: skip
#: Parts that stream from memory, and those in which a chip waits for its host.
_STREAMING = ("optimizer",)
_HOST = ("waiting for the host", "between micro-batches", "between steps", "offload")
_BUBBLE = "pipeline bubble"
#: What names of gradients end in.
_GRADIENT = re.compile(r"(\.einsum)?\.grad\d*$")


@frozen
class JobBottleneck:
    """One job's step with its best plan."""

    plan: str
    step_time_s: float
    mfu: float
    #: part of the step → seconds; what operators wait for, and what else there is
    seconds: Mapping[str, float]
    #: part that communicates → the network tier it goes over
    tiers: Mapping[str, str]
    #: compute, memory, network, pipeline, host and launches, and other → the part of the step it binds
    bound_by: Mapping[str, float]
    #: the longest operators, as parts of the step
    operators: tuple[OperatorPoint, ...]
    ridge_flops_per_byte: float
    #: the part of the fullest chip's memory that is used
    memory_share: float

    @property
    def as_json(self) -> dict[str, Any]:
        """Its fields."""
        operators = [{**asdict(each), "flops_per_byte": each.flops_per_byte} for each in self.operators]
        return {**asdict(self), "operators": operators}


def job_bottleneck(plan: Plan, job: Job, cluster: Cluster, framework: Framework) -> JobBottleneck:
    """That of a job with a plan."""
    placed = roofline(plan, job, cluster, framework)
    evaluation, units = placed.evaluated.evaluation, placed.by_unit
    parts = {name: seconds for name, seconds in evaluation.breakdown.items() if seconds > 0}
    computing = parts.pop("forward", 0.0) + parts.pop("backward", 0.0)
    seconds: dict[str, float] = {name: computing * share for name, share in units.items() if share}
    seconds |= parts
    # what is computed twice waits for what it waited for the first time
    again = parts.get("recompute", 0.0)
    bound = {
        "compute": (computing + again) * (units["matrix units"] + units["vector lanes"]),
        "memory": (computing + again) * units["memory"] + sum(parts.get(name, 0.0) for name in _STREAMING),
        "network": sum(parts.get(name, 0.0) for name in _SENDING),
        "pipeline": parts.get(_BUBBLE, 0.0),
        "host and launches": sum(parts.get(name, 0.0) for name in _HOST)
        + (computing + again) * units["kernel launches"],
    }
    step_s = evaluation.step_time_s
    bound["other"] = max(step_s - sum(bound.values()), 0.0)
    tiers = spans(plan, cluster)
    return JobBottleneck(
        plan_words(plan),
        step_s,
        evaluation.mfu,
        seconds,
        {name: tiers[name] for name in seconds if name in tiers},
        {name: each / step_s for name, each in bound.items()},
        _by_direction(placed.operators)[:MOST],
        placed.ridge_flops_per_byte,
        evaluation.peak_bytes / evaluation.usable_bytes,
    )


def _by_direction(operators: Sequence[OperatorPoint]) -> tuple[OperatorPoint, ...]:
    """Operators with all of their gradients as one, the longest first."""
    together: dict[str, list[OperatorPoint]] = {}
    for each in operators:
        name = _GRADIENT.sub("", each.name)
        together.setdefault(name if name == each.name else f"{name}, backward", []).append(each)
    return tuple(sorted((_together(*each) for each in together.items()), key=lambda each: -each.seconds))


def _together(name: str, operators: Sequence[OperatorPoint]) -> OperatorPoint:
    longest, seconds = operators[0], sum(each.seconds for each in operators)
    return OperatorPoint(
        name,
        seconds,
        sum(each.flops for each in operators),
        sum(each.moved_bytes for each in operators),
        longest.bound_by,
        sum(each.seconds * each.roof_share for each in operators) / seconds if seconds else 0.0,
    )
