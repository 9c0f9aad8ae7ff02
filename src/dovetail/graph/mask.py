"""Which keys a query attends to: everything, the past, a window, a chunk, the best k, and compressed ones besides."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from typing import TypeVar

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.graph.size import Size, Sizes, as_array, exact, times, total

NumberT = TypeVar("NumberT", Fraction, Floats)


class Span(StrEnum):
    """The shape of the part of the sequence a query sees."""

    ALL = "all"
    WINDOW = "window"
    CHUNK = "chunk"
    TOP_K = "top_k"


@frozen
class Compressed:
    """Keys that each stand for several tokens of the past, behind all others on the key dim (DeepSeek-V4)."""

    #: the part of all keys that they are
    share: Fraction
    #: how many of them a query sees at most; None: all of the past
    top_k: int | None = None


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
    compressed: Compressed | None = None

    def parts(self) -> tuple[tuple[Mask, Fraction], ...]:
        """The masks of the keys of each kind, and the part of all keys that these are."""
        if self.compressed is None:
            return ((self, Fraction(1)),)
        top_k = self.compressed.top_k
        beside = Mask(self.causal, Span.ALL if top_k is None else Span.TOP_K, top_k or 0, self.query, self.key)
        share = self.compressed.share
        return (replace(self, compressed=None), 1 - share), (beside, share)

    def coverage(self, sizes: Sizes, *, causal: bool) -> Size:
        """The part of the query × key rectangle that is computed.

        `causal=False` counts what published model FLOPs count: each query sees its whole span;
        `causal=True` leaves out the future, which is what a good kernel does.
        """
        keys = sizes[self.key]
        if self.compressed is None:
            return self._of(keys, causal=causal)
        return total(times(mask._of(times(keys, share), causal=causal), share) for mask, share in self.parts())

    def _of(self, keys: Size, *, causal: bool) -> Size:
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
