"""What a framework means for an evaluation: bytes per parameter, overlaps, overheads."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.evaluation.times import Overlaps
from dovetail.frameworks import Availability, Framework
from dovetail.graph import OPTIMIZERS
from dovetail.models import Job
from dovetail.placement.memory import ParameterBytes


@dataclass(frozen=True, slots=True)
class FrameworkFacts:
    """A framework's figures for one job."""

    parameter_bytes: ParameterBytes
    overlaps: Overlaps
    #: bytes one optimizer update reads and writes per parameter it owns
    update_bytes: float
    #: memory the process takes besides tensors
    context_bytes: float
    #: part of the tensors' bytes the allocator holds beyond them
    allocator_overhead: float


def facts_of(framework: Framework, job: Job) -> FrameworkFacts:
    """The framework's figures; overlaps that tuned runs switch on are taken as on."""
    state = framework.state_bytes(job.precision)
    moments = state.moment * len(OPTIMIZERS[job.optimizer].states)
    kept = state.master + state.gradient_copy + moments
    overlaps = framework.overlaps
    return FrameworkFacts(
        parameter_bytes=ParameterBytes(
            weight=state.weights + state.casts,
            sharded_weight=0.0 if state.cast_on_gather else state.weights,
            gradient=state.gradients,
            optimizer=kept,
        ),
        overlaps=Overlaps(
            tensor=_hidden(overlaps.tensor_parallel, tuned=False),
            context=_hidden(overlaps.context_parallel, tuned=False),
            expert=_hidden(overlaps.expert_parallel, tuned=False),
            weight_gather=_hidden(overlaps.weight_prefetch, tuned=True),
            updated_weights=_hidden(overlaps.weight_gather, tuned=True),
            gradient_reduction=_hidden(overlaps.gradient_reduction, tuned=True),
        ),
        # gradients are read for their norm and again for the update; the state is read and written, weights written
        update_bytes=2 * state.gradients + 2 * kept + state.weights,
        context_bytes=framework.context_bytes.value + framework.collective_buffer_bytes.value,
        allocator_overhead=framework.allocator_overhead.value,
    )


def _hidden(availability: Availability, *, tuned: bool) -> float:
    """The part of a collective that can run beside computation."""
    return 1.0 if availability == "always" or (availability == "optional" and tuned) else 0.0
