"""Array aliases, sums of arrays, and how close two floats must be to count as equal."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
#: bits of sets, and of random numbers
Words = NDArray[np.uint64]
#: of any kind: columns of a table
Array = NDArray[Any]

#: The most that the order of a summation moves a float, relative: fewer than 2^10 terms of 53 bits err by less.
ROUNDING = 1e-12
#: How close, relative, a bound must come to count as reached, and what bounds give up to stay below what they bound.
TOLERANCE = 1e-9


def summed(values: Iterable[Floats]) -> Floats:
    """The sum of arrays that broadcast; zero where there are none."""
    total: Floats = np.zeros(())
    for value in values:
        total = total + value
    return total


def largest(values: Iterable[Floats]) -> Floats:
    """The largest of arrays that broadcast; zero where there are none."""
    return reduce(np.maximum, values, np.zeros(()))


def largest_two(values: Iterable[Floats]) -> tuple[Floats, Floats]:
    """The largest of arrays that broadcast, and the next; zero where there are none."""
    first = second = np.zeros(())
    for value in values:
        first, second = np.maximum(first, value), np.maximum(second, np.minimum(first, value))
    return first, second


def numbers(array: Ints) -> list[int]:
    """An array as a list."""
    return cast("list[int]", array.tolist())


def distinct(*columns: Ints) -> tuple[list[tuple[int, ...]], Ints]:
    """Rows of numbers from 0 on without repetition, in lexicographic order, and where each row is among these."""
    code, kinds = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        width = int(column.max(initial=0)) + 1
        kinds *= width
        assert kinds < 2**63, "rows are told apart by one number"
        code = code * width + column
    _, first, place = np.unique(code, return_index=True, return_inverse=True)
    rows = cast("list[list[int]]", np.stack(columns, axis=1)[first].tolist())
    return [tuple(row) for row in rows], place.reshape(-1)


#: A number or an array: what a formula takes in plain Python and in compiled code alike.
Number = Any


def choose(condition: Number, value: Number, otherwise: Number) -> Number:
    """`value` where the condition holds; in compiled code, where conditions are single ones, without arrays."""
    return cast("Number", np.where(condition, value, otherwise))
