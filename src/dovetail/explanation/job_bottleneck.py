"""The bottleneck of a job on a design: where its step goes, and what binds the operators."""

from __future__ import annotations

from collections.abc import Mapping
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
from dovetail.units import percent_text

#: Operators that are told.
MOST = 8
#: Parts of a step that communicate.
_SENDING = (
    "tensor-parallel", "context-parallel", "expert-parallel", "weight-gather", "data-parallel", "gradient reduction",
    "updated weights", "tied embeddings",
)  # fmt: skip
#: Parts that stream from memory.
_STREAMING = ("optimizer",)
_BUBBLE = "pipeline bubble"


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
    #: compute, memory, network, pipeline and other → the part of the step it binds
    bound_by: Mapping[str, float]
    #: the longest operators, as parts of the step
    operators: tuple[OperatorPoint, ...]
    ridge_flops_per_byte: float
    #: the part of the fullest chip's memory that is used
    memory_share: float

    @property
    def words(self) -> str:
        """What binds it most, and next."""
        ordered = sorted(self.bound_by.items(), key=lambda each: -each[1])
        (first, most), (second, next_most) = ordered[:2]
        return f"{first} binds {percent_text(most)} of the step, {second} {percent_text(next_most)}"

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
        placed.operators[:MOST],
        placed.ridge_flops_per_byte,
        evaluation.peak_bytes / evaluation.usable_bytes,
    )
