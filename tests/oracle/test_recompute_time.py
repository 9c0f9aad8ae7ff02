"""The recompute frontier of every block is found in milliseconds of CPU time."""

from __future__ import annotations

from functools import partial

import pytest
from real_layers import every_block

from dovetail import models
from dovetail.profile.frontier import recompute_frontier
from timing import least_cpu_seconds

MOST_S = 0.020


@pytest.mark.parametrize("model", models.names())
def test_the_frontier_of_every_block_takes_less_than_20_ms(model):
    for graph, profile in every_block(model):
        assert least_cpu_seconds(partial(recompute_frontier, graph, profile), MOST_S) < MOST_S
