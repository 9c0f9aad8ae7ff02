"""What frameworks compute again by name, beside the recompute frontier of the same block."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from real_layers import blocks_of, every_block

from dovetail import frameworks, models
from dovetail.graph import LayerGraph
from dovetail.profile import LayerProfile, Recompute, Saving, recompute
from dovetail.profile.frontier import recompute_frontier
from dovetail.profile.modules import MODULES

#: Modules that are recomputed in any combination; the other names are policies, one at a time.
TOGETHER = frameworks.load("megatron").recompute_modules

CASES = [
    (model, tensor_parallel, attention)
    for model in ("gpt3-175b", "llama-3.1-405b", "mixtral-8x7b", "deepseek-v3")
    for tensor_parallel in (1, 8)
    for attention in ("fused", "unfused")
    if attention == "fused" or model == "gpt3-175b"
]
#: Labels are sums of the same seconds in other orders.
TOLERANCE = 1e-9


def label_of(cost: Recompute) -> NDArray[np.float64]:
    kept = float(cost.saved_bytes)
    seconds = float(cost.added_s) + sum(float(s) for s in cost.added_collective_s.values())
    return np.array([kept, kept + float(cost.workspace_bytes), seconds])


def rows_of(graph: LayerGraph, profile: LayerProfile) -> NDArray[np.float64]:
    frontier = recompute_frontier(graph, profile)
    return np.column_stack([frontier.saved_bytes, frontier.footprint_bytes, frontier.seconds])


def is_behind(label: NDArray[np.float64], rows: NDArray[np.float64]) -> bool:
    return bool((rows <= label * (1 + TOLERANCE)).all(axis=1).any())


def is_point(label: NDArray[np.float64], row: NDArray[np.float64]) -> bool:
    return bool(np.allclose(label, row, rtol=TOLERANCE, atol=0))


def module_choices(graph: LayerGraph) -> Iterator[Collection[str]]:
    """Every combination of the modules that have operators in a layer, and every policy."""
    present = [name for name, module in MODULES.items() if list(module.operators(graph))]
    modules = [name for name in present if name in TOGETHER]
    assert "core_attn" in modules
    for count in range(1, len(modules) + 1):
        yield from combinations(modules, count)
    yield from ((name,) for name in present if name not in TOGETHER)


@pytest.mark.parametrize(("model", "tensor_parallel", "attention"), CASES)
def test_every_named_choice_is_on_or_behind_the_frontier(model, tensor_parallel, attention):
    for graph, profile in blocks_of(model, tensor_parallel, attention).values():
        rows = rows_of(graph, profile)
        for choice in ("none", "selective", "full", *module_choices(graph)):
            for early in (False, True):
                label = label_of(recompute(graph, profile, choice, Saving(stops_early=early)))
                assert is_behind(label, rows), (choice, early)


@pytest.mark.parametrize(("model", "tensor_parallel", "attention"), CASES)
def test_a_whole_forward_again_is_behind_the_frontier_by_what_nothing_needs(model, tensor_parallel, attention):
    for graph, profile in blocks_of(model, tensor_parallel, attention).values():
        first, full = rows_of(graph, profile)[0], label_of(recompute(graph, profile, "full"))
        assert np.array_equal(full[:2], first[:2])
        assert full[2] > first[2] * (1 + TOLERANCE)


@pytest.mark.parametrize("model", models.names())
def test_the_ends_of_the_frontier_are_nothing_again_and_everything_needed_again(model):
    for graph, profile in every_block(model):
        rows = rows_of(graph, profile)
        none = label_of(recompute(graph, profile, "none"))
        assert none[2] == 0
        assert is_point(none, rows[-1])
        # not so in every graph, where a result may be smaller than what it is computed of; in these blocks
        assert is_point(label_of(recompute(graph, profile, "full", Saving(stops_early=True))), rows[0])


def test_selective_recompute_is_on_the_frontier_where_attention_is_written_out():
    for tensor_parallel in (1, 8):
        on: dict[str, bool] = {}
        for attention in ("fused", "unfused"):
            graph, profile = blocks_of("gpt3-175b", tensor_parallel, attention)["layer"]
            label = label_of(recompute(graph, profile, "selective"))
            on[attention] = any(is_point(label, row) for row in rows_of(graph, profile))
        assert on == {"fused": False, "unfused": True}
