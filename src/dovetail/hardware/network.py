"""Network tiers: which chips reach each other over which links, from the inside out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware.fields import Name, Seconds, SomeBytesPerS

#: The largest cluster there is; a tier that names no size goes as far as its cluster.
MAX_CHIPS = 2**20

Topology = Literal["switch", "full", "ring", "mesh", "torus"]
"""switch: any pair at full rate; full: a link to every other chip; ring; mesh; torus"""

GRIDS = ("mesh", "torus")

Ports = Literal["links", "network"]
"""links: the chip's own links; network: its network cards"""


@frozen
class Tier:
    """One level of a network: groups of `size` chips whose links are alike."""

    name: str
    size: int
    """chips of one group, counted from a single chip and not from the groups of the tier inside it"""
    topology: Topology
    bytes_per_s: float
    """what one chip can send, and at the same time receive, over all its links of this tier together"""
    latency_s: float
    """a small message from one chip to the next: one hop of a grid, one step of a ring through a switch"""
    shape: tuple[int, ...] = ()
    """chips along each axis of a mesh or torus"""
    wrap_multiple: int = 1
    """a torus has its wrap-around links when every axis is a multiple of this; otherwise it is a mesh"""
    oversubscription: float = 1.0
    """how many times less than `bytes_per_s` a chip gets when all send out of the groups of the tier inside"""
    in_network_reduction: bool = False
    """switches add up what they forward"""
    routed: bool = False
    """groups of a mesh or torus have only the links between their chips; otherwise they reach `bytes_per_s` whatever
    axes they lie along"""
    ports: Ports | None = None
    """what chips send by; tiers one inside the other with the same ports share them. None: the chip's own links as far
    as these reach on the chip, a network of its own beyond"""

    def resized(self, size: int) -> Tier:
        """The same links for groups of another size; a grid takes the shape nearest to a cube that wraps."""
        if self.topology not in GRIDS or size == self.size:
            return replace(self, size=size)
        shape = balanced_shape(size, len(self.shape), self.wrap_multiple)
        wraps = self.topology == "torus" and all(axis % self.wrap_multiple == 0 for axis in shape)
        return replace(self, size=size, shape=shape, topology="torus" if wraps else "mesh")


@frozen
class Way:
    """What a group's messages share: a tier, or one axis of a grid whose messages are routed along its links."""

    tier: int
    axis: int | None = None


def ways(tiers: Sequence[Tier]) -> tuple[Way, ...]:
    """The ways of a network, innermost first."""
    result: list[Way] = []
    for number, tier in enumerate(tiers):
        result += [Way(number, axis) for axis in range(len(tier.shape))] if tier.routed else [Way(number)]
    return tuple(result)


class TierShapeSpec(Spec):
    """Which chips a tier joins, and how, as a file has it."""

    name: Name
    size: Annotated[int, Field(ge=2, le=MAX_CHIPS)] | None = None
    """chips of one group; left out: the product of the shape, or as many as the cluster has"""
    topology: Topology
    shape: Annotated[tuple[Annotated[int, Field(ge=1, le=MAX_CHIPS)], ...], Field(strict=False, max_length=6)] = ()
    wrap_multiple: Annotated[int, Field(ge=1, le=MAX_CHIPS)] = 1
    oversubscription: Annotated[float, Field(ge=1, le=1000)] = 1.0
    routed: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> TierShapeSpec:
        if self.topology in GRIDS:
            self._check_shape()
        elif self.shape:
            raise InputError(
                "shape", f"cannot be combined with topology {self.topology}", "only meshes and tori have it"
            )
        if self.routed and self.topology not in GRIDS:
            raise InputError(
                "routed", f"cannot be combined with topology {self.topology}", "only meshes and tori have it"
            )
        if self.topology != "torus" and self.wrap_multiple != 1:
            raise InputError("wrap_multiple", f"cannot be combined with topology {self.topology}", "only tori have it")
        return self

    def _check_shape(self) -> None:
        if not self.shape:
            raise InputError("shape", "is missing", f"give the chips along each axis of the {self.topology}")
        product = math.prod(self.shape)
        if product < 2 or product > MAX_CHIPS:
            raise InputError("shape", f"has {product} chips", f"it should have 2 to {MAX_CHIPS}")
        if self.size is not None and self.size != product:
            raise InputError("shape", f"has {product} chips", f"it should have as many as size, {self.size}")
        if self.topology == "torus" and any(axis % self.wrap_multiple for axis in self.shape):
            fix = f"it should be multiples of wrap_multiple, {self.wrap_multiple}, or the topology a mesh"
            raise InputError("shape", f"is {'x'.join(map(str, self.shape))}", fix)

    def chips(self) -> int:
        """Chips of one group, filled in."""
        return self.size or (math.prod(self.shape) if self.shape else MAX_CHIPS)


class TierSpec(TierShapeSpec):
    """A tier as a file has it."""

    bytes_per_s: SomeBytesPerS
    latency_s: Seconds
    in_network_reduction: bool = False
    ports: Ports | None = None
    """`links` or `network`: tiers with the same ports share them; left out: links as far as the chip's own reach"""

    def tier(self) -> Tier:
        """The tier with its size filled in."""
        fields: dict[str, Any] = dict(self) | {"size": self.chips()}
        return Tier(**fields)


def check_nested(names: Sequence[str], sizes: Sequence[int]) -> None:
    """Refuses tiers of one name, and a tier that is no larger than the one inside it."""
    if len(set(names)) < len(names):
        raise InputError("tiers", f"are called {', '.join(names)}", "each should have a name of its own")
    if any(outer <= inner for inner, outer in pairwise(sizes)):
        raise InputError("tiers", f"have the sizes {list(sizes)}", "each should be larger than the one before")


def fit_tiers(
    tiers: tuple[Tier, ...], chips: int, where: str, *, exact: bool = False, filled: int | None = None
) -> tuple[Tier, ...]:
    """The tiers of a cluster of that many chips: groups of equal size (exact: of the size given), no tier unreached.

    Of the innermost `filled` tiers, all of them unless said, groups must be two thirds full.
    """
    fitted: list[Tier] = []
    inner = 1
    for position, tier in enumerate(tiers):
        if inner == chips:
            break
        outermost = position == len(tiers) - 1
        if outermost or tier.size >= chips:
            size = chips
        else:
            size = _equal_groups(chips, inner, tier, where, exact, filled is None or position < filled)
        if size > tier.size and tier.topology in GRIDS:
            fix = f"it should be at most {tier.size}, or the cluster have a tier beyond it"
            raise InputError(where, f"{chips} are more than the {tier.topology} {tier.name!r} holds", fix)
        if size > inner:
            fitted.append(tier.resized(size))
            inner = size
    if inner != chips:
        raise InputError(where, f"{chips} chips have no network between them", "add tiers, or take one chip")
    return tuple(fitted)


def _equal_groups(chips: int, inner: int, tier: Tier, where: str, exact: bool, filled: bool) -> int:
    """The largest size all groups of a tier can have: racks of 72 serve 256 chips as four groups of 64."""
    sizes = [size for size in _divisors(chips) if size <= tier.size and size % inner == 0]
    if not filled:
        return sizes[-1] if sizes else inner
    # Groups less than two thirds full are nobody's cluster: more likely the number is a slip.
    if not sizes or 3 * sizes[-1] < 2 * tier.size or (exact and sizes[-1] != tier.size):
        fix = f"it should be at most {tier.size} or a multiple of it"
        raise InputError(where, f"{chips} do not fill groups of {tier.size} ({tier.name})", fix)
    return sizes[-1]


@lru_cache(maxsize=1024)
def balanced_shape(size: int, axes: int, multiple: int = 1) -> tuple[int, ...]:
    """The grid of that many chips nearest to a cube, of those whose axes are all multiples if there are any."""

    def rank(shape: tuple[int, ...]) -> tuple[bool, int]:
        return any(axis % multiple for axis in shape), sum(shape)

    return min(_shapes(size, axes, 1), key=rank)


def _shapes(size: int, axes: int, smallest: int) -> Iterator[tuple[int, ...]]:
    """Every way to write a size as a product of that many factors in ascending order."""
    if axes == 1:
        if size >= smallest:
            yield (size,)
        return
    for first in _divisors(size):
        if first >= smallest and first**axes <= size:
            yield from ((first, *rest) for rest in _shapes(size // first, axes - 1, first))


@lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))
