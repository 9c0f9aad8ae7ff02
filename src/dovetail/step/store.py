"""A store off the wafer: the seconds its streams take in a step, and the bytes it holds.

A store sends every weight once to a wafer, which spreads it over its dies, accumulates gradients and updates weights
itself (weight streaming, Cerebras; MemoryX). Streams of weights and activations overlap computation, so a pipeline
takes the longer of the two; gradients and updated weights that are exchanged once a step come after it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.frozen import frozen
from dovetail.graph import ModelGraph
from dovetail.graph import count as graph_count
from dovetail.hardware import Cluster
from dovetail.plans.arrange import arrange
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import num_wafers, on_tiles, stage_tiles
from dovetail.plans.wafer_tiles import die_tiles
from dovetail.profile.recompute import BLOCKS_ON_CHIP
from dovetail.step.facts import StreamedBytes
from dovetail.step.stages import LayerVariant, Stage, layer_counts


@frozen
class StageTraffic:
    """What one stage exchanges with the store of each of its wafers: bytes of a micro-batch, and once a step."""

    #: weights ahead of a micro-batch's forward and again of its backward
    weights_in: float = 0.0
    #: gradients behind a micro-batch's backward
    gradients_out: float = 0.0
    #: activations behind a forward, and the same ahead of its backward
    activations: float = 0.0
    step_bytes: float = 0.0
    #: what the store holds for it
    stored_bytes: float = 0.0

    @property
    def microbatch_bytes(self) -> float:
        """Of a micro-batch's forward and backward."""
        return 2 * self.weights_in + self.gradients_out + 2 * self.activations


@frozen
class StoreUse:
    """Stages' traffic, the wafers each is on, and how many micro-batches a step has."""

    by_stage: tuple[StageTraffic, ...] = ()
    wafers: tuple[frozenset[int], ...] = ()
    microbatches: int = 0
    bytes_per_s: float = 1.0

    @property
    def overlapped_s(self) -> float:
        """Seconds of the busiest store beside computation."""
        return self.microbatches * self._busiest([each.microbatch_bytes for each in self.by_stage])

    @property
    def end_s(self) -> float:
        """Seconds of the busiest store at the end of a step."""
        return self._busiest([each.step_bytes for each in self.by_stage])

    @property
    def stored_bytes(self) -> float:
        """What the fullest store holds."""
        return self._busiest([each.stored_bytes for each in self.by_stage]) * self.bytes_per_s

    def _busiest(self, each: Sequence[float]) -> float:
        numbers = sorted({wafer for of_stage in self.wafers for wafer in of_stage})
        sums = [sum(n for n, on in zip(each, self.wafers, strict=True) if wafer in on) for wafer in numbers]
        return max(sums, default=0.0) / self.bytes_per_s


def store_use(
    plan: Plan,
    graph: ModelGraph,
    cluster: Cluster,
    sizes: StreamedBytes,
    stages: Sequence[Stage],
    variants: Mapping[str, LayerVariant],
    saved_bytes: Floats,
    held_bytes: Floats,
) -> StoreUse:
    """What a step exchanges with the stores.

    `saved_bytes` are what a die of each stage saves of a micro-batch, `held_bytes` what it saves at its peak.
    """
    store = () if plan.wafer is None else plan.wafer.store
    if not store or cluster.store is None:
        return StoreUse()
    wafers = stage_wafers(plan, graph, cluster)
    dies = plan.chips // plan.pipeline_parallel
    traffic: list[StageTraffic] = []
    for stage, on, saved, held in zip(stages, wafers, saved_bytes.tolist(), held_bytes.tolist(), strict=True):
        layers = ((graph.layers[variants[name].layer], number) for name, number in layer_counts(stage).items())
        count = sum(number * float(graph_count.parameters(layer)) for layer, number in layers)
        moved, stored = count * (sizes.weights + sizes.gradients), count * sizes.optimizer
        each = StageTraffic(step_bytes=moved, stored_bytes=stored)
        if "weights" in store:
            each = StageTraffic(count * sizes.weights, count * sizes.gradients, stored_bytes=stored + moved)
        if "activations" in store:
            share = dies / len(on)
            each = replace(each, activations=share * saved, stored_bytes=each.stored_bytes + share * held)
        traffic.append(each)
    return StoreUse(tuple(traffic), wafers, plan.num_microbatches, cluster.store.bytes_per_s)


def stage_wafers(plan: Plan, graph: ModelGraph, cluster: Cluster) -> tuple[frozenset[int], ...]:
    """The wafers that each stage is on."""
    if on_tiles(plan, cluster):
        return tuple(frozenset({tile.wafer}) for tile in stage_tiles(plan, cluster))
    if num_wafers(cluster) == 1:
        return (frozenset({0}),) * plan.pipeline_parallel
    by_stage: dict[int, set[int]] = {}
    for die in die_tiles(plan, arrange(plan, graph, cluster), cluster):
        by_stage.setdefault(die.stage, set()).add(die.wafer)
    return tuple(frozenset(by_stage[stage]) for stage in range(plan.pipeline_parallel))


def on_die_activations(saved_by_layer: Floats, counts: Ints) -> Floats:
    """By stage, what dies hold of activations where a store has them: those of the largest blocks at work."""
    return BLOCKS_ON_CHIP * np.max(np.where(counts > 0, saved_by_layer, 0.0), axis=1)


def least_store_seconds(
    parameters: float, microbatches: int, store: Collection[str], sizes: StreamedBytes, wafers: int, bytes_per_s: float
) -> float:
    """Seconds that streams of weights and gradients take at least, however stages are spread over wafers."""
    if "optimizer" not in store:
        return 0.0
    exchanged = sizes.weights + sizes.gradients
    each = microbatches * (sizes.weights + exchanged) if "weights" in store else exchanged
    return parameters / wafers * each / bytes_per_s
