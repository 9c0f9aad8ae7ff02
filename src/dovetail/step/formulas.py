"""The formulas of a training step, each once: plain arithmetic on numbers or arrays, and inside compiled code.

`evaluate` calls them for one plan, the search's kernels for a million, partition, bounds and mapping with exact or
relaxed arguments; `compiled_formulas` makes them callable inside compiled code. `FORMULAS` lists who calls what,
and tests/test_one_model.py checks that they do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.arrays import Number, choose
from dovetail.frameworks.parameter_bytes import ParameterBytes
from dovetail.frozen import frozen


def optimizer_step_bytes(used: Number, home: Number, zero_stage: Number, sizes: ParameterBytes) -> Number:
    """What the optimizer makes of the gradients it owns for its update."""
    return choose(zero_stage >= 1, home, used) * sizes.step_copy


def beyond_activations(step: Number, activations: Number) -> Number:
    """What the optimizer's step needs beyond the activations, which are gone when it runs."""
    return np.maximum(step - activations, 0.0)


def transient_peak(loss: Number, working: Number, layer_gradients: Number) -> Number:
    """The larger of a stage's two transient peaks: the loss is over before the backward of a layer begins."""
    return np.maximum(loss, working + layer_gradients)


def allocator_bytes(tensors: Number, overhead: Number) -> Number:
    """What the allocator takes beyond the tensors, for rounding and fragments."""
    return overhead * tensors


def tensor_capacity(memory: Number, context: Number, overhead: Number) -> Number:
    """The bytes of tensors that fit a chip's memory, besides its context and the allocator's overhead."""
    return (memory - context) / (1 + overhead)


def overlap_budget(work: Number, stages: Number, microbatches: Number, chunks: Number, minimum: Number) -> Number:
    """Seconds of work that can hide the end-of-step collectives of a stage, `work` being one micro-batch's.

    A stage of several chunks has more: every chunk but its last to finish is reduced while the others still work on as
    many micro-batches as the pipeline has stages (Megatron Core, pipeline_parallel/schedules.py, interleaving).
    """
    return np.maximum((1 + (np.minimum(stages, microbatches) - 1) * (chunks - 1) / chunks) * work, minimum)


def exposed_at_least(seconds: Number, hidden: Number, budget: Number) -> tuple[Number, Number]:
    """Lower bounds of exposed communication: all but the part that can be hidden; all but the work that hides it.

    Each is a sum over layers, so a partition can add them up; the larger of both sums is what a stage sees.
    """
    return seconds - seconds * hidden, seconds - budget


def exposed(seconds: Number, hidden: Number, budget: Number) -> Number:
    """Exposed communication: all but the part that can be hidden, as far as there is work to hide it."""
    by_share, by_work = exposed_at_least(seconds, hidden, budget)
    return np.maximum(by_share, by_work)


class UpdateRates(NamedTuple):
    """Seconds of the optimizer's step for each parameter that a chip owns."""

    parameter_s: Number
    #: more for embedding, head and vectors, where these have more state
    vector_s: Number = 0.0
    #: for each FLOP of iterations on matrices
    flop_s: Number = 0.0
    #: where the host has the state: gradients down to it and updated weights up
    down_s: Number = 0.0
    up_s: Number = 0.0
    #: whether gradients go down after every micro-batch, instead of once a step
    each_microbatch: bool = False


def optimizer_seconds(home: Number, rates: UpdateRates, vectors: Number = 0.0, flops: Number = 0.0) -> Number:
    """The optimizer streams the state of the parameters a chip owns, and iterates on their matrices (Muon)."""
    return home * rates.parameter_s + vectors * rates.vector_s + flops * rates.flop_s


def offload_seconds(home: Number, rates: UpdateRates, budget: Number, microbatches: Number) -> Number:
    """Gradients to the host, behind the backward as far as that lasts, and updated weights back, hidden by nothing."""
    runs = microbatches if rates.each_microbatch else 1
    return home * rates.up_s + runs * exposed(home * rates.down_s, 1.0, budget)


def between_seconds(microbatch_s: Number, step_s: Number, microbatches: Number) -> Number:
    """What a step takes outside its layers: every micro-batch, and the step itself."""
    return microbatches * microbatch_s + step_s


@frozen
class Formula:
    """A formula of the step, the one function that has it, and the parts of the program whose figures it decides."""

    what: str
    #: module:function
    where: str
    consumers: tuple[str, ...]


#: Who calls what; `tests/test_one_model.py` changes each formula and looks at the figures of its consumers.
FORMULAS = (
    Formula(
        "state bytes by ZeRO stage",
        "dovetail.frameworks.parameter_bytes:state_bytes",
        ("evaluate", "search", "partition", "bounds", "mapping", "simulation"),
    ),
    Formula(
        "micro-batches in flight",
        "dovetail.pipeline.in_flight:chunk_runs_in_flight",
        ("evaluate", "search", "partition", "bounds", "mapping"),
    ),
    Formula(
        "saved activations at the peak",
        "dovetail.pipeline.in_flight:peak_saved",
        ("evaluate", "search", "partition"),
    ),
    Formula(
        "pipeline fill and drain",
        "dovetail.pipeline.longest_path_kernels:fill_and_drain_step",
        ("evaluate", "search", "partition"),
    ),
    Formula(
        "GPipe's two halves",
        "dovetail.pipeline.longest_path_kernels:gpipe_step",
        ("evaluate", "search", "partition"),
    ),
    Formula(
        "a layer's seconds, with exposed collectives and waits for the host",
        "dovetail.step.times:layer_times",
        ("evaluate", "search", "partition", "bounds", "mapping"),
    ),
    Formula(
        "exposed communication",
        "dovetail.step.formulas:exposed_at_least",
        ("evaluate", "search", "partition", "bounds", "mapping"),
    ),
    Formula(
        "overlap budget of the end of step",
        "dovetail.step.formulas:overlap_budget",
        ("evaluate", "search", "partition", "bounds", "mapping"),
    ),
    Formula(
        "optimizer of the end of step",
        "dovetail.step.formulas:optimizer_seconds",
        ("evaluate", "search", "partition", "bounds", "mapping", "simulation"),
    ),
    Formula(
        "micro-batches and steps outside the layers",
        "dovetail.step.formulas:between_seconds",
        ("evaluate", "search", "bounds", "simulation"),
    ),
    Formula(
        "tied weights of the end of step",
        "dovetail.step.times:tied_time",
        ("evaluate", "search", "bounds", "mapping", "simulation"),
    ),
    Formula(
        "transfer between stages",
        "dovetail.step.times:handover_seconds",
        ("evaluate", "search", "partition", "bounds", "mapping"),
    ),
    Formula(
        "parameters of a stage, tied ones once",
        "dovetail.step.memory_kernels:stage_parameters",
        ("evaluate", "search", "partition", "mapping", "simulation"),
    ),
    Formula(
        "stage memory by part",
        "dovetail.step.memory_kernels:memory_parts",
        ("evaluate", "search", "partition", "simulation"),
    ),
    Formula(
        "transient peak",
        "dovetail.step.formulas:transient_peak",
        ("partition", "bounds"),
    ),
    Formula(
        "optimizer's copies beyond the activations",
        "dovetail.step.formulas:beyond_activations",
        ("partition",),
    ),
    Formula(
        "allocator's overhead",
        "dovetail.step.formulas:allocator_bytes",
        ("evaluate", "search", "simulation"),
    ),
    Formula(
        "memory left for tensors",
        "dovetail.step.formulas:tensor_capacity",
        ("partition", "bounds", "mapping"),
    ),
)
