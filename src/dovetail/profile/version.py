"""A layer's forward tensors in every layout they take: the bytes to save them, the seconds to rebuild them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.graph import Kind
from dovetail.layout import Collective, CollectiveKind, CollectivePhase, Layout, PlacedLayer
from dovetail.profile.layer_sizes import VersionSizes

#: A collective, the kind of group it belongs to, and its seconds.
Priced = tuple[Collective, str, Floats]


@frozen
class Version:
    """A tensor of the forward in one layout on one chip."""

    tensor: str
    #: this layout's number among the tensor's, from 0, and that of the one it is made from; None: an operator writes it
    number: int
    made_of: int | None
    #: gathered from shards: the shards are saved instead
    gathered: bool
    readers: tuple[str, ...]
    #: whether the backward reads it
    saved: bool
    bytes: Floats
    #: seconds of the collectives that make it, by kind of group
    made_s: Mapping[str, Floats]
    #: sums over shards of which every chip gets a part
    scattered: bool = False


def profile_versions(placed: PlacedLayer, sizes: VersionSizes, priced: list[Priced]) -> tuple[Version, ...]:
    """Bytes and seconds of every version."""
    # a loss needs its tensors only while it runs, not while a micro-batch is in flight: `logits` counts them
    losses = {o.tensor for p in placed.forward if p.operator.kind is Kind.LOSS for o in p.operator.outputs}
    seconds = {id(collective): (group, s) for collective, group, s in priced}
    numbers: dict[str, dict[Layout, int]] = {}
    versions: list[Version] = []
    for version in placed.versions:
        name = version.tensor.name
        by_layout = numbers.setdefault(name, {})
        by_layout[version.layout] = len(by_layout)
        versions.append(
            Version(
                name,
                number=by_layout[version.layout],
                made_of=None if version.made_of is None else by_layout[version.made_of],
                gathered=version.gathered,
                scattered=any(c.kind is CollectiveKind.REDUCE_SCATTER for c in version.collectives),
                readers=version.readers,
                saved=version.saved and name not in losses,
                bytes=sizes.bytes(version.tensor, version.layout),
                made_s=by_group(seconds[id(collective)] for collective in version.collectives),
            )
        )
    return tuple(versions)


def exchanges(placed: PlacedLayer, priced: list[Priced]) -> dict[str, dict[str, Floats]]:
    """Operator → seconds in which its shards exchange statistics in the forward, by kind of group."""
    makes = {id(collective) for version in placed.versions for collective in version.collectives}
    weights = {weight.tensor.name for weight in placed.weights}
    by_operator: dict[str, list[tuple[str, Floats]]] = {}
    for collective, group, seconds in priced:
        forward = collective.phase is CollectivePhase.FORWARD and collective.tensor.name not in weights
        if forward and id(collective) not in makes:
            by_operator.setdefault(collective.user, []).append((group, seconds))
    return {operator: by_group(parts) for operator, parts in by_operator.items()}


def by_group(parts: Iterable[tuple[str, Floats]]) -> dict[str, Floats]:
    """Seconds summed by kind of group."""
    sums: dict[str, Floats] = {}
    for group, seconds in parts:
        sums[group] = sums[group] + seconds if group in sums else seconds
    return sums
