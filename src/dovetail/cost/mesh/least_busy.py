"""The mix of trees whose busiest link carries least: a linear program whose columns are found as they are needed.

min z with Σ w·loads ≤ z on every row, Σ w = share for every root: the simplex method with the basis kept as a dense
inverse, the entering tree found by whoever knows the cheapest tree for given prices (Dantzig and Wolfe 1960). The
programs have few rows, so this needs no solver of its own, and gives the same answer on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from dovetail.arrays import TOLERANCE, Floats
from dovetail.frozen import frozen

#: A tree cheaper than its price by less than this changes nothing.
SMALLEST_GAIN = 1e-11
#: Ways out of the basis that leave at steps nearer than this leave together.
TIED = 1e-15
#: Rows are told apart by this much of slack, or the method could turn in circles; taken away at the end.
APART = 1e-8
#: Pivots after which the inverse is made anew.
REFRESH = 64
#: Nothing measured came near: a mesh of 6 × 8 dies takes some hundreds.
MOST_PIVOTS = 20_000

T = TypeVar("T")


@frozen
class Column(Generic[T]):
    """A tree: what it loads each row with, which root it has, and whatever names it."""

    loads: Floats
    root: int
    name: T


#: The cheapest tree for prices by row and rewards by root, and others that may be cheap too.
Cheapest = Callable[[Floats, Floats], Sequence[Column[T]]]


@frozen
class Mix(Generic[T]):
    """Trees with their weights; no mix is less busy than `bound`."""

    columns: tuple[tuple[Column[T], float], ...]
    busiest: float
    bound: float


class _Tableau(Generic[T]):
    """A basis of the program: z is column -1, slack of row i is -2 - i, trees count from 0."""

    def __init__(self, first: Sequence[Column[T]], shares: Floats) -> None:
        self.rows, self.roots = len(first[0].loads), len(shares)
        spacing = np.modf(np.arange(1, self.rows + 1) * ((np.sqrt(5.0) - 1) / 2))[0]
        self.exact = np.concatenate([np.zeros(self.rows), shares])
        self.apart = np.concatenate([APART * (0.5 + spacing), shares])
        self.trees: list[Column[T]] = []
        self.matrix = np.zeros((0, self.rows + self.roots))
        for column in first:
            self.add(column)
        loads = shares @ self.matrix[:, : self.rows] - self.apart[: self.rows]
        busiest = int(np.argmax(loads))
        self.basis = [-1, *(-2 - row for row in range(self.rows) if row != busiest), *range(self.roots)]
        self.refresh()

    def add(self, column: Column[T]) -> int:
        root = np.zeros(self.roots)
        root[column.root] = 1.0
        self.trees.append(column)
        self.matrix = np.vstack([self.matrix, np.concatenate([column.loads, root])])
        return len(self.trees) - 1

    def vector(self, column: int) -> Floats:
        if column >= 0:
            return self.matrix[column]
        result = np.zeros(self.rows + self.roots)
        if column == -1:
            result[: self.rows] = -1.0
        else:
            result[-2 - column] = 1.0
        return result

    def refresh(self) -> None:
        self.inverse = np.linalg.inv(np.array([self.vector(column) for column in self.basis]).T)
        self.values = self.inverse @ self.apart

    def prices(self) -> tuple[Floats, Floats]:
        """What a unit of load on each row costs, 1 in all, and what a unit of each root is worth."""
        duals = self.inverse[self.basis.index(-1)]
        return -duals[: self.rows], duals[self.rows :]

    def enter(self, column: int) -> None:
        direction = self.inverse @ self.vector(column)
        possible = np.flatnonzero(direction > TOLERANCE)
        steps = np.maximum(self.values[possible], 0.0) / direction[possible]
        # of those that leave at the same step the one that keeps the inverse in good order
        tied = possible[steps <= steps.min() + TIED]
        leaves = int(tied[np.argmax(direction[tied])])
        step = max(self.values[leaves], 0.0) / direction[leaves]
        self.values -= step * direction
        self.values[leaves] = step
        self.inverse[leaves] /= direction[leaves]
        direction[leaves] = 0.0
        self.inverse -= np.outer(direction, self.inverse[leaves])
        self.basis[leaves] = column


def least_busy(first: Sequence[Column[T]], shares: Floats, cheapest: Cheapest[T]) -> Mix[T]:
    """The best mix, from one tree of each root to begin with."""
    tableau = _Tableau(first, shares)
    bound = 0.0
    for pivot in range(1, MOST_PIVOTS):
        if pivot % REFRESH == 0:
            tableau.refresh()
        prices, worth = tableau.prices()
        if (row := int(np.argmin(prices))) >= 0 and prices[row] < -SMALLEST_GAIN:
            tableau.enter(-2 - row)
            continue
        reduced_costs = tableau.matrix @ np.concatenate([prices, -worth])
        if reduced_costs[best := int(np.argmin(reduced_costs))] < -SMALLEST_GAIN:
            tableau.enter(best)
            continue
        prices = np.maximum(prices, 0.0) / np.maximum(prices, 0.0).sum()
        columns = cheapest(prices, worth)
        less = [float(prices @ column.loads - worth[column.root]) for column in columns]
        # shares add up to 1, so no mix gains more than its best tree
        bound = max(bound, float(worth @ shares) + min(0.0, *less))
        if min(less) >= -SMALLEST_GAIN:
            break
        added = [tableau.add(column) for column, gain in zip(columns, less, strict=True) if gain < -SMALLEST_GAIN]
        tableau.enter(added[int(np.argmin([gain for gain in less if gain < -SMALLEST_GAIN]))])
    return _mix(tableau, shares, bound)


def _mix(tableau: _Tableau[T], shares: Floats, bound: float) -> Mix[T]:
    """The weights without the slack that told rows apart."""
    tableau.refresh()
    values = np.maximum(tableau.inverse @ tableau.exact, 0.0)
    weights = {column: float(value) for column, value in zip(tableau.basis, values, strict=True) if column >= 0}
    totals = np.zeros(tableau.roots)
    for column, weight in weights.items():
        totals[tableau.trees[column].root] += weight
    weighted: list[tuple[Column[T], float]] = []
    loads = np.zeros(tableau.rows)
    for number, weight in sorted(weights.items()):
        column = tableau.trees[number]
        if weight > SMALLEST_GAIN:
            weighted.append((column, weight * shares[column.root] / totals[column.root]))
            loads += weighted[-1][1] * column.loads
    return Mix(tuple(weighted), float(loads.max()), bound)
