"""Exact answers to problems of many small choices: least cost, least cost through each option, and the front."""

from dovetail.search.elimination.messages import least, through
from dovetail.search.elimination.pareto import Frontier, frontier
from dovetail.search.elimination.powers import ClosedWalk, closed_walk, min_plus_power
from dovetail.search.elimination.problem import CostProblem, CostTable

__all__ = [
    "ClosedWalk",
    "CostProblem",
    "CostTable",
    "Frontier",
    "closed_walk",
    "frontier",
    "least",
    "min_plus_power",
    "through",
]
