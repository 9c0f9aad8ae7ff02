"""The lowest sum of a problem without its largest joint tables: options that bounds show to be too expensive go first.

A tree with copies of variables (mini-buckets) has small joint tables, and its sums are lower bounds: the lowest sum
through an option is at least that through any copy of it. An option whose bound is above the cost of a known choice
is in no cheapest choice. Without such options the exact tree is small, or the next bound is tighter.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dovetail.arrays import ROUNDING, Floats, Ints
from dovetail.mapping.elimination.problem import CostProblem
from dovetail.mapping.elimination.tree import Tree, split_tree
from dovetail.mapping.elimination.tree_messages import TreeMessages, tree_of

#: A tree with at most so many entries in all its joint tables is solved as it is.
EASY_ENTRIES = 1 << 22

#: Entries of a joint table of the first bound, and how many times more if a bound drops too few options.
BOUND_ENTRIES, MORE = 1 << 16, 8

#: Bounds go on as they are while at most this share of all entries is left after one.
SHARE_LEFT = 0.5

ONE = np.ones(1)


def least_choice(problem: CostProblem, tree: Tree) -> tuple[float, tuple[int, ...]]:
    """The lowest sum of a plain problem with one objective, and a choice of it; infinite and () if all is forbidden."""
    remaining: list[Ints] = [np.arange(size) for size in problem.sizes]
    known: tuple[float, Ints] | None = None
    scopes = [table.variables for table in problem.tables]
    most, left = BOUND_ENTRIES, problem
    while tree.work > max(EASY_ENTRIES, most):
        bound = TreeMessages(left, split_tree(tree, scopes, most), ONE)
        if math.isinf(bound.lowest):
            return math.inf, ()
        known = _better(problem, known, _in_full(remaining, bound.choice()))
        bound.send_down()
        needed = [np.flatnonzero(costs <= known[0] * (1 + ROUNDING)) for costs in bound.marginals()]
        if not all(map(len, needed)):
            # the known choice is cheaper than every bound by rounding alone
            return known[0], tuple(known[1].tolist())
        remaining = [options[few] for options, few in zip(remaining, needed, strict=True)]
        left, before = left.restricted(needed), tree.work
        tree = replace(tree, sizes=(*left.sizes, 1))
        if tree.work > EASY_ENTRIES:
            tree = min(tree, tree_of(left), key=lambda each: each.work)
        if tree.work > SHARE_LEFT * before:
            most *= MORE
    exact = TreeMessages(left, tree, ONE)
    if math.isinf(exact.lowest):
        return math.inf, ()
    return exact.lowest, tuple(_in_full(remaining, exact.choice()).tolist())


def _in_full(remaining: list[Ints], choice: tuple[int, ...]) -> Ints:
    return np.array([options[number] for options, number in zip(remaining, choice, strict=True)], np.int64)


def _better(problem: CostProblem, known: tuple[float, Ints] | None, choice: Ints) -> tuple[float, Ints]:
    """The cheaper of a known choice and another, which is improved one variable at a time."""
    cost = float(problem.cost(choice[None])[0, 0])
    by_variable: list[list[int]] = [[] for _ in problem.sizes]
    for number, table in enumerate(problem.tables):
        for variable in table.variables:
            by_variable[variable].append(number)
    while True:
        before = cost
        for variable, numbers in enumerate(by_variable):
            total: Floats = np.zeros(problem.sizes[variable])
            for number in numbers:
                table = problem.tables[number]
                total = (
                    total + table.costs[0][tuple(slice(None) if v == variable else choice[v] for v in table.variables)]
                )
            choice[variable] = int(total.argmin())
        cost = float(problem.cost(choice[None])[0, 0])
        if not cost < before:
            break
    return (cost, choice) if known is None or cost < known[0] else known
