"""Figures that are straight lines of the step time, found by computing a formula with lines in place of numbers.

A formula is interpreted with numpy's functions, which a `Line` answers for itself; so there is one interpreter, and
what is no line says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dovetail.arrays import Floats


class NotALineError(Exception):
    """A formula bends with the step time."""


#: base + slope · T; no slope: it does not depend on T
_Part = tuple[Any, Any]


class Line:
    """One line of the step time over another, of which at most one depends on it."""

    def __init__(self, over: _Part, under: _Part = (1.0, None)) -> None:
        self.over, self.under = over, under

    @staticmethod
    def of(value: Any) -> Line:
        """A line as it is, and a number as one that does not depend on the step time."""
        return value if isinstance(value, Line) else Line((value, None))

    def figure(self, size: int) -> tuple[Floats, Floats]:
        """Base and slope over so many candidates."""
        base, slope = _over(self.over, self.under)
        zero = np.zeros(size)
        return zero + base, zero + (0.0 if slope is None else slope)

    def inverse(self) -> Line:
        """One over it."""
        return Line(self.under, self.over)

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **_: Any) -> Line:
        parts = [Line.of(each) for each in inputs]
        match function.__name__, parts:
            case "add", [a, b]:
                return Line(_sum(_over(a.over, a.under), _over(b.over, b.under)))
            case "subtract", [a, b]:
                return Line(_sum(_over(a.over, a.under), _product(_over(b.over, b.under), (-1.0, None))))
            case "multiply", [a, b]:
                return Line(_product(a.over, b.over), _product(a.under, b.under))
            case "divide" | "true_divide", [a, b]:
                return Line(_product(a.over, b.under), _product(a.under, b.over))
            case "positive", [a]:
                return a
            case _:
                raise NotALineError(function.__name__)

    def __array_function__(self, function: Any, *_: Any) -> Line:
        # one or the other of two is not a line
        raise NotALineError(function.__name__)


def _sum(a: _Part, b: _Part) -> _Part:
    if a[1] is None or b[1] is None:
        return a[0] + b[0], b[1] if a[1] is None else a[1]
    return a[0] + b[0], a[1] + b[1]


def _product(a: _Part, b: _Part) -> _Part:
    if b[1] is not None:
        a, b = b, a
    if b[1] is not None:
        raise NotALineError("product")
    return a[0] * b[0], None if a[1] is None else a[1] * b[0]


def _over(a: _Part, b: _Part) -> _Part:
    if b[1] is not None:
        raise NotALineError("quotient")
    return a[0] / b[0], None if a[1] is None else a[1] / b[0]
