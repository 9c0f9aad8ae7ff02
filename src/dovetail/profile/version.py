"""The tensors of a layer's forward in every layout they take: what keeping them takes, and making them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dovetail.arrays import Floats
from dovetail.graph import Kind
from dovetail.graph.size import Size, Sizes, as_array
from dovetail.graph.tensor import Element
from dovetail.layout import Collective, Layout, Moment, PlacedLayer, local_bytes

#: A collective, the kind of group it belongs to, and its seconds.
Priced = tuple[Collective, str, Floats]


@dataclass(frozen=True, slots=True)
class Version:
    """A tensor of the forward in one layout on one chip."""

    tensor: str
    #: which of the tensor's layouts, from 0, and the one it is made of; None where an operator writes it
    number: int
    made_of: int | None
    #: put together of shards: not kept itself, they are
    gathered: bool
    readers: tuple[str, ...]
    #: whether the backward reads it
    saved: bool
    bytes: Floats
    #: seconds of the collectives that make it of the other, by kind of group
    made_s: Mapping[str, Floats]


def profile_versions(
    placed: PlacedLayer,
    sizes: Sizes,
    axis_sizes: Mapping[str, Size],
    widths: Mapping[Element, int],
    priced: list[Priced],
) -> tuple[Version, ...]:
    """Bytes and seconds of every version."""
    # what a loss keeps is there while it runs, not as long as a microbatch is in flight: `logits` stands for it
    losses = {o.tensor for p in placed.forward if p.operator.kind is Kind.LOSS for o in p.operator.outputs}
    seconds = {id(collective): (group, s) for collective, group, s in priced}
    numbers: dict[str, dict[Layout, int]] = {}
    versions: list[Version] = []
    for found in placed.versions:
        name = found.tensor.name
        known = numbers.setdefault(name, {})
        known[found.layout] = len(known)
        versions.append(
            Version(
                name,
                number=known[found.layout],
                made_of=None if found.made_of is None else known[found.made_of],
                gathered=found.gathered,
                readers=found.readers,
                saved=found.saved and name not in losses,
                bytes=as_array(local_bytes(found.tensor, found.layout, sizes, axis_sizes, widths)),
                made_s=by_group(seconds[id(collective)] for collective in found.collectives),
            )
        )
    return tuple(versions)


def exchanges(placed: PlacedLayer, priced: list[Priced]) -> dict[str, dict[str, Floats]]:
    """Operator → seconds of what its shards tell each other in the forward, by kind of group."""
    makes = {id(collective) for version in placed.versions for collective in version.collectives}
    weights = {weight.tensor.name for weight in placed.weights}
    found: dict[str, list[tuple[str, Floats]]] = {}
    for collective, group, seconds in priced:
        forward = collective.moment is Moment.FORWARD and collective.tensor.name not in weights
        if forward and id(collective) not in makes:
            found.setdefault(collective.user, []).append((group, seconds))
    return {operator: by_group(parts) for operator, parts in found.items()}


def by_group(parts: Iterable[tuple[str, Floats]]) -> dict[str, Floats]:
    """Seconds summed by kind of group."""
    sums: dict[str, Floats] = {}
    for group, seconds in parts:
        sums[group] = sums[group] + seconds if group in sums else seconds
    return sums
