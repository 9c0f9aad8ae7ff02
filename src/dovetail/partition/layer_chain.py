"""The partition problem: a row of layers with a recompute policy each, and what a partition costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from dovetail.arrays import ROUNDING, Floats
from dovetail.frozen import frozen
from dovetail.pipeline.chunk_times import ChunkTimes
from dovetail.pipeline.in_flight import peak_saved
from dovetail.pipeline.step_time import step_time
from dovetail.plans.pipeline_schedule import SCHEDULE_CODES, Pipeline
from dovetail.step.formulas import beyond_activations, transient_peak


@dataclass(frozen=True, slots=True, eq=False)
class LayerPolicies:
    """One layer class: what a micro-batch takes under each policy, and what its state takes. Arrays over policies."""

    forward_s: float
    #: with what the policy recomputes
    input_gradient_s: Floats
    weight_gradient_s: float
    #: per micro-batch in flight
    saved_bytes: Floats
    #: recomputed, while this layer's backward runs
    workspace_bytes: Floats
    #: weights, gradients and optimizer state
    state_bytes: float = 0.0
    #: what the optimizer's step needs beside the state, when no activation is left
    step_bytes: float = 0.0
    #: in use while any layer of this class works, by kind; a stage needs the largest of each kind
    working_bytes: tuple[float, ...] = ()
    #: there while the loss of this layer is computed, and no backward runs
    loss_bytes: float = 0.0
    #: weights that are gathered for a while; a stage needs the largest
    gathered_bytes: float = 0.0
    #: seconds of this layer at the end of a step, in alternatives: a stage takes the one that is longest over all its
    #: layers. This is how communication is described that work hides, up to a share of it and up to the work.
    once_s: tuple[float, ...] = (0.0,)


@dataclass(frozen=True, slots=True, eq=False)
class LayerChain:
    """Layers in a row, the pipeline they are placed on, and its devices."""

    classes: tuple[LayerPolicies, ...]
    #: the class of every layer, in order
    order: tuple[int, ...]
    pipeline: Pipeline
    device_bytes: float
    transfer_s: float = 0.0
    #: a stage waits while it sends: transfers take its time instead of delaying the receiver
    sends_itself: bool = False


@frozen
class LayerPartition:
    """Where chunks end (one past their last layer), by place along the model, and the policy of every layer."""

    ends: tuple[int, ...]
    policies: tuple[int, ...]

    @property
    def chunks(self) -> tuple[range, ...]:
        """The layers of every chunk."""
        return tuple(range(first, end) for first, end in zip((0, *self.ends[:-1]), self.ends, strict=True))


def stage_bytes(chain: LayerChain, stage: int, chunks: Sequence[Sequence[int]], policies: Sequence[int]) -> float:
    """Bytes of a stage whose chunks hold these layers; `options` are those of all layers of the chain."""
    pipeline = chain.pipeline
    of_layer = {i: chain.classes[chain.order[i]] for chunk in chunks for i in chunk}
    classes = list(of_layer.values())
    state = sum(c.state_bytes for c in classes)
    saved = np.array([sum(float(of_layer[i].saved_bytes[policies[i]]) for i in chunk) for chunk in chunks])
    sizes = pipeline.num_stages, pipeline.num_microbatches, pipeline.num_chunks, pipeline.microbatch_group_size
    activations = peak_saved(SCHEDULE_CODES[pipeline.schedule], *sizes, stage, saved)
    workspace = max(c.workspace_bytes[policies[i]] for i, c in of_layer.items())
    activations += transient_peak(max(c.loss_bytes for c in classes), workspace, working_bytes(classes))
    activations += max(c.gathered_bytes for c in classes)
    return float(state + activations + beyond_activations(sum(c.step_bytes for c in classes), activations))


def working_bytes(classes: Sequence[LayerPolicies]) -> float:
    """The largest of each kind of working memory, added up."""
    return sum(max(kind) for kind in zip_longest(*(c.working_bytes for c in classes), fillvalue=0.0))


def once_seconds(classes: Sequence[LayerPolicies]) -> float:
    """Seconds of a stage once a step."""
    return max(sum(parts) for parts in zip(*(c.once_s for c in classes), strict=True))


def partition_seconds(chain: LayerChain, placement: LayerPartition) -> float:
    """The step time of a partition, straight from the definition; infinite where a stage does not fit."""
    pipeline, chunks = chain.pipeline, placement.chunks
    once = 0.0
    for stage in range(pipeline.num_stages):
        of_stage = chunks[stage :: pipeline.num_stages]
        if stage_bytes(chain, stage, of_stage, placement.policies) > chain.device_bytes * (1 + ROUNDING):
            return float("inf")
        once = max(once, once_seconds([chain.classes[chain.order[i]] for chunk in of_stage for i in chunk]))
    return pipeline_seconds(chain, placement) + once


def pipeline_seconds(chain: LayerChain, placement: LayerPartition) -> float:
    """The part of the step time that the pipeline takes."""
    forward, of_input, of_weight = np.zeros((3, len(placement.chunks)))
    for place, layers in enumerate(placement.chunks):
        for i in layers:
            layer = chain.classes[chain.order[i]]
            forward[place] += layer.forward_s
            of_input[place] += layer.input_gradient_s[placement.policies[i]]
            of_weight[place] += layer.weight_gradient_s
    transfer = chain.transfer_s
    if chain.sends_itself:
        forward[:-1] += transfer
        of_input[1:] += transfer
        transfer = 0.0
    return float(step_time(chain.pipeline, ChunkTimes(forward, of_input, of_weight, transfer)))
