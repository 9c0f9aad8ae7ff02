"""Seconds of every chunk of the pipeline, and of the end of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dovetail.arrays import Floats, Ints, largest, summed
from dovetail.cost.calibration import Efficiencies
from dovetail.cost.collective import CollectiveTime, tiered_time
from dovetail.cost.tier import TierArrays
from dovetail.cost.units import tier_arrays, way_arrays
from dovetail.frozen import frozen
from dovetail.hardware import Cluster, Tier
from dovetail.layout import CollectiveKind
from dovetail.pipeline.chunk_times import ChunkTimes
from dovetail.plans.arrange import arrange, stage_hops
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import Handover, handover, on_tiles
from dovetail.profile import LayerProfile, Recompute
from dovetail.step.formulas import (
    exposed,
    exposed_at_least,
)
from dovetail.step.profiles import JobProfiles
from dovetail.step.stages import ChunkContent, Stage, layer_counts

#: The part of a step that chips wait for what their hosts hold.
OFFLOAD = "offload"


@frozen
class Overlaps:
    """Which communication a framework hides behind computation: the part of it that can be hidden, 0 to 1."""

    tensor_forward: Floats | float = 0.0
    tensor_backward: Floats | float = 0.0
    context: Floats | float = 0.0
    expert: Floats | float = 0.0
    #: of sharded weights, ahead of the layer that needs them
    weight_gather: Floats | float = 1.0
    #: of weights updated in shards, during the next step's forward
    updated_weights: Floats | float = 1.0
    gradient_reduction: Floats | float = 1.0
    #: whether stages work on while what they hand on is sent
    transfers: bool = True
    #: computation hides at least so many seconds, however short it is: unbounded in a lower bound
    min_overlap_s: float = 0.0
    #: seconds for each byte of activations that goes to the host or back
    offload_s_per_byte: float = 0.0


@frozen
class LayerWork:
    """What `layer_times` reads of a profile."""

    forward_s: Floats
    input_gradient_s: Floats
    weight_gradient_s: Floats
    forward_kernels: Floats | float
    backward_kernels: Floats | float
    forward_collective_s: Mapping[str, Floats]
    backward_collective_s: Mapping[str, Floats]


@frozen
class LayerTimes:
    """Seconds of one layer and micro-batch, what overlaps taken off; `parts` names where they go."""

    forward_s: Floats
    input_gradient_s: Floats
    weight_gradient_s: Floats
    parts: Mapping[str, Floats]
    #: of these, waits for the host in the forward, and in the input gradient
    forward_wait_s: Floats | float = 0.0
    backward_wait_s: Floats | float = 0.0
    #: and waits for activations on their way to the host, and back
    forward_offload_s: Floats | float = 0.0
    backward_offload_s: Floats | float = 0.0


def layer_times(
    profile: LayerProfile | LayerWork, recomputed: Recompute, overlaps: Overlaps, host_s: Floats | float = 0.0
) -> LayerTimes:
    """One layer's forward and backward with its exposed collectives, and the waits for a host that is slower."""
    backward_compute = profile.input_gradient_s + profile.weight_gradient_s
    added = recomputed.added_s
    backward_collectives = dict(profile.backward_collective_s)
    for name, seconds in recomputed.added_collective_s.items():
        backward_collectives[name] = backward_collectives.get(name, np.zeros(())) + seconds
    forward, parts_forward = _exposed_by_kind(
        profile.forward_collective_s, profile.forward_s, overlaps, overlaps.tensor_forward
    )
    backward, parts_backward = _exposed_by_kind(
        backward_collectives, backward_compute + added, overlaps, overlaps.tensor_backward
    )
    wait_forward = _wait(profile.forward_s + forward, profile.forward_kernels * host_s)
    launches = (profile.backward_kernels + recomputed.added_kernels) * host_s
    wait_backward = _wait(backward_compute + added + backward, launches)
    parts = {
        "forward": profile.forward_s,
        "backward": backward_compute,
        "recompute": added,
        "waiting for the host": wait_forward + wait_backward,
    }
    for name in sorted({*parts_forward, *parts_backward}):
        parts[name] = summed(p[name] for p in (parts_forward, parts_backward) if name in p)
    down = up = np.zeros(())
    if overlaps.offload_s_per_byte:
        sent = recomputed.offloaded_bytes * overlaps.offload_s_per_byte
        busy = (profile.forward_s + forward + wait_forward, backward_compute + added + backward + wait_backward)
        down, up = (exposed(sent, 1.0, np.maximum(each, overlaps.min_overlap_s)) for each in busy)
        parts[OFFLOAD] = down + up
    return LayerTimes(
        forward_s=profile.forward_s + forward + wait_forward + down,
        input_gradient_s=profile.input_gradient_s + backward + added + wait_backward + up,
        weight_gradient_s=profile.weight_gradient_s,
        parts=parts,
        forward_wait_s=wait_forward,
        backward_wait_s=wait_backward,
        forward_offload_s=down,
        backward_offload_s=up,
    )


def least_input_gradient(
    profile: LayerProfile, added_s: Floats, overlaps: Overlaps, host_s: Floats | float = 0.0
) -> Floats:
    """What a layer's input gradient takes at least with recompute that adds such seconds, as `layer_times` counts.

    Collectives are hidden by their full share, however little computation there is to hide them, and recompute
    launches nothing.
    """
    hidden = hidden_shares(overlaps, overlaps.tensor_backward)
    seen = summed(
        exposed_at_least(seconds, hidden[name], np.inf)[0] for name, seconds in profile.backward_collective_s.items()
    )
    busy = profile.input_gradient_s + profile.weight_gradient_s + seen + added_s
    return busy + _wait(busy, profile.backward_kernels * host_s) - profile.weight_gradient_s


#: How sharply a layer turns from bound by its chip to bound by its host. A layer mixes kernels longer and shorter
#: than their launch, so the one does not quite hide the other where both take about as long.
HOST_SHARPNESS = 4


def _wait(busy_s: Floats, host_s: Floats | float) -> Floats:
    """Seconds a chip is idle because its host has not launched the next kernel."""
    longer = np.maximum(busy_s, host_s)
    ratio = np.minimum(busy_s, host_s) / np.where(longer > 0, longer, 1.0)
    return longer * (1 + ratio**HOST_SHARPNESS) ** (1 / HOST_SHARPNESS) - busy_s


def _exposed_by_kind(
    collectives: Mapping[str, Floats], compute_s: Floats, overlaps: Overlaps, tensor: Floats | float
) -> tuple[Floats, dict[str, Floats]]:
    """Seconds of collectives that computation does not hide, in all and by kind; kinds use up its seconds in turn."""
    parts: dict[str, Floats] = {}
    budget = np.maximum(compute_s, overlaps.min_overlap_s)
    for name, hidden in hidden_shares(overlaps, tensor).items():
        if name in collectives:
            parts[name] = exposed(collectives[name], hidden, budget)
            budget = budget - (collectives[name] - parts[name])
    assert parts.keys() == collectives.keys(), "every kind of group has a share"
    return summed(parts.values()), parts


def hidden_shares(overlaps: Overlaps, tensor: Floats | float) -> dict[str, Floats | float]:
    """The part of a collective that can be hidden, by kind of group."""
    return {
        "tensor-parallel": tensor,
        "context-parallel": overlaps.context,
        "expert-parallel": overlaps.expert,
        "weight-gather": overlaps.weight_gather,
        "data-parallel": overlaps.gradient_reduction,
    }


def chunk_times(
    layers: Mapping[str, LayerTimes],
    contents: Sequence[ChunkContent],
    transfer_s: Floats,
    links: int,
    *,
    sending: bool = False,
    by_link: bool = False,
    lent_s: Floats | None = None,
) -> ChunkTimes:
    """Forward and backward seconds of every chunk; the last axis is its place along the model.

    `transfer_s` is the same on all links of the pipeline, or `by_link` along a last axis of its own. `lent_s` is what a
    stage waits for activations that another holds for it.

    Where a stage waits while it sends (`sending`), a transfer is its time; otherwise only its receiver's delay.
    """

    def total(field: str) -> Floats:
        sums = [summed(n * getattr(layers[name], field) for name, n in content.items()) for content in contents]
        return np.stack(np.broadcast_arrays(*sums), axis=-1)

    forward, of_input = total("forward_s"), total("input_gradient_s")
    transfers: Floats = np.asarray(transfer_s)
    if not by_link:
        transfers = np.repeat(transfers[..., None], links, axis=-1)
    if sending and len(contents) > 1:
        place = np.arange(len(contents) - 1)
        sent = transfers[..., place % transfers.shape[-1]]
        none = np.zeros_like(sent[..., :1])
        forward = forward + np.concatenate([sent, none], axis=-1)
        of_input = of_input + np.concatenate([none, sent], axis=-1)
        transfers = 0 * transfers
    if lent_s is not None and len(lent_s):
        # what the next micro-batch fetches comes the other way while this one is sent
        of_input = of_input + lent_s[np.arange(len(contents)) % len(lent_s)]
    return ChunkTimes(forward, of_input, total("weight_gradient_s"), transfer_s=transfers)


def busy_parts(layers: Mapping[str, LayerTimes], stages: Sequence[Stage], runs: float) -> dict[str, Floats]:
    """Where the seconds of one step go on the stage with most work, each chunk run so many times."""
    names = list(dict.fromkeys(part for times in layers.values() for part in times.parts))
    stage_parts = [_stage_parts(layers, stage, names, runs) for stage in stages]
    table = np.stack(np.broadcast_arrays(*(seconds for parts in stage_parts for seconds in parts)))
    by_stage = table.reshape(len(stages), len(names), *table.shape[1:])
    busiest = np.argmax(by_stage.sum(axis=1), axis=0)[None, None]
    return dict(zip(names, np.take_along_axis(by_stage, busiest, axis=0)[0], strict=True))


def _stage_parts(layers: Mapping[str, LayerTimes], stage: Stage, names: Sequence[str], runs: float) -> list[Floats]:
    counts = layer_counts(stage)
    return [
        summed(
            runs * count * layers[layer].parts[name] for layer, count in counts.items() if name in layers[layer].parts
        )
        for name in names
    ]


def transfer_seconds(plan: Plan, profiles: JobProfiles, cluster: Cluster, efficiencies: Efficiencies) -> Floats:
    """One stage's output to the next: over the tier that two neighbouring stages share, or by link on a wafer's tiles.

    Without sequence parallelism every tensor-parallel chip has the whole: each sends its part, and the receivers
    gather (Narayanan et al. 2021, section 4.1). That gather stays inside a node and is left out.
    """
    if plan.pipeline_parallel == 1:
        return np.zeros(())
    stream = largest(p.stream_bytes for p in profiles.layers.values())
    if on_tiles(plan, cluster):
        return _tile_transfers(plan, stream / plan.stream_replicas, cluster, efficiencies)
    replicas = 1 if plan.stages_inside else plan.data_parallel
    neighbours = 2 * plan.tensor_parallel * plan.context_parallel * replicas
    hops = stage_hops(arrange(plan, profiles.graph, cluster), cluster) if is_routed(cluster) else None
    return handover_seconds(stream / plan.stream_replicas, neighbours, hops or 0, cluster, efficiencies)


def _tile_transfers(plan: Plan, sent: Floats, cluster: Cluster, efficiencies: Efficiencies) -> Floats:
    """By link of the pipeline: what all dies of a tile take to send to their fellows of the next."""
    along, p = way_arrays(cluster, efficiencies), plan.pipeline_parallel
    links = [
        way_seconds(handover(plan, cluster, stage, (stage + 1) % p), sent, along)
        for stage in range(p if plan.pipeline_schedule == "interleaved" else p - 1)
    ]
    return np.stack(np.broadcast_arrays(*links), axis=-1)


def way_seconds(way: Handover, sent: Floats, along: Sequence[TierArrays]) -> Floats:
    """What all dies of a tile take to send to their fellows of another."""
    if way.hops:
        return hop_seconds(sent, way.hops, along, way.messages)
    edge = along[-1]
    return sent / (edge.bytes_per_s * edge.efficiency) + edge.latency_s + edge.launch_s


def handover_seconds(
    sent: Floats, neighbours: Ints | int, hops: Ints | int, cluster: Cluster, efficiencies: Efficiencies
) -> Floats:
    """What a chip takes to send bytes to its fellow of the next stage, of one plan or of many.

    Over the tier that holds both stages' `neighbours`, or over so many `hops` of a routed grid; 0 where it has none.
    """
    tiers = [tier_arrays(cluster.chip, tier, efficiencies) for tier in cluster.tiers]
    sizes = np.array([tier.size for tier in cluster.tiers])
    tier = np.minimum(np.searchsorted(sizes, neighbours), len(sizes) - 1)
    rates = np.stack(np.broadcast_arrays(*(t.bytes_per_s * t.efficiency for t in tiers)))[tier]
    waits = np.stack(np.broadcast_arrays(*(t.latency_s + t.launch_s for t in tiers)))[tier]
    seconds = sent / rates + waits
    if not np.any(hops):
        return seconds
    routed = hop_seconds(sent, np.maximum(hops, 1), way_arrays(cluster, efficiencies))
    return np.where(np.asarray(hops) > 0, routed, seconds)


def is_routed(cluster: Cluster) -> bool:
    """Whether messages take the links of a grid."""
    return any(tier.routed for tier in cluster.tiers)


def hop_seconds(sent: Floats, hops: Floats | int, along: Sequence[TierArrays], messages: int | None = None) -> Floats:
    """What every chip sends to one so many links on, all at once: each link carries as many messages, or so many."""
    axis = next(way for way in along if way.grid is not None)
    carried = hops if messages is None else messages
    return sent * carried / (axis.bytes_per_s / 2 * axis.efficiency) + hops * axis.latency_s + axis.launch_s


def tier_at(cluster: Cluster, chips: int) -> Tier:
    """The innermost tier that holds so many neighbouring chips."""
    return next((t for t in cluster.tiers if t.size >= chips), cluster.tiers[-1])


def tied_seconds(
    plan: Plan,
    profiles: JobProfiles,
    stages: Sequence[Stage],
    cluster: Cluster,
    efficiencies: Efficiencies,
    gradient_bytes: float,
) -> Floats:
    """Gradients of weights that several stages hold (embedding and head), summed once a step."""
    return summed(time.seconds for _, time in tied_times(plan, profiles, stages, cluster, efficiencies, gradient_bytes))


def tied_times(
    plan: Plan,
    profiles: JobProfiles,
    stages: Sequence[Stage],
    cluster: Cluster,
    efficiencies: Efficiencies,
    gradient_bytes: float,
) -> list[tuple[tuple[int, ...], CollectiveTime]]:
    """The same for every such weight: the stages that hold it, and what its sum takes on the tier that spans them."""
    shared = _tied_weights(profiles, stages)
    if not shared:
        return []
    tier = tier_arrays(cluster.chip, tier_at(cluster, plan.chips), efficiencies)
    return [(holders, tied_time(len(holders), parameters, gradient_bytes, tier)) for holders, parameters in shared]


def tied_time(holders: int, parameters: Floats, gradient_bytes: float, tier: TierArrays) -> CollectiveTime:
    """The sum of the gradients of a weight that so many stages hold, once a step."""
    groups = [(np.asarray(float(holders)), tier)]
    return tiered_time(CollectiveKind.ALL_REDUCE, groups, parameters * gradient_bytes)


def _tied_weights(profiles: JobProfiles, stages: Sequence[Stage]) -> list[tuple[tuple[int, ...], Floats]]:
    """Weights that several stages hold: the stages, and the parameters on a chip."""
    holders: dict[str, set[int]] = {}
    for position, stage in enumerate(stages):
        for name in layer_counts(stage):
            for weight in (w for w, tied in profiles.layers[name].tied_parameters.items() if tied.trained):
                holders.setdefault(weight, set()).add(position)
    tied_parameters = {weight: tied for p in profiles.layers.values() for weight, tied in p.tied_parameters.items()}
    return [
        (tuple(sorted(positions)), tied_parameters[weight].parameters)
        for weight, positions in holders.items()
        if len(positions) > 1
    ]
