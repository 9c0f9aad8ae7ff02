"""All undominated costs of a problem with several objectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from dovetail.arrays import ROUNDING, Floats, Ints
from dovetail.errors import InputError, quoted
from dovetail.mapping.elimination.labels import LabelElimination, TooMuchWork
from dovetail.mapping.elimination.messages import Messages, tree_of
from dovetail.mapping.elimination.open_costs import (
    DirectionBounds,
    Incumbents,
    all_options,
    bounds_of,
    directions,
    in_full_problem,
    is_closed,
    needed_options,
    promising_options,
)
from dovetail.mapping.elimination.problem import CostProblem, check

#: Options of each variable of the small problems that are solved first for good choices, and how closely.
FEW_OPTIONS, MORE_OPTIONS = 5, 12
SMALL_EPSILON = 0.02
#: Weights in steps of a half at first, and of a sixth once the problem is smaller.
FIRST_LATTICE, LATTICE = 2, 6
#: Where so much of a problem is still needed, looking again is not worth it.
STILL_NEEDED = 0.7
#: How closely a front is proved where the work for the wanted one is not allowed.
COARSER = (0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01)


@dataclass(frozen=True, slots=True)
class CostFront:
    """Costs of which none dominates another, in lexicographic order, and a choice for each."""

    #: points × objectives
    points: Floats
    #: points × variables
    choices: Ints
    #: every choice (within the limits) costs, in every objective, at least 1/(1 + epsilon) of what some point costs
    epsilon: float
    labels_made: int


def frontier(
    problem: CostProblem,
    epsilon: float = 0.0,
    most: Sequence[float] | Floats | None = None,
    work: float | None = None,
) -> CostFront:
    """All undominated costs that are at most `most`; with an epsilon, points within 1 + epsilon of each of them.

    Points may then be beyond `most` by that factor. Costs that differ by less than 1e-12 of them count as equal. Where
    `work` (labels that may be looked at) does not suffice, the epsilon of the answer is the larger one that is proved.
    """
    check(problem)
    search = _FrontSearch(problem, epsilon, _limits(problem, epsilon, most), work)
    proved = search.run()
    inside = (search.incumbents.points <= search.incumbents.most * ((1 + proved) * (1 + ROUNDING))).all(axis=1)
    return CostFront(search.incumbents.points[inside], search.incumbents.choices[inside], proved, search.labels_made)


def _limits(problem: CostProblem, epsilon: float, most: Sequence[float] | Floats | None) -> Floats:
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise InputError("epsilon", f"is {quoted(epsilon)}", "it should be a number of 0 or more")
    limits = np.full(problem.objectives, np.inf) if most is None else np.asarray(most, dtype=np.float64)
    if limits.shape != (problem.objectives,) or not np.all(limits >= 0):
        raise InputError("most", f"is {quoted(most)}", f"it should be {problem.objectives} numbers of 0 or more")
    return limits


class _FrontSearch:
    """One search of a front: choices found so far, and what is left of the problem."""

    def __init__(self, problem: CostProblem, epsilon: float, most: Floats, work: float | None) -> None:
        self.problem, self.epsilon = problem, epsilon
        self.work = math.inf if work is None else work
        self.incumbents = Incumbents(problem, most)
        self.remaining = all_options(problem)
        self.labels_made = 0

    def run(self) -> float:
        """Finds the front; how closely it is proved."""
        scale = self._first_choices()
        if scale is None:
            return self.epsilon
        bounds = bounds_of(self.problem, directions(scale, FIRST_LATTICE))
        self._take(bounds)
        self._try(bounds, FEW_OPTIONS)
        if not self._reduce(bounds):
            return self.epsilon
        while True:
            smaller, before = self.problem.restricted(self.remaining), sum(map(len, self.remaining))
            bounds = bounds_of(smaller, directions(self._ranges(), LATTICE))
            self._take(bounds)
            self._try(bounds, MORE_OPTIONS)
            if not self._reduce(bounds):
                return self.epsilon
            after = sum(map(len, self.remaining))
            if after == before:
                return self._prove(smaller, bounds)
            if after > STILL_NEEDED * before:
                smaller = self.problem.restricted(self.remaining)
                return self._prove(smaller, bounds_of(smaller, directions(self._ranges(), LATTICE)))

    def _first_choices(self) -> Floats | None:
        """Takes up the best choices by all objectives; what a choice costs, nothing where there is none."""
        tree = tree_of(self.problem)
        axes = [Messages(self.problem, tree, axis).choice() for axis in np.eye(self.problem.objectives)]
        if not axes[0]:
            return None
        costs = self.problem.cost(np.array(axes))
        lowest = costs.min(axis=0)
        scale: Floats = np.where(lowest > 0, lowest, np.where(costs.max(axis=0) > 0, costs.max(axis=0), 1.0))
        for _ in range(2):
            choice = np.array([Messages(self.problem, tree, 1 / scale).choice()])
            self.incumbents.add(choice)
            scale = np.maximum(self.problem.cost(choice)[0], scale * 1e-3)
        return scale

    def _ranges(self) -> Floats:
        """How far apart the points of interest are, by objective."""
        points = self.incumbents.points
        inside = points[(points <= self.incumbents.most).all(axis=1)]
        relevant = inside if len(inside) > 1 else points
        return relevant.max(axis=0) - relevant.min(axis=0)

    def _take(self, bounds: DirectionBounds) -> None:
        """Takes up the best choice of every direction."""
        if math.isfinite(bounds.messages[0].lowest):
            self.incumbents.add(
                in_full_problem(self.remaining, np.array([passes.choice() for passes in bounds.messages]))
            )

    def _reduce(self, bounds: DirectionBounds) -> bool:
        """Gives up options that no open choice needs; whether any are left."""
        needed = needed_options(bounds, self.incumbents.corners(self.epsilon))
        self.remaining = [options[indices] for options, indices in zip(self.remaining, needed, strict=True)]
        return all(map(len, self.remaining))

    def _try(self, bounds: DirectionBounds, number: int) -> None:
        """Takes up the front of a problem with few options."""
        if number >= max(map(len, self.remaining)):
            return
        options = promising_options(bounds, self.incumbents, self.remaining, self.epsilon, number)
        if not all(map(len, options)):
            return
        small = self.problem.restricted(options)
        bounds = bounds_of(small, directions(self._ranges(), LATTICE))
        labels = LabelElimination(small, bounds, self.incumbents, max(self.epsilon, SMALL_EPSILON), self.work)
        # where it is too much work there is another way to go on
        with suppress(TooMuchWork):
            self.incumbents.add(in_full_problem(options, labels.choices()))
        self.labels_made += labels.made

    def _prove(self, problem: CostProblem, bounds: DirectionBounds) -> float:
        """Finds what is still open; how closely that is proved."""
        proved = math.inf
        coarser = [] if math.isinf(self.work) else [e for e in COARSER if e > self.epsilon]
        for epsilon in (*coarser, self.epsilon):
            if is_closed(bounds, self.incumbents.corners(epsilon)):
                proved = epsilon
                continue
            labels = LabelElimination(problem, bounds, self.incumbents, epsilon, self.work)
            try:
                self.incumbents.add(in_full_problem(self.remaining, labels.choices()))
                proved = epsilon
            except TooMuchWork:
                break
            finally:
                self.labels_made += labels.made
        return proved
