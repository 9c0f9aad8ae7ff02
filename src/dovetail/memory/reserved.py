"""What PyTorch's allocator reserves for a plan, and the operator at which memory runs out."""

from __future__ import annotations

from dovetail.frameworks import Framework
from dovetail.frozen import frozen
from dovetail.memory.allocator import replay
from dovetail.memory.step_events import stage_events
from dovetail.plans.plan import Plan
from dovetail.step.evaluate import EvaluatedStep

#: More layer runs of a stage than this are not traced.
MOST_LAYER_RUNS = 4000


@frozen
class ReservedMemory:
    """The fullest stage's chips, allocation by allocation."""

    stage: int
    #: the most that tensors take, and that the allocator holds for them
    allocated_bytes: float
    reserved_bytes: float
    #: where memory runs out, if it does: the operator that asks for it, and the part of the step
    operator: str | None = None
    phase: str | None = None


def reserved_memory(evaluated: EvaluatedStep, plan: Plan, framework: Framework) -> ReservedMemory | None:
    """Two steps of the fullest stage played through the allocator's rules; None where there is no such allocator.

    What is reserved is no need: an allocator that runs short gives back what it holds free and asks again.
    """
    stage, facts = evaluated.evaluation.fullest_stage, evaluated.facts
    runs = plan.num_microbatches * sum(plan.layers_per_stage) / plan.pipeline_parallel
    untraced = plan.layouts is not None or "activations" in plan.offload
    if framework.allocator == "planned" or untraced or runs > MOST_LAYER_RUNS:
        return None
    events = stage_events(plan, evaluated.step, facts, stage)
    expandable = framework.allocator == "expandable"
    free = replay(events, expandable=expandable)
    limit = int(evaluated.evaluation.usable_bytes - facts.context_bytes)
    failed = None
    if free.peak_reserved_bytes > limit:
        failed = replay(events, expandable=expandable, limit_bytes=limit).failed_at
    return ReservedMemory(
        stage,
        free.peak_allocated_bytes,
        free.peak_reserved_bytes,
        None if failed is None else events[failed].operator,
        None if failed is None else events[failed].phase,
    )
