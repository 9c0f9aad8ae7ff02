"""How far a factor may go before a difference falls below zero, with few evaluations of it."""

from __future__ import annotations

import math
from collections.abc import Callable

#: How often the crossing is guessed before the span that is left is halved.
GUESSES = 3


def last_before(difference: Callable[[float], float], beyond: float, close: float) -> float:
    """The last factor before the crossing that halving the span from 1 to `beyond`, in logarithms, would come to.

    The difference is below zero at `beyond`, and from one factor on. Seconds are nearly linear in the inverse of a
    factor, so a line through both ends of the span says where halving would end; the two factors there prove it.
    """
    span = _Span(difference, beyond)
    for _ in range(GUESSES):
        guess = span.guess()
        if guess is None:
            break
        before, after = _halved(beyond, close, lambda factor, guess=guess: _distance(factor) > _distance(guess))
        if not span.is_beyond(before) and span.is_beyond(after):
            return before
    return _halved(beyond, close, span.is_beyond)[0]


class _Span:
    """The factors between which the difference crosses zero, as far as it is known."""

    def __init__(self, difference: Callable[[float], float], beyond: float) -> None:
        self._difference = difference
        self._inside, self._at_inside = 1.0, difference(1.0)
        self._outside, self._at_outside = beyond, difference(beyond)

    def is_beyond(self, factor: float) -> bool:
        """Whether the difference is below zero at a factor: evaluated where that is not known yet."""
        if _distance(factor) <= _distance(self._inside):
            return False
        if _distance(factor) < _distance(self._outside):
            found = self._difference(factor)
            if found >= 0:
                self._inside, self._at_inside = factor, found
                return False
            self._outside, self._at_outside = factor, found
        return True

    def guess(self) -> float | None:
        """Where a line in the inverse of the factor crosses zero; None where it does not."""
        if self._at_inside <= 0:
            return None
        share = self._at_inside / (self._at_inside - self._at_outside)
        return 1 / (1 / self._inside + share * (1 / self._outside - 1 / self._inside))


def _halved(beyond: float, close: float, is_beyond: Callable[[float], bool]) -> tuple[float, float]:
    inside, outside = 1.0, beyond
    while abs(math.log(outside / inside)) > close:
        middle = math.sqrt(inside * outside)
        inside, outside = (inside, middle) if is_beyond(middle) else (middle, outside)
    return inside, outside


def _distance(factor: float) -> float:
    return abs(math.log(factor))
