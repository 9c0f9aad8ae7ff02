"""Collectives: bandwidth terms of the literature, latency that grows with the group, tiers combined."""

import numpy as np
import pytest

from dovetail.cost.collective import TierArrays, seconds, tiered_seconds
from dovetail.layout import CollectiveKind as Kind


def tier(rate=100e9, latency=0.0, **options):
    return TierArrays(np.asarray(rate), np.asarray(latency), np.asarray(0.0), np.asarray(1.0), **options)


def number(value):
    return np.asarray(float(value))


@pytest.mark.parametrize("chips", [2, 8, 64])
def test_bandwidth_terms(chips):
    size, share = 1e9, (chips - 1) / chips
    expected = {Kind.ALL_REDUCE: 2 * share, Kind.ALL_GATHER: share, Kind.REDUCE_SCATTER: share, Kind.ALL_TO_ALL: share}
    for kind, factor in expected.items():
        assert float(seconds(kind, number(chips), number(size), tier())) == pytest.approx(factor * size / 100e9)


def test_a_group_of_one_costs_nothing():
    for kind in Kind:
        assert float(seconds(kind, number(1), number(1e9), tier(latency=1e-6))) == 0


def test_latency_grows_with_the_group_and_small_messages_take_the_tree():
    small = [float(seconds(Kind.ALL_REDUCE, number(n), number(8), tier(latency=1e-6))) for n in (2, 16, 1024)]
    assert small == sorted(small)
    assert small[-1] == pytest.approx(2 * 10 * 1e-6, rel=1e-3)


def test_switches_that_add_halve_an_all_reduce():
    plain = float(seconds(Kind.ALL_REDUCE, number(8), number(1e9), tier()))
    adding = float(seconds(Kind.ALL_REDUCE, number(8), number(1e9), tier(in_network_reduction=True)))
    assert adding == pytest.approx(1e9 / 100e9)
    assert adding < plain


def test_tiers_combine_hierarchically():
    inner, outer = tier(300e9), tier(25e9)
    size, n, nodes = 1e9, 8, 16
    got = float(tiered_seconds(Kind.ALL_REDUCE, [(number(n), inner), (number(nodes), outer)], number(size)))
    inside = 2 * (n - 1) / n * size / 300e9
    across = 2 * (nodes - 1) / nodes * (size / n) / 25e9
    assert got == pytest.approx(inside + across)
    gather = float(tiered_seconds(Kind.ALL_GATHER, [(number(n), inner), (number(nodes), outer)], number(size)))
    assert gather == pytest.approx((inside + across) / 2)


def test_all_to_all_is_bound_by_its_slower_tier():
    inner, outer = tier(300e9), tier(25e9)
    got = float(tiered_seconds(Kind.ALL_TO_ALL, [(number(8), inner), (number(4), outer)], number(1e9)))
    assert got == pytest.approx(3 / 4 * 1e9 / 25e9)
