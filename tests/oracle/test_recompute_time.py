"""The recompute frontier of every block is found in milliseconds of CPU time."""

from __future__ import annotations

import time

import pytest
from real_layers import every_block

from dovetail import models
from dovetail.graph import LayerGraph
from dovetail.profile import LayerProfile
from dovetail.profile.frontier import recompute_frontier

MOST_S = 0.020


def least_cpu_seconds(graph: LayerGraph, profile: LayerProfile) -> float:
    """The least of several warm runs: other work on the machine only adds."""
    recompute_frontier(graph, profile)
    spent: list[float] = []
    while len(spent) < 3 or (min(spent) >= MOST_S and len(spent) < 20):
        before = time.process_time()
        recompute_frontier(graph, profile)
        spent.append(time.process_time() - before)
    return min(spent)


@pytest.mark.parametrize("model", models.names())
def test_the_frontier_of_every_block_takes_less_than_20_ms(model):
    for graph, profile in every_block(model):
        assert least_cpu_seconds(graph, profile) < MOST_S
