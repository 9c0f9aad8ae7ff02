"""Sizes of named dims: exact integers for one shape, float arrays for many at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TypeAlias, TypeGuard

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen

#: Python numbers stay exact however large; arrays are float64, since FLOPs overflow 64-bit integers.
Size: TypeAlias = "int | Fraction | Floats"
Sizes: TypeAlias = "Mapping[str, Size]"


@frozen
class DerivedSize:
    """The size of a dim that follows others: factor · Π numerator / Π denominator, at most `at_most`.

    `expert_tokens` is top_k · batch · seq / experts: a mean, hence possibly a fraction.
    """

    numerator: tuple[str, ...]
    denominator: tuple[str, ...] = ()
    factor: Fraction = Fraction(1)
    at_most: int | None = None
    #: largest part over mean part when work along this dim is spread unevenly (expert load); None: not stated
    imbalance: float | None = None

    def of(self, sizes: Sizes) -> Size:
        """The size, given those it follows from."""
        value = divided(times(product(sizes, self.numerator), self.factor), product(sizes, self.denominator))
        if self.at_most is None:
            return value
        if is_exact(value):
            return min(value, self.at_most)
        return np.minimum(as_array(value), float(self.at_most))


DimSize: TypeAlias = "int | DerivedSize"


class SettledSizes(dict[str, Size]):
    """Sizes that change no more: what boxes they span is found once (`product`)."""

    __slots__ = ("_products",)

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self._products: dict[tuple[str, ...], Size] = {(): 1}

    def product(self, dims: tuple[str, ...]) -> Size:
        """The number of points of the box these dims span."""
        known = self._products.get(dims)
        if known is None:
            # boxes of layers begin alike: the first dims have the same sizes in most of them
            known = self._products[dims] = times(self.product(dims[:-1]), self[dims[-1]])
        return known


def product(sizes: Sizes, dims: Iterable[str]) -> Size:
    """The number of points of the box these dims span."""
    if type(sizes) is SettledSizes:
        return sizes.product(tuple(dims))
    result: Size = 1
    for dim in dims:
        result = times(result, sizes[dim])
    return result


def times(left: Size, right: Size) -> Size:
    """The product, exact for Python numbers."""
    if type(left) is int and type(right) is int:  # by far the most common, so first
        return left * right
    if type(left) is np.ndarray and type(right) is np.ndarray:
        return left * right
    if is_exact(left) and is_exact(right):
        return exact(left * right)
    return as_array(left) * as_array(right)


def divided(left: Size, right: Size) -> Size:
    """The quotient, exact for Python numbers."""
    if type(left) is int and type(right) is int and left % right == 0:
        return left // right
    if is_exact(left) and is_exact(right):
        return exact(Fraction(left) / right)
    return as_array(left) / as_array(right)


def total(values: Iterable[Size]) -> Size:
    """The sum, exact while every value is."""
    result: Size = 0
    for value in values:
        if type(result) is int and type(value) is int:
            result += value
        elif is_exact(result) and is_exact(value):
            result = exact(result + value)
        else:
            result = as_array(value) if type(result) is int and not result else as_array(result) + as_array(value)
    return result


def is_exact(value: Size) -> TypeGuard[int | Fraction]:
    """Whether a size is a Python number; by type, since asking a Fraction's abstract class takes ten times as long."""
    return type(value) is int or type(value) is Fraction


def as_array(value: Size) -> Floats:
    """A size as float64, scalar or array."""
    if type(value) is np.ndarray:
        return value
    return np.asarray(float(value) if type(value) is Fraction else value, dtype=np.float64)


def exact(value: int | Fraction) -> int | Fraction:
    """An integer wherever the fraction is one."""
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


def resolve(dims: Mapping[str, DimSize], free: Sizes) -> dict[str, Size]:
    """Every dim's size, given those of the free dims (batch, seq); derived dims may follow derived ones."""
    sizes: dict[str, Size] = dict(free)
    sizes.update((dim, size) for dim, size in dims.items() if isinstance(size, int))
    waiting = {dim: size for dim, size in dims.items() if isinstance(size, DerivedSize)}
    while waiting:
        ready = [d for d, s in waiting.items() if all(n in sizes for n in (*s.numerator, *s.denominator))]
        if not ready:
            raise KeyError(f"the sizes of {sorted(waiting)} follow from dims that have none")
        for dim in ready:
            sizes[dim] = waiting.pop(dim).of(sizes)
    return sizes
