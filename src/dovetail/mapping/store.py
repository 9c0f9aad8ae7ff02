"""A store off the wafer: which state lives there, and the seconds its streams take during a step.

A store accumulates gradients itself and sends every weight once to a wafer, which spreads it over its dies (weight
streaming, Cerebras; MemoryX). Streams overlap with computation: a step takes the longer of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from dovetail.frameworks import Framework
from dovetail.frameworks.state import StateBytes
from dovetail.hardware.wafer import Wafer
from dovetail.models import Job
from dovetail.plans.plan import Plan

#: What lives in the store: nothing, the optimizer's state, or weights and gradients too.
Outside = Literal["nothing", "optimizer", "state"]


@dataclass(frozen=True, slots=True)
class Streams:
    """What a step streams between wafers and their stores."""

    #: stored in all stores together
    stored_bytes: float
    #: through the link of one store
    sent_bytes: float
    seconds: float


def without(framework: Framework, outside: Outside) -> Framework:
    """The framework with less state on the dies.

    With all state outside, weights arrive for the current layer only and its gradients leave: dies store what ZeRO-3
    stores of them, so ZeRO-3 is the only stage left.
    """
    if outside == "nothing":
        return framework
    states = tuple((precision, _state_on_dies(state, outside)) for precision, state in framework.states)
    if outside == "optimizer":
        return replace(framework, states=states)
    return replace(framework, states=states, zero_stages=(3,), zero_stages_with_pipeline=(3,))


def _state_on_dies(state: StateBytes, outside: Outside) -> StateBytes:
    on_dies = replace(state, master=0.0, moment=0.0, gradient_copy=0.0, step_copy=0.0, cast_on_gather=False)
    if outside == "optimizer":
        return on_dies
    return replace(
        on_dies,
        gradients=0.0,
        pipeline_gradients=None,
        cast_on_gather=True,
        sharded_reduction=state.gradients,
        layer_gradients=max(state.layer_gradients, state.gradients),
    )


def streams(
    plan: Plan, job: Job, framework: Framework, wafer: Wafer, outside: Outside, wafers: int = 1
) -> Streams | None:
    """What a step of the plan streams; None if the stores are too small."""
    if outside == "nothing":
        return Streams(0.0, 0.0, 0.0)
    state = framework.state_bytes(job.precision)
    parameters = float(job.graph().parameters())
    optimizer = state.parameter_bytes(job.optimizer).optimizer
    stored = parameters * (optimizer + (state.weights + state.gradients if outside == "state" else 0.0))
    if stored > wafers * wafer.store_bytes:
        return None
    # dies that run the optimizer read and write its state; a store with all state runs the optimizer itself
    each = 2 * optimizer if outside == "optimizer" else plan.num_microbatches * (2 * state.weights + state.gradients)
    # wafers beyond the stages store replicas of others' weights
    replicas = max(1.0, wafers / plan.pipeline_parallel)
    sent = parameters * each * replicas / wafers
    return Streams(stored, sent, sent / wafer.store_bytes_per_s)
