"""Exact lowest weighted sums: messages up and down the bucket tree."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from dovetail.arrays import Floats
from dovetail.mapping.elimination.min_plus import Factor, least_over
from dovetail.mapping.elimination.problem import CostProblem, check, check_weights
from dovetail.mapping.elimination.tree import Tree, elimination_tree


def cheapest(problem: CostProblem, weights: Sequence[float] | Floats) -> tuple[float, tuple[int, ...]]:
    """The exact lowest weighted sum of objectives and a choice that attains it; infinite and () if all is forbidden.

    Ties go to the first option of each variable in turn, the last eliminated first.
    """
    check(problem)
    tree = tree_of(problem)
    passes = Messages(problem, tree, check_weights(problem, weights))
    return passes.lowest, passes.choice()


def through(problem: CostProblem, weights: Sequence[float] | Floats) -> list[Floats]:
    """The exact lowest weighted sum of any choice through each option of each variable."""
    check(problem)
    passes = Messages(problem, tree_of(problem), check_weights(problem, weights))
    passes.send_down()
    return passes.marginals()


def tree_of(problem: CostProblem, growth: float = 1.0) -> Tree:
    """The tree of buckets of a problem."""
    return elimination_tree(problem.sizes, [table.variables for table in problem.tables], growth)


class Messages:
    """Messages between the buckets of a tree for one weighted sum of the objectives."""

    def __init__(self, problem: CostProblem, tree: Tree, weights: Floats) -> None:
        """Sends all messages up: everything else needs them."""
        self.tree = tree
        self.variables = [table.variables for table in problem.tables]
        self.tables = problem.weighted(weights)
        #: by bucket: the lowest cost of all that was eliminated up to it, for every choice of its separator
        self.up: list[Floats] = []
        #: by bucket: the lowest cost of all the rest, for every choice of its separator
        self.down: list[Floats] = []
        for place, bucket in enumerate(tree.buckets):
            self.up.append(least_over(self.factors(place), bucket.separator, tree.sizes))

    @property
    def lowest(self) -> float:
        """The lowest sum of all choices."""
        return float(self.up[-1])

    def factors(self, place: int, without: Collection[int] = ()) -> list[Factor]:
        """What a bucket adds up: its tables, its children's messages (without some), and the message from above."""
        bucket = self.tree.buckets[place]
        factors: list[Factor] = [(self.variables[number], self.tables[number]) for number in bucket.tables]
        factors += [(self.tree.buckets[c].separator, self.up[c]) for c in bucket.children if c not in without]
        if self.down:
            factors.append((bucket.separator, self.down[place]))
        return factors

    def send_down(self) -> None:
        """Tells every bucket the lowest cost of the rest of the problem."""
        buckets = self.tree.buckets
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
            costs[bucket.variable] = least_over(self.factors(place), (bucket.variable,), self.tree.sizes)
        return costs

    def choice(self) -> tuple[int, ...]:
        """A choice with the lowest sum; empty if all is forbidden."""
        if math.isinf(self.lowest):
            return ()
        options = [0] * len(self.tree.sizes)
        for place in reversed(range(len(self.tree.buckets))):
            bucket = self.tree.buckets[place]
            total = np.zeros(self.tree.sizes[bucket.variable])
            for scope, costs in self.factors(place):
                total = total + costs[tuple(slice(None) if v == bucket.variable else options[v] for v in scope)]
            options[bucket.variable] = int(total.argmin())
        return tuple(options[:-1])
