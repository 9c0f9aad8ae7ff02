"""All undominated costs of a problem with several objectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from dovetail.arrays import ROUNDING, Floats, Ints
from dovetail.errors import InputError, quoted
from dovetail.frozen import frozen
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

#: Options per variable of the small problems solved first to find good choices, and their epsilon.
FEW_OPTIONS, MORE_OPTIONS = 5, 12
SMALL_EPSILON = 0.02
#: Weights go in steps of a half at first, and of a sixth once the problem is smaller.
FIRST_LATTICE, LATTICE = 2, 6
#: Another reduction is not worth it if more than this share of the options survived the last one.
STILL_NEEDED = 0.7
#: Epsilons to prove on the way, in case the work limit stops us before the requested one.
COARSER = (0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01)


@frozen
class CostFront:
    """Mutually undominated costs in lexicographic order, and a choice for each."""

    #: points × objectives
    points: Floats
    #: points × variables
    choices: Ints
    #: each choice within the limits costs at least 1/(1 + epsilon) of some point in all objectives
    epsilon: float
    labels_made: int


def frontier(
    problem: CostProblem,
    epsilon: float = 0.0,
    most: Sequence[float] | Floats | None = None,
    work: float | None = None,
) -> CostFront:
    """The Pareto front of costs up to `most`; with an epsilon, points within 1 + epsilon of it.

    Points may then exceed `most` by that factor. Costs that differ by less than 1e-12 relative count as equal. If
    `work` (a limit on labels examined) does not suffice, the answer carries the larger epsilon that is proved.
    """
    check(problem)
    search = _FrontSearch(problem.plain, epsilon, _limits(problem, epsilon, most), work)
    proved = search.run()
    inside = (search.incumbents.points <= search.incumbents.most * ((1 + proved) * (1 + ROUNDING))).all(axis=1)
    choices = search.incumbents.choices[inside][:, : len(problem.sizes)]
    return CostFront(search.incumbents.points[inside], choices, proved, search.labels_made)


def _limits(problem: CostProblem, epsilon: float, most: Sequence[float] | Floats | None) -> Floats:
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise InputError("epsilon", f"is {quoted(epsilon)}", "it should be a number of 0 or more")
    limits = np.full(problem.objectives, np.inf) if most is None else np.asarray(most, dtype=np.float64)
    if limits.shape != (problem.objectives,) or not np.all(limits >= 0):
        raise InputError("most", f"is {quoted(most)}", f"it should be {problem.objectives} numbers of 0 or more")
    return limits


class _FrontSearch:
    """One search for a Pareto front: choices found so far, and the options that remain."""

    def __init__(self, problem: CostProblem, epsilon: float, most: Floats, work: float | None) -> None:
        self.problem, self.epsilon = problem, epsilon
        self.work = math.inf if work is None else work
        self.incumbents = Incumbents(problem, most)
        self.remaining = all_options(problem)
        self.labels_made = 0

    def run(self) -> float:
        """Finds the front; returns the epsilon that is proved."""
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
        """Adds the best choices by all objectives; returns the scale of costs, or None if all is forbidden."""
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
        """The range of the points of interest, by objective."""
        points = self.incumbents.points
        inside = points[(points <= self.incumbents.most).all(axis=1)]
        relevant = inside if len(inside) > 1 else points
        return relevant.max(axis=0) - relevant.min(axis=0)

    def _take(self, bounds: DirectionBounds) -> None:
        """Adds the best choice of every direction."""
        if math.isfinite(bounds.messages[0].lowest):
            self.incumbents.add(
                in_full_problem(self.remaining, np.array([passes.choice() for passes in bounds.messages]))
            )

    def _reduce(self, bounds: DirectionBounds) -> bool:
        """Drops options that no open choice needs; returns whether all variables still have some."""
        needed = needed_options(bounds, self.incumbents.corners(self.epsilon))
        self.remaining = [options[indices] for options, indices in zip(self.remaining, needed, strict=True)]
        return all(map(len, self.remaining))

    def _try(self, bounds: DirectionBounds, number: int) -> None:
        """Adds the front of a problem with few options."""
        if number >= max(map(len, self.remaining)):
            return
        options = promising_options(bounds, self.incumbents, self.remaining, self.epsilon, number)
        if not all(map(len, options)):
            return
        small = self.problem.restricted(options)
        bounds = bounds_of(small, directions(self._ranges(), LATTICE))
        labels = LabelElimination(small, bounds, self.incumbents, max(self.epsilon, SMALL_EPSILON), self.work)
        # if it is too much work, the search goes on without it
        with suppress(TooMuchWork):
            self.incumbents.add(in_full_problem(options, labels.choices()))
        self.labels_made += labels.made

    def _prove(self, problem: CostProblem, bounds: DirectionBounds) -> float:
        """Finds what is still open; returns the epsilon that is proved."""
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
