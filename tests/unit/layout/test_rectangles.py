"""Groups of chips as rectangles of a grid."""

from __future__ import annotations

import math
from itertools import product

import pytest

from dovetail.layout.rectangles import rectangles


@pytest.mark.parametrize("shape", [(4, 4), (6, 8), (8, 7), (5, 5), (4, 4, 4), (1, 8)])
def test_sizes_that_fill_a_grid_have_factors_that_fill_every_axis(shape):
    chips = math.prod(shape)
    divisors = [n for n in range(1, chips + 1) if chips % n == 0]
    for inner, middle in product(divisors, divisors):
        if chips % (inner * middle):
            continue
        sizes = (inner, middle, chips // (inner * middle))
        found = rectangles(sizes, shape)
        assert [math.prod(factors) for factors in found] == list(sizes)
        assert [math.prod(axis) for axis in zip(*found, strict=True)] == list(shape)
        # what lies inside does not depend on what comes outside
        assert rectangles(sizes[:1], shape) == found[:1]
        assert rectangles(sizes[:2], shape) == found[:2]


@pytest.mark.parametrize(
    ("size", "shape", "box"),
    [(4, (8, 8), (2, 2)), (8, (8, 8), (4, 2)), (4, (8, 7), (4, 1)), (6, (6, 8), (3, 2)), (5, (5, 5), (5, 1))],
)
def test_the_innermost_group_has_the_shortest_edges(size, shape, box):
    assert rectangles((size,), shape) == (box,)


def test_a_size_that_divides_nothing_lies_along_the_first_axis():
    assert rectangles((32, 2), (8, 6)) == ((32, 1), (2, 1))
