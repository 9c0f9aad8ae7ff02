"""What the incumbents leave open: costs none of them covers, and bounds that show an option is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from dovetail.arrays import ROUNDING, Floats, Ints
from dovetail.frozen import frozen
from dovetail.mapping.elimination.label_kernels import margin_below, open_corners, undominated, worth_keeping
from dovetail.mapping.elimination.messages import Messages, tree_of
from dovetail.mapping.elimination.problem import CostProblem
from dovetail.mapping.elimination.tree import Tree

#: How many times more labels an entry has per eliminated variable, roughly; only the order depends on it.
LABEL_GROWTH = 2.0


@dataclass(slots=True)
class Incumbents:
    """Choices found so far, and what they cost."""

    problem: CostProblem
    #: costs above this are of no interest
    most: Floats
    points: Floats = field(init=False)
    choices: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.points = np.zeros((0, self.problem.objectives))
        self.choices = np.zeros((0, len(self.problem.sizes)), np.int64)

    def add(self, choices: Ints) -> None:
        """Adds the undominated choices; ties go to the lexicographically first."""
        candidates = np.unique(np.concatenate([self.choices, choices]), axis=0)
        points = self.problem.cost(candidates)
        order = np.lexsort((*candidates.T[::-1], *points.T[::-1]))
        candidates, points = candidates[order], points[order]
        best = undominated(points) & np.isfinite(points).all(axis=1)
        self.points, self.choices = points[best], candidates[best]

    def corners(self, epsilon: float, spent: float = 0.0) -> Floats:
        """Corners of the costs no incumbent covers within 1 + epsilon, of which a factor 1 + `spent` is used up."""
        allowed = (1 + epsilon) / (1 + spent) * (1 + ROUNDING)
        # a cost equal to the limit is still below it
        upper = self.most * ((1 + spent) * (1 + ROUNDING)) + 1e-200
        corners = open_corners(self.points / allowed, upper)
        # sorted, so that neighbours are tested together
        return corners[np.lexsort(corners.T[::-1])]


@frozen
class DirectionBounds:
    """Lowest weighted costs in several directions."""

    tree: Tree
    #: directions × objectives; the first are the axes
    weights: Floats
    messages: tuple[Messages, ...]

    def outside_costs(self, outside: Floats) -> Floats:
        """The lower bound of each objective by itself, from the directions (the last axis)."""
        axes = self.weights.shape[1]
        return outside[..., :axes] / np.diag(self.weights[:axes])


def bounds_of(problem: CostProblem, weights: Floats) -> DirectionBounds:
    """Messages up and down for every direction."""
    tree = tree_of(problem, LABEL_GROWTH)
    messages = tuple(Messages(problem, tree, direction) for direction in weights)
    for passes in messages:
        passes.send_down()
    return DirectionBounds(tree, weights, messages)


def weighed_corners(corners: Floats, weights: Floats) -> Floats:
    """Corners × directions; an infinite coordinate counts only if its weight is positive."""
    terms = np.where(weights > 0, weights, 1.0) * corners[:, None, :]
    return np.where(weights > 0, terms, 0.0).sum(axis=2)


def needed_options(bounds: DirectionBounds, corners: Floats) -> list[Ints]:
    """The options of each variable that may belong to an open choice.

    All choices with an option cost w·p ≥ b in every direction. Below a corner u such a p exists only if w·u > b in all
    of them, as no weight is negative.
    """
    by_direction = [passes.marginals() for passes in bounds.messages]
    limits = weighed_corners(corners, bounds.weights)
    return [
        np.flatnonzero(worth_keeping(np.ascontiguousarray(np.stack(rows, axis=1)), limits))
        for rows in zip(*by_direction, strict=True)
    ]


def is_closed(bounds: DirectionBounds, corners: Floats) -> bool:
    """Whether no choice can be open."""
    lowest = np.array([[passes.lowest for passes in bounds.messages]])
    return not worth_keeping(lowest, weighed_corners(corners, bounds.weights))[0]


def promising_options(
    bounds: DirectionBounds, incumbents: Incumbents, remaining: Sequence[Ints], epsilon: float, number: int
) -> list[Ints]:
    """Of each variable's remaining options, those the incumbents use and those with the largest margins."""
    by_direction = [passes.marginals() for passes in bounds.messages]
    limits = weighed_corners(incumbents.corners(epsilon), bounds.weights)
    promising: list[Ints] = []
    for variable, rows in enumerate(zip(*by_direction, strict=True)):
        margin = margin_below(np.ascontiguousarray(np.stack(rows, axis=1)), limits)
        used = np.isin(remaining[variable], incumbents.choices[:, variable])
        margin[used] = np.inf
        first = np.argsort(-margin, kind="stable")[: max(number, np.count_nonzero(used))]
        promising.append(remaining[variable][np.sort(first[margin[first] > -np.inf])])
    return promising


def directions(scale: Floats, steps: int) -> Floats:
    """Weights on a lattice with `steps` steps, the axes first, divided by `scale`."""
    objectives = len(scale)
    inner = [shares for shares in product(range(steps), repeat=objectives) if sum(shares) == steps]
    shares = np.concatenate([np.eye(objectives), np.array(inner, np.float64).reshape(-1, objectives) / steps])
    # rounded to powers of two, so that dividing by them is exact
    return shares / np.exp2(np.round(np.log2(np.where(scale > 0, scale, 1.0))))


def all_options(problem: CostProblem) -> list[Ints]:
    """All options of every variable."""
    return [np.arange(size) for size in problem.sizes]


def in_full_problem(options: Sequence[Ints], choices: Ints) -> Ints:
    """Choices of a restricted problem in terms of the full one."""
    return np.stack([values[choices[:, v]] for v, values in enumerate(options)], axis=1)
