"""Strings of factors: how the dies along one axis of a tile shard the dims of an operator."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import TypeAlias

from dovetail.frozen import frozen

#: The label of a factor that shards no dim: its dies store and do the same.
REPLICATE = "replicate"


class MeshAxis(StrEnum):
    """An axis of a tile: along `rows` the row number of a die changes, along `cols` its column."""

    ROWS = "rows"
    COLS = "cols"

    @property
    def other(self) -> MeshAxis:
        """The axis across."""
        return MeshAxis.COLS if self is MeshAxis.ROWS else MeshAxis.ROWS


@dataclass(frozen=True, slots=True, order=True)
class Factor:
    """So many dies (or groups of dies) along an axis, and the dim of the operator they shard."""

    size: int
    #: a dim, REPLICATE, or the layout's PARTIAL where a sum runs on terms that are not complete
    dim: str
    #: whether the operand that is not sharded travels from die to die instead of being whole on each
    streamed: bool = False

    def __post_init__(self) -> None:
        assert self.size >= 1, "a factor has dies"

    @property
    def label(self) -> tuple[str, bool]:
        """What the factor does, without its size."""
        return self.dim, self.streamed


#: Factors innermost first: the first one's parts lie on neighbouring dies, the others' are strided by all before.
String: TypeAlias = "tuple[Factor, ...]"


@dataclass(frozen=True, slots=True, order=True)
class Strings:
    """An operator on a tile: one string along its rows, one along its columns."""

    rows: String = ()
    cols: String = ()

    def along(self, axis: MeshAxis) -> String:
        """The string of one axis."""
        return self.rows if axis is MeshAxis.ROWS else self.cols

    def transposed(self) -> Strings:
        """The same on the tile mirrored along its diagonal."""
        return Strings(self.cols, self.rows)

    def __iter__(self) -> Iterator[Factor]:
        return iter((*self.rows, *self.cols))


@frozen
class Place:
    """A factor and the dies it spans: those from `low` apart to `high` apart along its axis."""

    low: int
    high: int
    factor: Factor


def extent(string: Iterable[Factor]) -> int:
    """How many dies a string spans."""
    return prod(factor.size for factor in string)


def places(string: String) -> tuple[Place, ...]:
    """Where each factor is on the ruler of its axis."""
    result: list[Place] = []
    low = 1
    for factor in string:
        result.append(Place(low, low * factor.size, factor))
        low *= factor.size
    return tuple(result)


def merged(string: String) -> String:
    """The same die for die, with equal neighbours as one factor and no factor of 1."""
    result: list[Factor] = []
    for factor in string:
        if factor.size == 1:
            continue
        if result and result[-1].label == factor.label:
            factor = Factor(result.pop().size * factor.size, *factor.label)
        result.append(factor)
    return tuple(result)


def split_at(string: String, ends: Collection[int]) -> String:
    """The same die for die, with factors that end wherever one of these groups of dies does."""
    result: list[Factor] = []
    for place in places(string):
        low = place.low
        for high in (*sorted({end for end in ends if low < end < place.high}), place.high):
            assert high % low == 0, "groups nest"
            result.append(Factor(high // low, *place.factor.label))
            low = high
    return tuple(result)


def sharded_by(factors: Iterable[Factor]) -> dict[str, int]:
    """How many shards each dim has; replicas count under REPLICATE."""
    parts: dict[str, int] = {}
    for factor in factors:
        parts[factor.dim] = parts.get(factor.dim, 1) * factor.size
    return parts


def primes(number: int) -> tuple[int, ...]:
    """The prime factors of a number, smallest first, each as often as it divides."""
    factors: list[int] = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return (*factors, number) if number > 1 else tuple(factors)
