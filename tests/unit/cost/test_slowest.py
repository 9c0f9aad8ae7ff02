"""Nodes wait for the slowest of them."""

import numpy as np
import pytest

from dovetail import hardware
from dovetail.cost.calibration import calibration
from dovetail.cost.slowest import NODE_SPREAD, nodes_of, of_slowest, slowdown


@pytest.mark.parametrize("nodes", [2, 16, 300])
def test_the_slowest_node_is_as_slow_as_drawn_ones(nodes):
    """Against the mean over drawn jobs, whose nodes differ by the same spread."""
    drawn = np.random.default_rng(1).normal(1.0, NODE_SPREAD, (20_000, nodes)).max(axis=1).mean()
    assert slowdown(nodes) == pytest.approx(drawn, abs=0.001)


def test_one_node_waits_for_nobody():
    one = hardware.cluster("eos", chips=8)
    known = calibration(one.chip, "bf16").efficiencies
    assert nodes_of(one) == 1
    assert of_slowest(known, one) == known


def test_chips_are_slower_and_links_are_not():
    many = hardware.cluster("eos", chips=1024)
    known = calibration(many.chip, "bf16").efficiencies
    slower = of_slowest(known, many)
    assert nodes_of(many) == 128
    assert float(known.matrix / slower.matrix) == pytest.approx(slowdown(128))
    assert slower.link == known.link
    assert slower.network == known.network
