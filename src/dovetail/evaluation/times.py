"""Seconds of every chunk of the pipeline, and of what follows the pipeline in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.cost.collective import seconds as collective_seconds
from dovetail.cost.shapes import Array, summed
from dovetail.cost.units import chip_units, tier_arrays
from dovetail.evaluation.profiles import UPDATED_WEIGHTS, JobProfiles
from dovetail.hardware import Cluster, Tier
from dovetail.layout import CollectiveKind
from dovetail.placement.memory import stage_parameters
from dovetail.placement.plan import Plan
from dovetail.placement.stages import ChunkContent, Stage, layer_counts
from dovetail.placement.step_time import ChunkTimes
from dovetail.profile import LayerProfile, Recompute


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Which communication a framework hides behind computation: the part of it that can be hidden, 0 to 1."""

    tensor: float = 0.0
    context: float = 0.0
    expert: float = 0.0
    #: of weights kept in shards, ahead of the layer that needs them
    weight_gather: float = 1.0
    #: of weights updated in shards, beside the next step's forward
    updated_weights: float = 1.0
    gradient_reduction: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds of one layer and microbatch, what overlaps taken off; `parts` names where they go."""

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    parts: Mapping[str, float]


def layer_times(profile: LayerProfile, again: Recompute, overlaps: Overlaps) -> LayerTimes:
    """One layer's forward and backward with its exposed collectives."""
    backward_compute = float(profile.input_gradient_s + profile.weight_gradient_s)
    added = float(again.added_s)
    backward_collectives = dict(profile.backward_collective_s)
    for name, seconds in again.added_collective_s.items():
        backward_collectives[name] = backward_collectives.get(name, np.zeros(())) + seconds
    forward, parts_forward = _exposed(profile.forward_collective_s, float(profile.forward_s), overlaps)
    backward, parts_backward = _exposed(backward_collectives, backward_compute + added, overlaps)
    parts = {"forward": float(profile.forward_s), "backward": backward_compute, "recompute": added}
    for name in sorted({*parts_forward, *parts_backward}):
        parts[name] = parts_forward.get(name, 0.0) + parts_backward.get(name, 0.0)
    return LayerTimes(
        forward_s=float(profile.forward_s) + forward,
        input_gradient_s=float(profile.input_gradient_s) + backward + added,
        weight_gradient_s=float(profile.weight_gradient_s),
        parts=parts,
    )


def _exposed(collectives: Mapping[str, Array], compute_s: float, overlaps: Overlaps) -> tuple[float, dict[str, float]]:
    """Seconds of collectives that computation does not hide, in all and by kind."""
    hidden = {
        "tensor-parallel": overlaps.tensor,
        "context-parallel": overlaps.context,
        "expert-parallel": overlaps.expert,
        "weight-gather": overlaps.weight_gather,
        "data-parallel": overlaps.gradient_reduction,
    }
    parts: dict[str, float] = {}
    room = compute_s
    for name, seconds in collectives.items():
        could = min(float(seconds) * hidden[name], room)
        room -= could
        parts[name] = float(seconds) - could
    return sum(parts.values()), parts


def chunk_times(layers: Mapping[str, LayerTimes], contents: Sequence[ChunkContent], transfer_s: float) -> ChunkTimes:
    """Forward and backward seconds of every chunk, by place along the model."""

    def total(field: str) -> list[float]:
        return [sum(n * getattr(layers[name], field) for name, n in content.items()) for content in contents]

    return ChunkTimes(total("forward_s"), total("input_gradient_s"), total("weight_gradient_s"), transfer_s=transfer_s)


def busy_parts(layers: Mapping[str, LayerTimes], stages: Sequence[Stage], runs: float) -> dict[str, float]:
    """Where the seconds of one step go on the stage with most work, each chunk run so many times."""
    every: list[dict[str, float]] = []
    for stage in stages:
        parts: dict[str, float] = {}
        for name, count in layer_counts(stage).items():
            for part, seconds in layers[name].parts.items():
                parts[part] = parts.get(part, 0.0) + runs * count * seconds
        every.append(parts)
    return max(every, key=lambda parts: sum(parts.values()))


def transfer_seconds(plan: Plan, profiles: JobProfiles, cluster: Cluster) -> float:
    """One stage's output to the next: over the tier that a stage's width reaches.

    A transfer delays its receiver whatever overlaps; only the sender's time can be hidden.
    """
    if plan.pipeline_parallel == 1:
        return 0.0
    arrays = tier_arrays(cluster.chip, _tier_at(cluster, 2 * plan.chips // plan.pipeline_parallel))
    stream = max(float(p.stream_bytes) for p in profiles.layers.values())
    return stream / float(arrays.bytes_per_s * arrays.efficiency) + float(arrays.latency_s + arrays.launch_s)


def _tier_at(cluster: Cluster, chips: int) -> Tier:
    return next((t for t in cluster.tiers if t.size >= chips), cluster.tiers[-1])


def reduction_seconds(
    profiles: JobProfiles, stages: Sequence[Stage], layers: Mapping[str, LayerTimes], overlaps: Overlaps
) -> tuple[float, float]:
    """What a step adds to its microbatches: reduction of gradients, and gathering of weights updated in shards.

    The one can hide behind the last microbatch's backward, the other behind the next step's first forward.
    """
    reduced, gathered = [0.0], [0.0]
    for stage in stages:
        totals = dict.fromkeys(("reduction", "gathering", "backward", "forward"), 0.0)
        for name, count in layer_counts(stage).items():
            collectives, times = profiles.layers[name].step_collective_s, layers[name]
            updated = float(collectives.get(UPDATED_WEIGHTS, 0.0))
            totals["reduction"] += count * (float(summed(collectives.values())) - updated)
            totals["gathering"] += count * updated
            totals["backward"] += count * (times.input_gradient_s + times.weight_gradient_s)
            totals["forward"] += count * times.forward_s
        reduced.append(_left(totals["reduction"], overlaps.gradient_reduction, totals["backward"]))
        gathered.append(_left(totals["gathering"], overlaps.updated_weights, totals["forward"]))
    return max(reduced), max(gathered)


def _left(seconds: float, hidden: float, room_s: float) -> float:
    """What of a communication is not hidden, given the part that can be and the work beside it."""
    return seconds - min(seconds * hidden, room_s)


def update_seconds(
    profiles: JobProfiles, stages: Sequence[Stage], cluster: Cluster, precision: str, update_bytes: float
) -> float:
    """The optimizer: it streams the state of the parameters a chip owns."""
    memory = float(chip_units(cluster.chip, precision).vector.memory_bytes_per_s)
    return max(float(stage_parameters(stage, profiles.layers)[1]) for stage in stages) * update_bytes / memory


def tied_seconds(
    plan: Plan, profiles: JobProfiles, stages: Sequence[Stage], cluster: Cluster, gradient_bytes: float
) -> float:
    """Gradients of weights that several stages hold (embedding and head), summed once a step."""
    holders: dict[str, set[int]] = {}
    for position, stage in enumerate(stages):
        for name in layer_counts(stage):
            for weight in profiles.layers[name].tied_parameters:
                holders.setdefault(weight, set()).add(position)
    shared = {weight: len(found) for weight, found in holders.items() if len(found) > 1}
    if not shared:
        return 0.0
    tier = tier_arrays(cluster.chip, _tier_at(cluster, plan.chips))
    held = {weight: tied for p in profiles.layers.values() for weight, tied in p.tied_parameters.items()}
    return sum(
        float(
            collective_seconds(CollectiveKind.ALL_REDUCE, np.asarray(n), held[weight].parameters * gradient_bytes, tier)
        )
        for weight, n in shared.items()
    )
