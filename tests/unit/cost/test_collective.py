"""Collectives: bandwidth terms of the literature, chunks and latency beyond them, tiers combined."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cost.collective import Transport, seconds, tiered_seconds
from dovetail.cost.tier import TierArrays
from dovetail.layout import CollectiveKind as Kind

#: Messages that cross links at their rate and nothing else.
IDEAL = Transport(low_latency=1.0, chunk=0.0, copy=0.0, switch=1.0)


def tier(rate=100e9, latency=0.0, launch=0.0, **options):
    return TierArrays(np.asarray(rate), np.asarray(latency), np.asarray(launch), np.asarray(1.0), **options)


def number(value):
    return np.asarray(float(value))


def least(kind, chips, size, rate):
    """What any algorithm moves over each chip's link, without switches that add."""
    return (2 if kind is Kind.ALL_REDUCE else 1) * (chips - 1) / chips * size / rate


@pytest.mark.parametrize("chips", [2, 8, 64])
def test_bandwidth_terms(chips):
    for kind in (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL):
        got = float(seconds(kind, number(chips), number(1e9), tier(), IDEAL))
        assert got == pytest.approx(least(kind, chips, 1e9, 100e9))


def test_a_group_of_one_costs_nothing():
    for kind in Kind:
        assert float(seconds(kind, number(1), number(1e9), tier(latency=1e-6, launch=1e-5))) == 0
        groups = [(number(1), tier(launch=1e-5, in_network_reduction=True)), (number(1), tier())]
        assert float(tiered_seconds(kind, groups, number(1e9))) == 0


def test_latency_grows_with_the_group():
    small = [float(seconds(Kind.ALL_REDUCE, number(n), number(8), tier(latency=1e-6))) for n in (2, 16, 1024)]
    assert small == sorted(small)
    # a chain through the eight chips of a node, a tree of 128 nodes, and back
    assert small[-1] == pytest.approx(2 * (7 + 7) * 1e-6, rel=1e-3)


def test_gathers_go_round_the_ring():
    got = float(seconds(Kind.ALL_GATHER, number(64), number(8), tier(latency=1e-6)))
    assert got == pytest.approx(63e-6, rel=1e-3)


@pytest.mark.parametrize("receivers", [1.0, 8.0])
@pytest.mark.parametrize("kind", list(Kind))
def test_leaf_and_spine_of_the_same_cards_are_one_network(kind, receivers):
    """Cut in two tiers that share their ports, a network without a taper takes what it takes as one tier."""
    node, cards = tier(rate=900e9), tier(rate=50e9, ports="network")
    whole = [(number(8), node), (number(24), cards)]
    for leaf in (1, 2, 4, 12, 24):
        parts = [(number(8), node), (number(leaf), cards), (number(24 // leaf), cards)]
        one, cut = (float(tiered_seconds(kind, each, number(1e9), IDEAL, receivers)) for each in (whole, parts))
        assert cut == pytest.approx(one)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_taper_never_gains(kind):
    node, cards = tier(rate=900e9), tier(rate=50e9, ports="network")
    for leaf in (2, 4, 12):
        groups = [(number(8), node), (number(leaf), cards)]
        tapered = [tier(rate=50e9 / taper, ports="network") for taper in (1, 1.5, 2, 8)]
        times = [
            float(tiered_seconds(kind, [*groups, (number(24 // leaf), spine)], number(1e9), receivers=8.0))
            for spine in tapered
        ]
        assert times == sorted(times)
        assert times[-1] > times[0] or kind is not Kind.ALL_TO_ALL


def test_between_nodes_trees_branch():
    groups = [(number(8), tier(latency=1e-6)), (number(32), tier(latency=5e-6))]
    got = float(tiered_seconds(Kind.ALL_REDUCE, groups, number(8)))
    assert got == pytest.approx(2 * (7 * 1e-6 + 5 * 5e-6), rel=1e-3)


def test_switches_that_add_read_everything_once():
    plain = float(seconds(Kind.ALL_REDUCE, number(8), number(1e9), tier(), IDEAL))
    adding = float(seconds(Kind.ALL_REDUCE, number(8), number(1e9), tier(in_network_reduction=True), IDEAL))
    assert adding == pytest.approx(9 / 8 * 1e9 / 100e9)
    assert adding < plain


def test_switches_are_used_only_where_they_help():
    adding, plain = tier(launch=5e-6, latency=1e-6, in_network_reduction=True), tier(launch=5e-6, latency=1e-6)
    for n, size in ((2, 1e9), (4, 1e3)):
        with_switches, without = (float(seconds(Kind.ALL_REDUCE, number(n), number(size), t)) for t in (adding, plain))
        assert with_switches == without


def test_small_messages_take_the_protocol_without_chunks():
    small = float(seconds(Kind.ALL_GATHER, number(2), number(2e5), tier(launch=1e-5)))
    work = (1 + Transport().copy) * 1e5 / 100e9
    assert small == pytest.approx(1e-5 + work / Transport().low_latency)


def test_chunks_cost_a_root_of_the_work():
    beyond = []
    for size in (1e9, 4e9):
        work = (7 + Transport().copy) / 8 * size / 100e9
        beyond.append(float(seconds(Kind.ALL_GATHER, number(8), number(size), tier(launch=1e-5))) - work - 1e-5)
    assert beyond[0] == pytest.approx(2 * (7.38 / 8 * 1e9 / 100e9 * Transport().chunk * 1e-5) ** 0.5)
    assert beyond[1] == pytest.approx(2 * beyond[0])


def test_the_slowest_tier_decides():
    inner, outer = tier(300e9), tier(25e9)
    size, n, nodes = 1e9, 8, 16
    groups = [(number(n), inner), (number(nodes), outer)]
    reduced, gathered = (
        float(tiered_seconds(kind, groups, number(size), IDEAL)) for kind in (Kind.ALL_REDUCE, Kind.ALL_GATHER)
    )
    # a ring through all chips leaves each node over eight links
    assert reduced == pytest.approx(2 * (n * nodes - 1) / (n * nodes) * size / n / 25e9)
    assert gathered == pytest.approx(reduced / 2)


def test_two_nodes_exchange_instead_of_going_round():
    groups = [(number(8), tier(600e9)), (number(2), tier(25e9))]
    assert float(tiered_seconds(Kind.ALL_REDUCE, groups, number(1e9), IDEAL)) == pytest.approx(1e9 / 8 / 25e9)


def test_one_launch_for_all_tiers():
    groups = [(number(8), tier(launch=1e-5)), (number(4), tier(launch=1e-5))]
    assert float(tiered_seconds(Kind.ALL_REDUCE, groups, number(0))) == pytest.approx(1e-5)


def test_all_to_all_is_bound_by_its_slower_tier():
    inner, outer = tier(300e9), tier(25e9)
    got = float(tiered_seconds(Kind.ALL_TO_ALL, [(number(8), inner), (number(4), outer)], number(1e9)))
    assert got == pytest.approx(3 / 4 * 1e9 / 25e9)


@given(
    st.sampled_from(list(Kind)),
    st.integers(2, 9),
    st.integers(1, 64),
    st.booleans(),
    st.floats(1e3, 1e11),
    st.floats(0.1, 1.0),
)
def test_more_bytes_take_longer_and_never_less_than_the_links_need(kind, inside, nodes, adding, size, network):
    efficiency = np.asarray(network)
    inner = TierArrays(np.asarray(450e9), np.asarray(1e-6), np.asarray(5e-6), np.asarray(0.8), adding)
    outer = TierArrays(np.asarray(50e9), np.asarray(5e-6), np.asarray(5e-6), efficiency)
    groups = [(number(inside), inner), (number(nodes), outer)]
    sizes = size * np.array([0.5, 0.99, 1.0, 1.01, 2.0])
    got = tiered_seconds(kind, groups, sizes)
    assert np.all(np.diff(got) > 0)
    share = (inside - 1) / inside
    received = {Kind.ALL_REDUCE: size if adding else 2 * share * size, Kind.ALL_GATHER: share * size}
    within = received.get(kind, share * size / nodes)
    across = (nodes - 1) / nodes * size / (1 if kind in (Kind.ALL_TO_ALL, Kind.PERMUTE) else inside)
    across = 2 * across if kind is Kind.ALL_REDUCE else across
    assert got[2] >= within / 450e9
    assert got[2] >= across / 50e9


def test_arrays_of_sizes_chips_and_rates_at_once():
    sizes, chips, rates = np.array([1e6, 1e8])[:, None, None], np.array([2.0, 8.0])[:, None], np.array([1e11, 9e11])
    links = TierArrays(rates, np.asarray(1e-6), np.asarray(5e-6), np.asarray(0.8), True)
    for kind in Kind:
        got = seconds(kind, chips, sizes, links)
        assert got.shape == (2, 2, 2)
        one = TierArrays(rates[1], links.latency_s, links.launch_s, links.efficiency, True)
        assert got[1, 0, 1] == pytest.approx(float(seconds(kind, number(2), number(1e8), one)))


def exchanged(nodes, copies, kind=Kind.ALL_TO_ALL):
    """Tokens for several experts each, between nodes of eight chips whose network is the slow part."""
    groups = [(number(8), tier(900e9)), (number(nodes), tier(25e9))]
    return float(tiered_seconds(kind, groups, number(1e9), IDEAL, receivers=copies))


@pytest.mark.parametrize("nodes", [2, 4, 16])
@pytest.mark.parametrize("copies", [2, 4, 8])
def test_a_token_for_several_experts_of_a_node_travels_there_once(nodes, copies):
    # each of n nodes holds none of k receivers with (1 - 1/n)^k
    visited = nodes * (1 - (1 - 1 / nodes) ** copies)
    assert exchanged(nodes, copies) == pytest.approx(exchanged(nodes, 1) * visited / copies)
    assert exchanged(nodes, copies) < exchanged(nodes, 1)


def test_copies_save_less_the_more_nodes_there_are():
    shares = [exchanged(nodes, 8) / exchanged(nodes, 1) for nodes in (2, 4, 8, 64, 4096)]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0, abs=0.001)


def test_copies_make_no_difference_inside_one_node():
    for groups in ([(number(8), tier())], [(number(8), tier()), (number(1), tier(25e9))]):
        one, eight = (float(tiered_seconds(Kind.ALL_TO_ALL, groups, number(1e9), receivers=k)) for k in (1.0, 8.0))
        assert one == eight


def test_only_exchanges_have_copies():
    for kind in (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER):
        assert exchanged(4, 8, kind) == exchanged(4, 1, kind)
