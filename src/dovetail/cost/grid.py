"""Groups on a mesh or torus whose messages are routed along its links: what a rectangle of chips can carry.

A group lies along each axis with `extent` chips that are `stride` apart; the chips between them belong to groups that
do the same, so a link is shared by `stride` of them. A chip has two links along each axis; the ends of a line have one,
and a torus closes a line that is as long as its axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from dovetail.arrays import Floats
from dovetail.cost.tier import TierArrays
from dovetail.layout import CollectiveKind


def as_tier(kind: CollectiveKind, axes: Sequence[tuple[Floats, TierArrays]]) -> tuple[Floats, TierArrays]:
    """The axes of one grid as a tier: the chips of a group, and the rate at which it does such a collective."""
    chips = reduce(np.multiply, [extent for extent, _ in axes])
    several = np.maximum(chips, 2.0)  # a group of one chip needs no rate
    links = [_links(extent, tier) for extent, tier in axes]
    each = list(zip(axes, links, strict=True))
    match kind:
        case CollectiveKind.ALL_REDUCE:
            # docs/explanation/wafer-collectives.md: packed spanning trees at their optimum, (N − 1) · M over all
            # links, as the rate at which a ring's 2 (N − 1)/N · M would take as long
            rate = 2 * reduce(np.add, [link * edges for link, _, edges in links])
            # everything crosses every axis once
            across = [2 * (several - 1) / extent * link * ends for (extent, _), (link, ends, _) in each]
            rate = reduce(np.minimum, [rate, *_lying(across, axes)])
        case CollectiveKind.ALL_GATHER | CollectiveKind.REDUCE_SCATTER:
            # the links of a chip in the corner
            rate = reduce(np.add, [link * ends for link, ends, _ in links])
            # all but its own comes to the line of chips at the end of an axis
            across = [(several - 1) / np.maximum(extent - 1, 1) * link * ends for (extent, _), (link, ends, _) in each]
            rate = reduce(np.minimum, [rate, *_lying(across, axes)])
        case CollectiveKind.ALL_TO_ALL:
            # the middle of each axis: half of what is sent crosses it
            middle = [_middle(extent, link * ends) for (extent, _), (link, ends, _) in each]
            rate = (several - 1) / several * reduce(np.minimum, middle)
        case CollectiveKind.PERMUTE:
            # round a ring, over the slowest of its links
            rate = reduce(np.minimum, [np.where(ends > 0, link, np.inf) for link, ends, _ in links])
    # the farthest chip is this many hops away, over which a ring takes as many steps as it has chips
    far = reduce(np.add, [(extent - 1) * _stride(extent, tier) for extent, tier in axes])
    first = axes[0][1]
    return chips, TierArrays(
        np.where(chips > 1, rate, 1.0),
        first.latency_s * far / (several - 1),
        first.launch_s,
        first.efficiency,
    )


def _lying(rates: Sequence[Floats], axes: Sequence[tuple[Floats, TierArrays]]) -> list[Floats]:
    """Rates along the axes a group lies along; no limit along the others."""
    return [np.where(extent > 1, rate, np.inf) for rate, (extent, _) in zip(rates, axes, strict=True)]


def _stride(extent: Floats, tier: TierArrays) -> Floats:
    return np.where(extent > 1, tier.stride, 1.0)


def _links(extent: Floats, tier: TierArrays) -> tuple[Floats, Floats, Floats]:
    """A link's rate for one group; how many links, of one direction, a chip at the end of a line has, and the mean."""
    assert tier.grid is not None, "an axis of a grid"
    stride = _stride(extent, tier)
    closed = tier.grid.wraps & (extent * stride == tier.grid.length) & (extent > 2)
    link = tier.bytes_per_s / 2 / stride
    spans = extent > 1
    return link, spans * (1.0 + closed), spans * (extent - 1 + closed) / extent


def _middle(extent: Floats, rate: Floats) -> Floats:
    """Bytes per second of each chip through the middle of an axis; no limit where the group does not lie along it."""
    crossing = np.floor(extent / 2) * np.ceil(extent / 2) / extent
    return np.where(extent > 1, rate / np.maximum(crossing, 0.25), np.inf)
