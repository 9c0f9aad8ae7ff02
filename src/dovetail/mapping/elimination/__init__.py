"""Exact answers to cost problems: the cheapest choice, the cheapest through each option, the Pareto front."""

from dovetail.mapping.elimination.messages import cheapest, through
from dovetail.mapping.elimination.pareto import CostFront, frontier
from dovetail.mapping.elimination.powers import ClosedWalk, closed_walk, min_plus_power
from dovetail.mapping.elimination.problem import CostProblem, CostTable

__all__ = [
    "ClosedWalk",
    "CostFront",
    "CostProblem",
    "CostTable",
    "cheapest",
    "closed_walk",
    "frontier",
    "min_plus_power",
    "through",
]
