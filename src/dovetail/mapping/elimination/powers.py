"""Chains of equal steps: (min,+) powers of a matrix of costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.arrays import Floats
from dovetail.errors import InputError, quoted
from dovetail.mapping.elimination.elimination_kernels import product


@dataclass(frozen=True, slots=True)
class ClosedWalk:
    """The cheapest walk of some steps that ends where it began."""

    cost: float
    #: the same if every step stays in one state
    staying_cost: float


def min_plus_power(matrix: Floats, n: int) -> Floats:
    """The lowest cost of n steps between all pairs of states, by repeated squaring; no step costs nothing."""
    costs = np.ascontiguousarray(matrix, dtype=np.float64)
    if costs.ndim != 2 or costs.shape[0] != costs.shape[1] or np.isnan(costs).any():
        raise InputError("costs of a step", f"have the shape {costs.shape}", "they should be a square of numbers")
    if n < 0:
        raise InputError("steps", f"are {quoted(n)}", "they should be 0 or more")
    power = np.full(costs.shape, np.inf)
    np.fill_diagonal(power, 0.0)
    while n:
        if n & 1:
            power = product(power, costs)
        n >>= 1
        if n:
            costs = product(costs, costs)
    return power


def closed_walk(matrix: Floats, n: int) -> ClosedWalk:
    """The cheapest closed walk of n steps, and the cheapest that never moves."""
    return ClosedWalk(
        float(np.diag(min_plus_power(matrix, n)).min(initial=np.inf)),
        n * float(np.diag(matrix).min(initial=np.inf)) if n else 0.0,
    )
