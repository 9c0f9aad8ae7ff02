"""Loads of chips with experts against drawn ones, and nodes that limited routing reaches against drawn choices."""

import numpy as np
import pytest

from dovetail.cost.collective import tiered_seconds
from dovetail.cost.experts import LOAD_SPREAD, fullest_load
from dovetail.cost.tier import TierArrays
from dovetail.graph.routing import ExpertGroups
from dovetail.layout import CollectiveKind


@pytest.mark.parametrize(("experts", "own"), [(8, 1), (64, 8), (128, 16), (256, 4), (256, 32)])
def test_the_rule_is_a_little_above_the_mean_of_drawn_loads(experts, own):
    loads = np.maximum(np.random.default_rng(1).normal(1, LOAD_SPREAD, (4000, experts // own, own)), 0)
    drawn = (loads.mean(axis=2).max(axis=1) / loads.mean(axis=(1, 2))).mean()
    ruled = float(fullest_load(np.asarray(float(experts)), np.asarray(float(own)), None))
    assert drawn <= ruled <= 1 + 1.6 * (drawn - 1)


def test_a_chip_with_all_experts_has_the_mean_and_what_is_stated_holds():
    everything = np.asarray(64.0)
    assert fullest_load(everything, everything, None) == 1
    assert fullest_load(everything, np.asarray(8.0), 1.3) == 1.3
    assert fullest_load(everything, np.asarray(8.0), 1.0) == 1


def test_limited_routing_sends_copies_to_as_many_nodes_as_drawn_choices_do():
    nodes, groups, top_groups, top_k = 8, 8, 4, 8
    rng = np.random.default_rng(2)
    reached = np.mean(
        [len(set(rng.permutation(groups)[:top_groups][rng.integers(0, top_groups, top_k)])) for _ in range(4000)]
    )
    none, full = np.zeros(()), np.ones(())
    free, slow = (TierArrays(np.asarray(rate), none, none, full) for rate in (1e15, 1e9))
    ways = [(np.asarray(8.0), free), (np.asarray(float(nodes)), slow)]

    def seconds(receivers, limit):
        size = np.asarray(1e9)
        return float(tiered_seconds(CollectiveKind.ALL_TO_ALL, ways, size, receivers=receivers, limit=limit))

    limited = seconds(top_k, ExpertGroups(groups, top_groups)) / seconds(1, ExpertGroups())
    assert limited == pytest.approx(reached / top_k, rel=0.02)
    assert limited < seconds(top_k, ExpertGroups()) / seconds(1, ExpertGroups())
