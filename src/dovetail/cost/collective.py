"""Collective time over network tiers: links, chunks and protocols, the algorithm chosen by cost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from dovetail.arrays import Bools, Floats
from dovetail.cost.grid import as_tier
from dovetail.cost.tier import TierArrays
from dovetail.frozen import frozen
from dovetail.graph.routing import ONE_GROUP, ExpertGroups
from dovetail.layout import CollectiveKind

#: So many chips of the innermost tier a tree visits one by one, as NCCL's does inside a node; beyond it branches.
CHAIN = 8
#: Starts of an all-reduce that the switches add up: itself, and the barriers of its reduction and its broadcast.
SWITCH_STARTS = 3


@frozen
class Transport:
    """How messages cross links, on all chips: fitted on nccl-tests of seven GPUs (docs/explanation/collectives.md)."""

    #: part of the sustained rate of protocols that flag every line instead of handing over chunks (NCCL's LL128)
    low_latency: float = 0.36
    #: what handing over a chunk costs, in launches
    chunk: float = 0.61
    #: copying a chip's own share of the result, in parts of the time to send it
    copy: float = 0.38
    #: part of the sustained rate at which switches add up
    switch: float = 0.79


TRANSPORT = Transport()

Groups = Sequence[tuple[Floats, TierArrays]]


def seconds(
    kind: CollectiveKind, chips: Floats, size: Floats, tier: TierArrays, transport: Transport = TRANSPORT
) -> Floats:
    """One collective over `chips` chips of one tier; `size` as layout.Collective.bytes states it."""
    return tiered_seconds(kind, [(chips, tier)], size, transport)


def tiered_seconds(
    kind: CollectiveKind,
    groups: Groups,
    size: Floats,
    transport: Transport = TRANSPORT,
    receivers: float = 1.0,
    limit: ExpertGroups = ONE_GROUP,
) -> Floats:
    """One collective over several tiers; see `tiered_time`."""
    return tiered_time(kind, groups, size, transport, receivers, limit).seconds


@frozen
class CollectiveTime:
    """What a collective takes alone, and for how much of it each tier's links are busy."""

    seconds: Floats
    busy_s: Sequence[Floats]


def tiered_time(
    kind: CollectiveKind,
    groups: Groups,
    size: Floats,
    transport: Transport = TRANSPORT,
    receivers: float = 1.0,
    limit: ExpertGroups = ONE_GROUP,
) -> CollectiveTime:
    """One collective over several tiers, innermost first, each with how many of the groups inside it it joins.

    Chunks follow each other through all tiers at once, so the slowest tier decides, while latencies add up.
    Every chip of an inner group has its own way out: the tier outside carries 1/n of the bytes per chip. An exchange
    that sends every element to so many `receivers` sends it once to each outer group with any of them; a `limit` says
    over how many of all groups of experts these spread. A tier that joins one group alone is as if it were not there,
    so arrays can mix collectives that use it and others.
    """
    if not groups:
        return CollectiveTime(np.zeros_like(size), ())
    if any(tier.grid is not None for _, tier in groups):
        return _on_grids(kind, groups, size, transport, receivers, limit)
    way = _way(groups)
    match kind:
        case CollectiveKind.ALL_REDUCE:
            depths = [_depth(chips, inside) for chips, inside in zip(way.chips, way.inside, strict=True)]
            body = _faster(_ring(way, 2.0, size, transport), _tree(way, depths, size, transport))
            if any(way.adding):
                adds = reduce(np.logical_or, [n > 1 for n, adds in zip(way.chips, way.adding, strict=True) if adds])
                body = _faster(body, _switch_tree(way, depths, size, transport), adds)
        case CollectiveKind.ALL_GATHER | CollectiveKind.REDUCE_SCATTER:
            body = _ring(way, 1.0, size, transport)
        case CollectiveKind.ALL_TO_ALL | CollectiveKind.PERMUTE:
            body = _exchange(way, kind is CollectiveKind.PERMUTE, size, transport, receivers, limit)
    return CollectiveTime(np.where(way.total > 1, way.launch + body.seconds, 0.0), body.busy_s)


def _on_grids(
    kind: CollectiveKind, groups: Groups, size: Floats, transport: Transport, receivers: float, limit: ExpertGroups
) -> CollectiveTime:
    """The same where tiers are grids: all axes of a grid a group lies along work at once, as one tier."""
    numbers = [position if tier.grid is None else -1 - tier.grid.grid for position, (_, tier) in enumerate(groups)]
    together = [[pair for pair, n in zip(groups, numbers, strict=True) if n == key] for key in dict.fromkeys(numbers)]
    joined = [as_tier(kind, axes) if axes[0][1].grid is not None else axes[0] for axes in together]
    merged = tiered_time(kind, joined, size, transport, receivers, limit)
    busy = dict(zip(dict.fromkeys(numbers), merged.busy_s, strict=True))
    # an axis that a group does not lie along carries nothing of it
    return CollectiveTime(
        merged.seconds, [busy[n] * (chips > 1) for n, (chips, _) in zip(numbers, groups, strict=True)]
    )


def _faster(one: CollectiveTime, other: CollectiveTime, possible: Bools | bool = True) -> CollectiveTime:
    """Of two algorithms the one that takes less, where the other is possible."""
    faster = np.logical_and(other.seconds < one.seconds, possible)
    busy = [np.where(faster, theirs, mine) for mine, theirs in zip(one.busy_s, other.busy_s, strict=True)]
    return CollectiveTime(np.where(faster, other.seconds, one.seconds), busy)


@frozen
class _Way:
    """The tiers of one collective, innermost first."""

    chips: list[Floats]
    #: chips of one group of the tiers inside
    inside: list[Floats]
    #: seconds one byte per such group takes; a tier that joins nothing takes none
    per_byte: list[Floats]
    latency: list[Floats]
    adding: list[bool]
    #: the innermost tier that each tier shares its ports with: itself, where these are its own
    sharing: list[int]
    total: Floats
    launch: Floats

    @property
    def joined(self) -> list[Floats]:
        """Groups that each tier joins together with those that share its ports."""
        runs = [[n for n, its in zip(self.chips, self.sharing, strict=True) if its == first] for first in self.sharing]
        return [reduce(np.multiply, run) for run in runs]

    def busy(self, sizes: Sequence[Floats]) -> list[Floats]:
        """How long each tier's links are busy, with the bytes of each group of the tiers inside."""
        return [size * cost for size, cost in zip(sizes, self.per_byte, strict=True)]

    def hops(self, counts: Sequence[Floats]) -> Floats:
        """Seconds of so many hops in each tier."""
        return reduce(np.add, [count * latency for count, latency in zip(counts, self.latency, strict=True)])


def _way(groups: Groups) -> _Way:
    inside: list[Floats] = []
    per_byte: list[Floats] = []
    total: Floats = np.ones(())
    for chips, tier in groups:
        inside.append(total)
        per_byte.append((chips > 1) / (total * tier.bytes_per_s * tier.efficiency))
        total = total * chips
    return _Way(
        [chips for chips, _ in groups],
        inside,
        per_byte,
        [tier.latency_s for _, tier in groups],
        [tier.in_network_reduction for _, tier in groups],
        _sharing([tier.ports for _, tier in groups]),
        total,
        reduce(np.maximum, [tier.launch_s * (chips > 1) for chips, tier in groups]),
    )


def _sharing(ports: Sequence[str | None]) -> list[int]:
    first: list[int] = []
    for position, name in enumerate(ports):
        shared = name is not None and position > 0 and ports[position - 1] == name
        first.append(first[-1] if shared else position)
    return first


def _ring(way: _Way, rounds: float, size: Floats, transport: Transport) -> CollectiveTime:
    """Round a ring through all chips, one share after another: twice to reduce and gather (Patarasuk, Yuan 2009)."""
    carried = (rounds * (way.total - 1) + transport.copy) / way.total * size
    # a ring enters and leaves each group of a tier once
    hops = [(n - 1) * way.total / (n * inside) for n, inside in zip(way.chips, way.inside, strict=True)]
    busy = way.busy([carried] * len(hops))
    return CollectiveTime(rounds * way.hops(hops) + _low_latency(_longest(busy), way.launch, transport), busy)


def _tree(way: _Way, depths: Sequence[Floats], size: Floats, transport: Transport) -> CollectiveTime:
    """Up a tree and down again: whoever has two neighbours receives everything twice."""
    copied = transport.copy / way.total
    busy = way.busy([(np.minimum(2.0, n - 1) + copied) * size for n in way.joined])
    return CollectiveTime(2 * way.hops(depths) + _low_latency(_longest(busy), way.launch, transport), busy)


def _switch_tree(way: _Way, depths: Sequence[Floats], size: Floats, transport: Transport) -> CollectiveTime:
    """A tree whose switches add up where they can.

    A chip lets its switch read everything once and sends its sum to all, or receives all sums and its share of
    the addends: (1 + 1/n) of the data either way (Klenk et al. 2020).
    """
    adding = zip(way.joined, way.adding, strict=True)
    parts = [(1 + 1 / n) / transport.switch if adds else np.minimum(2.0, n - 1) for n, adds in adding]
    hops = [np.minimum(depth, 1.0) if adds else depth for depth, adds in zip(depths, way.adding, strict=True)]
    start = SWITCH_STARTS * way.launch
    busy = way.busy([part * size for part in parts])
    return CollectiveTime(start - way.launch + 2 * way.hops(hops) + _chunked(_longest(busy), start, transport), busy)


def _exchange(
    way: _Way, ring: bool, size: Floats, transport: Transport, receivers: float, limit: ExpertGroups
) -> CollectiveTime:
    """Each chip sends to all others, at once or to one neighbour after another round a ring."""
    sizes: list[Floats] = []
    for n, joined, inside in zip(way.chips, way.joined, way.inside, strict=True):
        innermost = inside == 1
        copied = 0.0 if ring else np.where(innermost, transport.copy, 0.0)
        distinct = np.where(innermost, 1.0, _distinct(joined, receivers, limit))
        # what goes to chips of the same group of this tier; the rest crosses the tiers outside meanwhile
        sizes.append((n - 1 + copied) * inside * inside / way.total * size * distinct)
    hops = [n - 1 if ring else np.ceil(np.log2(n)) for n in way.chips]
    busy = way.busy(sizes)
    for position, first in enumerate(way.sharing):
        if first != position:
            # ports carry what stays in the inner tier and what goes beyond it
            share = way.inside[first] / way.inside[position]
            busy[first] = busy[first] + sizes[position] * share * way.per_byte[first]
    return CollectiveTime(way.hops(hops) + _chunked(_longest(busy), way.launch, transport), busy)


def _longest(busy_s: Sequence[Floats]) -> Floats:
    """Tiers pass chunks on at once: the one busy longest decides."""
    return reduce(np.maximum, busy_s)


def _distinct(groups: Floats, receivers: float, limit: ExpertGroups) -> Floats:
    """Groups that need an element over its `receivers`, which are drawn at random among all groups it may go to.

    n·(1 − (1 − 1/n)^k) of n groups hold at least one of k receivers (DeepEP sends a token once to each node). Where a
    token may use the experts of t of g groups (nodes in DeepSeek-V3), so many groups of the tier have any of these.
    """
    allowed = groups
    if limit.top < limit.number:
        spread = groups * (1 - (1 - 1 / groups) ** limit.top)
        allowed = np.where(groups >= limit.number, groups * limit.top / limit.number, spread)
    return allowed * (1 - (1 - 1 / allowed) ** receivers) / receivers


def _low_latency(work: Floats, launch: Floats, transport: Transport) -> Floats:
    """Chunks, or for small messages the protocol without them."""
    return np.minimum(_chunked(work, launch, transport), work / transport.low_latency)


def _chunked(work: Floats, launch: Floats, transport: Transport) -> Floats:
    """Time of `work` seconds on the wire, split into as many chunks as is best.

    c chunks cost c·h to hand over, and the first of them, work/c, passes before the others can follow:
    with the best c these cost 2·sqrt(work·h) together, the pipelined transfer of Hockney's model.
    """
    return work + 2 * np.sqrt(work * (transport.chunk * launch))


def _depth(chips: Floats, inside: Floats) -> Floats:
    """Hops from the leaves of a tree to its root, in a tier that joins groups of so many chips."""
    chain = np.where(inside == 1, CHAIN, 1)
    return np.minimum(chips - 1, chain - 1) + np.ceil(np.log2(np.maximum(chips / chain, 1.0)))
