"""Which keys a query attends to: everything, the past, a window, a chunk, or the best k."""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from typing import TypeVar

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.graph.size import Size, Sizes, as_array, exact

NumberT = TypeVar("NumberT", Fraction, Floats)


class Span(StrEnum):
    """The shape of the part of the sequence a query sees."""

    ALL = "all"
    WINDOW = "window"
    CHUNK = "chunk"
    TOP_K = "top_k"


@frozen
class Mask:
    """Query × key pairs an attention needs, over the dims `query` and `key` of its operator.

    `width` is the number of keys a query sees in all, itself included.
    """

    causal: bool
    span: Span = Span.ALL
    width: int = 0
    query: str = "seq"
    key: str = "key_seq"

    def coverage(self, sizes: Sizes, *, causal: bool) -> Size:
        """The part of the query × key rectangle that is computed.

        `causal=False` counts what published model FLOPs count: each query sees its whole span;
        `causal=True` leaves out the future, which is what a good kernel does.
        """
        keys = sizes[self.key]
        if isinstance(keys, int | Fraction):
            return self._exact(Fraction(keys), causal=causal and self.causal)
        return self._array(keys, causal=causal and self.causal)

    def _exact(self, keys: Fraction, *, causal: bool) -> Size:
        width = keys if self.span is Span.ALL else min(keys, Fraction(self.width))
        if self.span is Span.CHUNK:
            chunks, rest = divmod(keys, width)
            pairs = chunks * _square(width, causal=causal) + _square(rest, causal=causal)
        elif not causal:
            pairs = keys * width
        else:
            pairs = width * (width + 1) / 2 + (keys - width) * width
        return exact(pairs / (keys * keys))

    def _array(self, keys: Floats, *, causal: bool) -> Size:
        keys = as_array(keys)
        width = keys if self.span is Span.ALL else np.minimum(keys, float(self.width))
        if self.span is Span.CHUNK:
            chunks, rest = np.floor(keys / width), np.mod(keys, width)
            pairs = chunks * _square(width, causal=causal) + _square(rest, causal=causal)
        elif not causal:
            pairs = keys * width
        else:
            pairs = width * (width + 1) / 2 + (keys - width) * width
        return pairs / (keys * keys)


def _square(side: NumberT, *, causal: bool) -> NumberT:
    """Pairs of a piece of the sequence that sees itself alone, the past or all of it."""
    return side * (side + 1) / 2 if causal else side * side
