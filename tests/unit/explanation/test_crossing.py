"""The crossing of a difference is the one that halving finds, with fewer evaluations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dovetail.explanation.crossing import last_before

CLOSE = 0.002


def halved(difference, beyond):
    inside, outside = 1.0, beyond
    while abs(math.log(outside / inside)) > CLOSE:
        middle = math.sqrt(inside * outside)
        inside, outside = (inside, middle) if difference(middle) < 0 else (middle, outside)
    return inside


class Counted:
    """A difference of seconds, each factor evaluated once, as explanations do."""

    def __init__(self, seconds):
        self.seconds, self.known = seconds, {}

    def __call__(self, factor):
        return self.known.setdefault(factor, self.seconds(factor))


@pytest.mark.parametrize("beyond", [0.5, 2.0, 1.0007])
def test_it_is_where_halving_ends(beyond):
    """Lines in the inverse of the factor, lines with a kink, and steps."""
    draw = np.random.default_rng(0)
    evaluated = []
    for number in range(200):
        at = math.exp(draw.random() * math.log(beyond))
        slope, more = draw.random() + 0.1, 5 * draw.random()

        def seconds(factor, number=number, at=at, slope=slope, more=more):
            left = slope * (1 / factor - 1 / at) * (1 if beyond > 1 else -1)
            if number % 3 == 1:
                left *= more if left < 0 else 1
            return math.copysign(1.0, left) if number % 3 == 2 else left

        difference = Counted(seconds)
        assert last_before(difference, beyond, CLOSE) == halved(seconds, beyond)
        if number % 3 == 0:
            evaluated.append(len(difference.known))
    assert np.mean(evaluated) <= 4, "both ends of the span, and both of the last"


def test_one_that_is_below_zero_everywhere_is_halved():
    assert last_before(lambda _: -1.0, 2.0, CLOSE) == 1.0
