"""Collective time per network tier: latency and bandwidth, the algorithm chosen by cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.cost.shapes import Array
from dovetail.layout import CollectiveKind


@dataclass(frozen=True, slots=True)
class TierArrays:
    """One network tier as collectives see it; every field an array or a number."""

    #: bytes per second one chip can send, per direction
    bytes_per_s: Array
    #: seconds per hop or message
    latency_s: Array
    #: seconds any collective costs before the first byte
    launch_s: Array
    #: part of the bandwidth large messages reach
    efficiency: Array
    #: whether switches add up all-reduces (NVLink SHARP)
    in_network_reduction: bool = False


def seconds(kind: CollectiveKind, chips: Array, size: Array, tier: TierArrays) -> Array:
    """One collective over `chips` chips of one tier; `size` as layout.Collective.bytes states it."""
    rate = tier.bytes_per_s * tier.efficiency
    n = np.maximum(chips, 1.0)
    share = (n - 1) / n
    match kind:
        case CollectiveKind.ALL_REDUCE:
            ring = 2 * share * size / rate + 2 * (n - 1) * tier.latency_s
            tree = 2 * size / rate + 2 * np.ceil(np.log2(np.maximum(n, 2.0))) * tier.latency_s
            body = np.minimum(ring, tree)
            if tier.in_network_reduction:
                # every chip sends once and receives once; the switch adds (Klenk et al. 2020)
                body = np.minimum(body, size / rate + 2 * tier.latency_s)
        case CollectiveKind.ALL_GATHER | CollectiveKind.REDUCE_SCATTER:
            ring = share * size / rate + (n - 1) * tier.latency_s
            halving = share * size / rate + np.ceil(np.log2(np.maximum(n, 2.0))) * tier.latency_s
            body = np.minimum(ring, halving)
        case CollectiveKind.ALL_TO_ALL:
            # messages to different peers are posted together
            body = share * size / rate + np.ceil(np.log2(np.maximum(n, 2.0))) * tier.latency_s
        case CollectiveKind.PERMUTE:
            # what one chip holds goes round the ring, one neighbour at a time
            body = share * size / rate + (n - 1) * tier.latency_s
    return np.where(n > 1, body + tier.launch_s, 0.0)


def tiered_seconds(kind: CollectiveKind, groups: Sequence[tuple[Array, TierArrays]], size: Array) -> Array:
    """Over several tiers, innermost first: inside on all the data, across on what is left of it.

    Reduce inside, all-reduce across on 1/n of the data, gather inside: each chip of the inner group
    talks to its counterparts outside at once, so the outer tier carries 1/n of the bytes per chip.
    """
    total: Array = np.zeros_like(size)
    rest = size
    for position, (chips, tier) in enumerate(groups):
        last = position == len(groups) - 1
        match kind:
            case CollectiveKind.ALL_REDUCE if not last:
                total = total + 2 * seconds(CollectiveKind.REDUCE_SCATTER, chips, rest, tier)
            case CollectiveKind.ALL_TO_ALL | CollectiveKind.PERMUTE:
                # bytes for other groups cross the outer tier meanwhile: the slower tier decides
                outside = np.prod([g for g, _ in groups[position + 1 :]], axis=0) if not last else 1.0
                total = np.maximum(total, seconds(kind, chips, size / outside, tier))
            case _:
                total = total + seconds(kind, chips, rest, tier)
        rest = rest / np.maximum(chips, 1.0)
    return total
