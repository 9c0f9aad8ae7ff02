"""Nodes of a job wait for the slowest of them: what that takes grows with their number."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

from dovetail.cost.calibration import Efficiencies
from dovetail.hardware import Cluster

#: How much the pace of nodes differs, as a part of it: clocks that heat and silicon leave, and jitter of hosts.
#: The median over 48 groups of measured runs that differ in their chips alone (docs/explanation/collectives.md).
NODE_SPREAD = 0.018


def slowdown(nodes: int) -> float:
    """What the slowest of so many nodes takes, of what one takes on average: normal order statistics (Blom 1958)."""
    return 1.0 + NODE_SPREAD * (NormalDist().inv_cdf((nodes - 0.375) / (nodes + 0.25)) if nodes > 1 else 0.0)


def nodes_of(cluster: Cluster) -> int:
    """Groups of chips that share a host or a rack: those of the links a chip is sold with."""
    tiers = cluster.chip.tiers
    return max(cluster.chips // tiers[0].size, 1) if tiers else 1


def of_slowest(efficiencies: Efficiencies, cluster: Cluster) -> Efficiencies:
    """What the slowest chip of a cluster sustains."""
    share = 1 / slowdown(nodes_of(cluster))
    names = ("matrix", "matrix_half", "attention_forward", "attention_backward", "memory")
    return replace(efficiencies, **{name: share * getattr(efficiencies, name) for name in names})
