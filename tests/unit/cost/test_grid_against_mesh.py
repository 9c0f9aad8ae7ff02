"""The rates of groups on routed grids (cost.grid) against collectives laid over every link (cost.mesh)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dovetail import hardware
from dovetail.cost.collective import Transport, tiered_seconds
from dovetail.cost.mesh import DieMesh, MeshCollective, MeshCollectiveKind, across_loads, best, collective
from dovetail.cost.tier import GridAxis, TierArrays
from dovetail.layout import CollectiveKind
from dovetail.layout.rectangles import rectangles

#: Bytes, and bytes per second of one link in one direction.
SIZE, RATE = 3e9, 2e12
RECTANGLES = [(rows, cols) for rows, cols in product(range(1, 7), range(1, 9)) if rows * cols > 1]
STRIDED = [
    ((rows, cols), (down, right))
    for rows, cols in product(range(1, 5), repeat=2)
    for down, right in product(range(1, 4), repeat=2)
    if rows * cols > 1
]


def grid_seconds(kind: CollectiveKind, extents: tuple[int, int], strides: tuple[int, int] = (1, 1)) -> float:
    """What cost.grid says where nothing is launched, copied or waited for."""
    none = np.zeros(())
    axes = [
        (
            np.asarray(float(extent)),
            TierArrays(
                np.asarray(2 * RATE),
                none,
                none,
                np.ones(()),
                grid=GridAxis(0, extent * stride, wraps=False),
                stride=float(stride),
            ),
        )
        for extent, stride in zip(extents, strides, strict=True)
    ]
    return float(tiered_seconds(kind, axes, np.asarray(SIZE), Transport(copy=0.0)))


def along_axes(one: MeshCollective, strides: tuple[int, int]) -> tuple[float, float]:
    """The busiest link down and the busiest to the right where all strided groups do this at once."""
    mesh = DieMesh(one.mesh.rows * strides[0], one.mesh.cols * strides[1])
    loads = across_loads(mesh, one).reshape(-1, 2).max(axis=1)
    down = [load for load, (a, b) in zip(loads, mesh.edges, strict=True) if a[1] == b[1]]
    right = [load for load, (a, b) in zip(loads, mesh.edges, strict=True) if a[0] == b[0]]
    return max(down, default=0.0), max(right, default=0.0)


def combed(kind: MeshCollectiveKind, extents: tuple[int, int], strides: tuple[int, int]) -> float:
    """Seconds of the best mix of rows first and columns first, with all strided groups at work."""
    one = collective("dimension_ordered", kind, DieMesh(*extents), SIZE)
    turned = collective("dimension_ordered", kind, DieMesh(extents[1], extents[0]), SIZE)
    assert one is not None
    assert turned is not None
    first, second = along_axes(one, strides), along_axes(turned, (strides[1], strides[0]))[::-1]
    parts = [0.0, 1.0]
    slope = (first[0] - second[0]) - (first[1] - second[1])
    if slope:
        # both axes are equally busy
        parts.append(min(max((second[1] - second[0]) / slope, 0.0), 1.0))
    return min(max(part * a + (1 - part) * b for a, b in zip(first, second, strict=True)) for part in parts) / RATE


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER])
def test_rectangles_do_what_packed_trees_do(kind: CollectiveKind):
    for rows, cols in RECTANGLES:
        found = grid_seconds(kind, (rows, cols))
        assert found == pytest.approx(best(kind, DieMesh(rows, cols), SIZE, RATE).seconds(RATE), rel=1e-9), (rows, cols)


def test_an_all_reduce_takes_all_links_and_an_all_gather_those_of_a_corner():
    for rows, cols in RECTANGLES:
        count, edges = rows * cols, 2 * rows * cols - rows - cols
        reduced = grid_seconds(CollectiveKind.ALL_REDUCE, (rows, cols))
        assert reduced == pytest.approx((count - 1) / edges * SIZE / RATE, rel=1e-9)
        corner = 1 if min(rows, cols) == 1 else 2
        gathered = grid_seconds(CollectiveKind.ALL_GATHER, (rows, cols))
        assert gathered == pytest.approx((count - 1) / count * SIZE / (corner * RATE), rel=1e-9)


def test_an_all_to_all_takes_the_middle_of_the_longer_axis():
    for rows, cols in RECTANGLES:
        found = grid_seconds(CollectiveKind.ALL_TO_ALL, (rows, cols))
        made = best(MeshCollectiveKind.ALL_TO_ALL, DieMesh(rows, cols), SIZE, RATE)
        assert found == pytest.approx(made.seconds(RATE), rel=1e-9), (rows, cols)


def test_handing_on_round_a_ring_takes_a_leg_a_step():
    """N − 1 steps, each the N-th part to the next die."""
    for rows, cols in RECTANGLES:
        count = rows * cols
        step = best(MeshCollectiveKind.PERMUTE, DieMesh(rows, cols), SIZE / count, RATE).seconds(RATE)
        found = grid_seconds(CollectiveKind.PERMUTE, (rows, cols))
        assert found == pytest.approx((count - 1) * step, rel=1e-9), (rows, cols)


def test_strided_groups_that_are_equally_far_apart():
    """Every link is then shared by as many groups as they are apart."""
    for extents, stride in product([(2, 2), (2, 3), (3, 3), (4, 2), (1, 4)], (1, 2, 3)):
        for kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL):
            one = best(kind, DieMesh(*extents), SIZE, RATE)
            busiest = max(along_axes(one, (stride, stride)))
            found = grid_seconds(kind, extents, (stride, stride))
            assert found == pytest.approx(busiest / RATE, rel=1e-9), (kind, extents, stride)


def test_strided_all_to_alls():
    for extents, strides in STRIDED:
        one = collective("routes", MeshCollectiveKind.ALL_TO_ALL, DieMesh(*extents), SIZE)
        assert one is not None
        found = grid_seconds(CollectiveKind.ALL_TO_ALL, extents, strides)
        assert found == pytest.approx(max(along_axes(one, strides)) / RATE, rel=1e-9), (extents, strides)


def between_lines(kind: CollectiveKind, extents: tuple[int, int], strides: tuple[int, int]) -> float:
    """Seconds of what must pass between whole lines of a group, the links of the other axis left out of account."""
    if min(extents) == 1:
        return 0.0
    count, found = extents[0] * extents[1], 0.0
    for wide, stride in zip(extents[::-1], strides, strict=True):
        # so many links lead from line to line; the last line lacks what the others have
        lacking = 1.0 if kind is CollectiveKind.ALL_REDUCE else (count - wide) / count
        found = max(found, lacking * stride / wide * SIZE / RATE)
    return found


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER])
def test_strided_groups_that_are_differently_far_apart(kind: CollectiveKind):
    """Packed combs meet what cost.grid says or what must pass between lines, so the longer of the two is the optimum.

    cost.grid counts all links as if trees could fill them; where the links of one axis are far more shared than those
    of the other, they cannot, and it says less.
    """
    for extents, strides in STRIDED:
        found, mixed = grid_seconds(kind, extents, strides), combed(MeshCollectiveKind(kind), extents, strides)
        least = max(found, between_lines(kind, extents, strides))
        assert mixed == pytest.approx(least, rel=1e-9), (extents, strides)
        if strides[0] == strides[1]:
            assert found == pytest.approx(mixed, rel=1e-9), (extents, strides)


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER])
def test_hardly_a_group_on_wafers_of_the_catalogue_lacks_links_between_its_lines(kind: CollectiveKind):
    """Of all groups of neighbours, and all groups of such groups; 4 × 2 that are 2 × 1 apart are the exception."""
    short: set[tuple[str, tuple[int, int], tuple[int, int]]] = set()
    for name in hardware.wafer_names():
        shape = hardware.cluster(name).tiers[0].shape
        dies = shape[0] * shape[1]
        divisors = [n for n in range(1, dies + 1) if dies % n == 0]
        for inner, outer in product(divisors, divisors[1:]):
            if dies % (inner * outer) == 0:
                (down, right), (rows, cols) = rectangles((inner, outer), shape)
                extents, strides = (rows, cols), (down, right)
                if grid_seconds(kind, extents, strides) < between_lines(kind, extents, strides) * (1 - 1e-9):
                    short.add((name, extents, strides))
    known = [("temp-like", (4, 2), (2, 1))] if kind is CollectiveKind.ALL_GATHER else []
    assert short <= {*known}
