"""Messages up and down a bucket tree: exact lowest weighted sums, or lower bounds if the tree has copies."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from dovetail.arrays import Floats
from dovetail.mapping.elimination.min_plus import Factor, least_over
from dovetail.mapping.elimination.problem import CostProblem
from dovetail.mapping.elimination.tree import Tree, elimination_tree


def tree_of(problem: CostProblem, growth: float = 1.0) -> Tree:
    """The tree of buckets of a problem."""
    plain = problem.plain
    return elimination_tree(plain.sizes, [table.variables for table in plain.tables], growth)


class TreeMessages:
    """Messages between the buckets of a tree for one weighted sum of the objectives; in the order they are needed."""

    def __init__(self, problem: CostProblem, tree: Tree, weights: Floats) -> None:
        """Weighs the tables; messages are sent when they are needed."""
        self.tree = tree
        self.count = len(problem.sizes)
        self.weighted = problem.plain.weighted(weights)
        self.variables = [table.variables for table in self.weighted.tables]
        self.tables = [table.costs[0] for table in self.weighted.tables]
        self._up: list[Floats] = []
        #: by bucket: the lowest cost of all the rest, for every choice of its separator
        self.down: list[Floats] = []

    @property
    def up(self) -> list[Floats]:
        """By bucket: the lowest cost of all that was eliminated up to it, for every choice of its separator."""
        if not self._up:
            for place, bucket in enumerate(self.tree.buckets):
                self._up.append(least_over(self.factors(place), bucket.separator, self.tree.sizes))
        return self._up

    @property
    def lowest(self) -> float:
        """The lowest sum of all choices."""
        return float(self.up[-1])

    def factors(self, place: int, without: Collection[int] = ()) -> list[Factor]:
        """What a bucket adds up: its tables, its children's messages (without some), and the message from above."""
        bucket = self.tree.buckets[place]
        factors: list[Factor] = [(self.variables[number], self.tables[number]) for number in bucket.tables]
        factors += [(self.tree.buckets[c].separator, self._up[c]) for c in bucket.children if c not in without]
        if self.down:
            factors.append((bucket.separator, self.down[place]))
        return factors

    def send_down(self) -> None:
        """Tells every bucket the lowest cost of the rest of the problem."""
        buckets, _ = self.tree.buckets, self.up
        down: list[Floats] = [np.zeros(())] * len(buckets)
        self.down = down
        for place in reversed(range(len(buckets))):
            for child in buckets[place].children:
                # never a difference of two sums: it would be NaN if both are infinite
                down[child] = least_over(self.factors(place, (child,)), buckets[child].separator, self.tree.sizes)

    def marginals(self) -> list[Floats]:
        """The lowest sum through each option, by variable; needs `send_down` first."""
        costs: list[Floats] = [np.zeros(0)] * (len(self.tree.sizes) - 1)
        for place, bucket in enumerate(self.tree.buckets[:-1]):
            through = least_over(self.factors(place), (bucket.variable,), self.tree.sizes)
            # what is a bound in each copy of a variable is one of the variable
            before = costs[bucket.variable]
            costs[bucket.variable] = np.maximum(before, through) if len(before) else through
        return costs[: self.count]

    def choice(self) -> tuple[int, ...]:
        """A choice with the lowest sum; empty if all is forbidden."""
        if math.isinf(self.up[-1]):
            return ()
        options = [0] * len(self.tree.sizes)
        total: Floats = np.zeros(0)
        for place in reversed(range(len(self.tree.buckets))):
            variable = self.tree.buckets[place].variable
            if place + 1 == len(self.tree.buckets) or self.tree.buckets[place + 1].variable != variable:
                total = np.zeros(self.tree.sizes[variable])
            for scope, costs in self.factors(place):
                total = total + costs[tuple(slice(None) if v == variable else options[v] for v in scope)]
            options[variable] = int(total.argmin())
        return tuple(options[: self.count])
