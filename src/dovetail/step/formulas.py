"""The formulas of a training step, each once: plain arithmetic on numbers or arrays, and inside compiled code.

`evaluate` calls them for one plan, the search's kernels for a million, partition, bounds and mapping with exact or
relaxed arguments; `compiled_formulas` makes them callable inside compiled code. `FORMULAS` lists who calls what,
and tests/test_one_model.py checks that they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from dovetail.arrays import Number, choose
from dovetail.frameworks.parameter_bytes import ParameterBytes


def optimizer_step_bytes(
    used: Number, home: Number, zero_stage: Number, sizes: ParameterBytes, activations: Number
) -> Number:
    """What the optimizer's copies of the gradients it owns need beyond the activations."""
    return beyond_activations(choose(zero_stage >= 1, home, used) * sizes.step_copy, activations)


def beyond_activations(step: Number, activations: Number) -> Number:
    """What the optimizer's step needs beyond the activations, which are gone when it runs."""
    return np.maximum(step - activations, 0.0)


def transient_peak(loss: Number, workspace: Number, transient: Number, layer_gradients: Number) -> Number:
    """The larger of a stage's two transient peaks: the loss is over before the backward of a layer begins."""
    return np.maximum(loss, workspace + transient + layer_gradients)


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


def optimizer_seconds(home: Number, update: Number) -> Number:
    """The optimizer streams the state of the parameters a chip owns, at `update` seconds per parameter."""
    return home * update


#: Formula → the parts of the program whose figures it decides; `tests/test_one_model.py` scales each and looks.
FORMULAS: Mapping[str, tuple[str, ...]] = MappingProxyType({})
