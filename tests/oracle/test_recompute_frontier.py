"""The recompute frontier against every subset of operators: of random layers, and of the smaller real ones."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layers import EXPOSED, OPERAND_SHARES, random_layers
from real_layers import blocks_of, in_ticks
from recompute_oracle import Forward, undominated

from dovetail.profile.frontier import RecomputeFrontier, recompute_frontier
from dovetail.profile.recompute import recompute
from dovetail.profile.saving import Saving

#: Every subset of up to twelve operators is tried: hundreds of layers in CI, thousands on command.
EXAMPLES = 5000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 300


def labels_of(frontier: RecomputeFrontier) -> list[tuple[float, ...]]:
    rows = np.column_stack([frontier.saved_bytes, frontier.footprint_bytes, frontier.seconds])
    return [tuple(row) for row in rows.tolist()]


def labels_by_name(graph, profile, names, exposed, share) -> tuple[float, ...]:
    """What a list of operators is said to cost."""
    cost, weigh = recompute(graph, profile, names, Saving(operand_share=share)), exposed or {}
    collectives = sum(float(s) * weigh.get(group, 1.0) for group, s in cost.added_collective_s.items())
    kept = float(cost.saved_bytes)
    return kept, kept + float(cost.workspace_bytes), float(cost.added_s) + collectives


@settings(max_examples=EXAMPLES, deadline=None)
@given(random_layers(), EXPOSED, OPERAND_SHARES)
def test_the_frontier_is_that_of_all_subsets_and_its_points_are_what_they_say(layer, exposed, share):
    graph, profile = layer
    frontier, forward = recompute_frontier(graph, profile, share, exposed), Forward(graph, profile, exposed, share)
    found = labels_of(frontier)
    # equal to the last bit: bytes and seconds are whole multiples of a power of two
    assert sorted(found) == [tuple(row) for row in undominated(forward.every_label()).tolist()]
    assert np.all(np.diff(frontier.saved_bytes) >= 0)
    assert np.array_equal(frontier.footprint_bytes, frontier.saved_bytes + frontier.workspace_bytes)
    for index, label in enumerate(found):
        assert forward.label(frontier.recomputed(index)) == label
        assert labels_by_name(graph, profile, frontier.recomputed(index), exposed, share) == label


@settings(max_examples=EXAMPLES // 3, deadline=None)
@given(random_layers(), EXPOSED, OPERAND_SHARES, st.integers(min_value=0))
def test_any_list_of_operators_costs_what_the_definition_says(layer, exposed, share, subset):
    graph, profile = layer
    names = [o.name for number, o in enumerate(graph.operators) if subset >> number & 1]
    expected = Forward(graph, profile, exposed, share).label(names)
    assert labels_by_name(graph, profile, names, exposed, share) == expected


@pytest.mark.parametrize("tensor_parallel", [1, 8])
@pytest.mark.parametrize("model", ["llama-3.1-405b", "mixtral-8x7b", "llama-3.1-8b", "qwen3-8b", "gpt3-175b"])
def test_the_frontier_of_a_real_block_is_that_of_all_subsets(model, tensor_parallel):
    for graph, profile in blocks_of(model, tensor_parallel).values():
        whole = in_ticks(profile)
        expected = undominated(Forward(graph, whole).every_label())
        assert sorted(labels_of(recompute_frontier(graph, whole))) == [tuple(row) for row in expected.tolist()]
        assert len(expected) > 10
