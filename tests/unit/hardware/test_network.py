"""Tiers: shapes of grids, equal groups, what a smaller or larger cluster keeps."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dovetail.errors import InputError
from dovetail.hardware import MAX_CHIPS, Tier
from dovetail.hardware.network import balanced_shape, fit_tiers

NODE = Tier("node", 8, "switch", 450e9, 1e-6)
RACK = Tier("rack", 72, "switch", 900e9, 1e-6)
OPEN = Tier("network", MAX_CHIPS, "switch", 50e9, 5e-6)
TORUS = Tier("torus", 4096, "torus", 300e9, 1e-6, shape=(16, 16, 16), wrap_multiple=4)


def brute_shape(size: int, axes: int, multiple: int) -> tuple[bool, int]:
    """The best rank over all grids, found by trying every one."""
    sides = [n for n in range(1, size + 1) if size % n == 0]
    shapes = [s for s in itertools.product(sides, repeat=axes) if math.prod(s) == size]
    return min((any(axis % multiple for axis in shape), sum(shape)) for shape in shapes)


@given(size=st.integers(1, 200), axes=st.integers(1, 3), multiple=st.sampled_from([1, 2, 4, 16]))
def test_the_shape_is_the_best_of_all(size, axes, multiple):
    shape = balanced_shape(size, axes, multiple)
    assert math.prod(shape) == size
    assert len(shape) == axes
    assert (any(axis % multiple for axis in shape), sum(shape)) == brute_shape(size, axes, multiple)


@pytest.mark.parametrize(
    ("size", "shape", "topology"),
    [
        (4, (1, 2, 2), "mesh"),
        (8, (2, 2, 2), "mesh"),
        (16, (2, 2, 4), "mesh"),
        (64, (4, 4, 4), "torus"),
        (128, (4, 4, 8), "torus"),
        (192, (4, 4, 12), "torus"),
        (512, (8, 8, 8), "torus"),
        (3072, (12, 16, 16), "torus"),
    ],
)
def test_slices_of_a_torus_are_those_that_are_rented(size, shape, topology):
    tier = TORUS.resized(size)
    assert (tier.size, tier.shape, tier.topology) == (size, shape, topology)


def test_a_large_grid_is_found_at_once():
    assert balanced_shape(MAX_CHIPS, 3, 4) == (64, 128, 128)


@given(
    chips=st.integers(1, 5000),
    sizes=st.lists(st.integers(2, 600), min_size=0, max_size=3, unique=True).map(sorted),
)
def test_tiers_nest_and_end_at_the_cluster(chips, sizes):
    tiers = (*(Tier(f"t{size}", size, "switch", 1e9, 0.0) for size in sizes), OPEN)
    try:
        fitted = fit_tiers(tiers, chips, "chips")
    except InputError:
        assume(False)
        raise
    found = [1, *(tier.size for tier in fitted)]
    assert found[-1] == chips
    assert all(outer % inner == 0 and outer > inner for inner, outer in itertools.pairwise(found))
    for tier in fitted:
        whole = next(t for t in tiers if t.name == tier.name)
        assert tier.size <= whole.size
        assert tier.size == chips or 3 * tier.size >= 2 * whole.size
        assert tier.bytes_per_s == whole.bytes_per_s


@given(nodes=st.integers(1, 1000), inside=st.integers(2, 100))
def test_whole_nodes_always_fit(nodes, inside):
    assume(nodes * inside <= MAX_CHIPS)
    node = Tier("node", inside, "switch", 1e9, 0.0)
    sizes = [tier.size for tier in fit_tiers((node, OPEN), nodes * inside, "chips")]
    assert sizes == ([inside] if nodes == 1 else [inside, nodes * inside])


def test_racks_serve_a_power_of_two_in_equal_groups():
    assert [tier.size for tier in fit_tiers((RACK, OPEN), 256, "chips")] == [64, 256]
    assert [tier.size for tier in fit_tiers((RACK, OPEN), 64, "chips")] == [64]


@pytest.mark.parametrize("chips", [9, 10, 11, 13, 15, 65])
def test_groups_far_from_full_are_refused(chips, refusal):
    assert f"{chips} do not fill groups of 8 (node)" in refusal(fit_tiers, (NODE, OPEN), chips, "chips")


@given(chips=st.integers(1, 2000))
def test_groups_of_the_size_given_or_none(chips):
    if chips > 8 and chips % 8:
        with pytest.raises(InputError):
            fit_tiers((NODE, OPEN), chips, "chips", exact=True)
    else:
        assert fit_tiers((NODE, OPEN), chips, "chips", exact=True) == fit_tiers((NODE, OPEN), chips, "chips")


def test_a_torus_does_not_grow(refusal):
    assert "4097" in refusal(fit_tiers, (TORUS,), 4097, "chips")


def test_no_network_serves_one_chip_alone(refusal):
    assert fit_tiers((), 1, "chips") == ()
    assert "no network" in refusal(fit_tiers, (), 2, "chips")
