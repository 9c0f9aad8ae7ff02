"""Exact answers to cost problems: the cheapest choice, the cheapest through each option, the Pareto front."""

from dovetail.mapping.elimination.messages import cheapest, through
from dovetail.mapping.elimination.pareto import CostFront, frontier
from dovetail.mapping.elimination.problem import CostProblem, CostTable

__all__ = [
    "CostFront",
    "CostProblem",
    "CostTable",
    "cheapest",
    "frontier",
    "through",
]
