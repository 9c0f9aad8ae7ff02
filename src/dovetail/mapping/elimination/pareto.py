"""All undominated costs of a problem with several objectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from dovetail.arrays import ROUNDING, Floats, Ints
from dovetail.errors import InputError, quoted
from dovetail.mapping.elimination.labels import Labels, TooMuchWork
from dovetail.mapping.elimination.messages import Messages, tree_of
from dovetail.mapping.elimination.open_costs import (
    Bounds,
    Incumbents,
    bounds_of,
    chosen,
    directions,
    is_closed,
    needed_options,
    options_of,
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
class Frontier:
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
) -> Frontier:
    """All undominated costs that are at most `most`; with an epsilon, points within 1 + epsilon of each of them.

    Points may then be beyond `most` by that factor. Costs that differ by less than 1e-12 of them count as equal. Where
    `work` (labels that may be looked at) does not suffice, the epsilon of the answer is the larger one that is proved.
    """
    check(problem)
    found = _Search(problem, epsilon, _limits(problem, epsilon, most), work)
    proved = found.run()
    inside = (found.incumbents.points <= found.incumbents.most * ((1 + proved) * (1 + ROUNDING))).all(axis=1)
    return Frontier(found.incumbents.points[inside], found.incumbents.choices[inside], proved, found.labels_made)


def _limits(problem: CostProblem, epsilon: float, most: Sequence[float] | Floats | None) -> Floats:
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise InputError("epsilon", f"is {quoted(epsilon)}", "it should be a number of 0 or more")
    limits = np.full(problem.objectives, np.inf) if most is None else np.asarray(most, dtype=np.float64)
    if limits.shape != (problem.objectives,) or not np.all(limits >= 0):
        raise InputError("most", f"is {quoted(most)}", f"it should be {problem.objectives} numbers of 0 or more")
    return limits


class _Search:
    """One search of a front: choices found so far, and what is left of the problem."""

    def __init__(self, problem: CostProblem, epsilon: float, most: Floats, work: float | None) -> None:
        self.problem, self.epsilon = problem, epsilon
        self.work = math.inf if work is None else work
        self.incumbents = Incumbents(problem, most)
        self.kept = options_of(problem)
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
            smaller, before = self.problem.restricted(self.kept), sum(map(len, self.kept))
            bounds = bounds_of(smaller, directions(self._ranges(), LATTICE))
            self._take(bounds)
            self._try(bounds, MORE_OPTIONS)
            if not self._reduce(bounds):
                return self.epsilon
            after = sum(map(len, self.kept))
            if after == before:
                return self._prove(smaller, bounds)
            if after > STILL_NEEDED * before:
                smaller = self.problem.restricted(self.kept)
                return self._prove(smaller, bounds_of(smaller, directions(self._ranges(), LATTICE)))

    def _first_choices(self) -> Floats | None:
        """Takes up the best choices by all objectives; what a choice costs, nothing where there is none."""
        tree = tree_of(self.problem)
        axes = [Messages(self.problem, tree, axis).choice() for axis in np.eye(self.problem.objectives)]
        if not axes[0]:
            return None
        costs = self.problem.cost(np.array(axes))
        least = costs.min(axis=0)
        scale: Floats = np.where(least > 0, least, np.where(costs.max(axis=0) > 0, costs.max(axis=0), 1.0))
        for _ in range(2):
            choice = np.array([Messages(self.problem, tree, 1 / scale).choice()])
            self.incumbents.add(choice)
            scale = np.maximum(self.problem.cost(choice)[0], scale * 1e-3)
        return scale

    def _ranges(self) -> Floats:
        """How far apart the points of interest are, by objective."""
        points = self.incumbents.points
        inside = points[(points <= self.incumbents.most).all(axis=1)]
        some = inside if len(inside) > 1 else points
        return some.max(axis=0) - some.min(axis=0)

    def _take(self, bounds: Bounds) -> None:
        """Takes up the best choice of every direction."""
        if math.isfinite(bounds.messages[0].least):
            self.incumbents.add(chosen(self.kept, np.array([passes.choice() for passes in bounds.messages])))

    def _reduce(self, bounds: Bounds) -> bool:
        """Gives up options that no open choice needs; whether any are left."""
        needed = needed_options(bounds, self.incumbents.corners(self.epsilon))
        self.kept = [options[some] for options, some in zip(self.kept, needed, strict=True)]
        return all(map(len, self.kept))

    def _try(self, bounds: Bounds, number: int) -> None:
        """Takes up the front of a problem with few options."""
        if number >= max(map(len, self.kept)):
            return
        options = promising_options(bounds, self.incumbents, self.kept, self.epsilon, number)
        if not all(map(len, options)):
            return
        small = self.problem.restricted(options)
        bounds = bounds_of(small, directions(self._ranges(), LATTICE))
        labels = Labels(small, bounds, self.incumbents, max(self.epsilon, SMALL_EPSILON), self.work)
        # where it is too much work there is another way to go on
        with suppress(TooMuchWork):
            self.incumbents.add(chosen(options, labels.choices()))
        self.labels_made += labels.made

    def _prove(self, problem: CostProblem, bounds: Bounds) -> float:
        """Finds what is still open; how closely that is proved."""
        proved = math.inf
        coarser = [] if math.isinf(self.work) else [e for e in COARSER if e > self.epsilon]
        for epsilon in (*coarser, self.epsilon):
            if is_closed(bounds, self.incumbents.corners(epsilon)):
                proved = epsilon
                continue
            labels = Labels(problem, bounds, self.incumbents, epsilon, self.work)
            try:
                self.incumbents.add(chosen(self.kept, labels.choices()))
                proved = epsilon
            except TooMuchWork:
                break
            finally:
                self.labels_made += labels.made
        return proved
