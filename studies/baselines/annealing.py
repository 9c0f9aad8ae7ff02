"""Simulated annealing of layouts, as published searches of mappings use it, on the same costs as the exact search.

A state has one option of each variable; a move takes another option of a random variable, or of two that share a table.
A move only looks up entries of the changed variables' tables: more than ten million moves a second. It proves
nothing. Kirkpatrick, Gelatt and Vecchi, Science 220, 1983.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from baselines.annealing_kernels import Walker, add_up, anneal, changes, jump
from baselines.flat_costs import Effort, FlatCosts, Tried, flat_costs
from baselines.random_kernels import random_state
from dovetail.arrays import Floats
from dovetail.mapping.elimination.problem import CostProblem

#: Steps between two checks of the clock, and between two exact sums.
_ROUND = 4096
#: Moves sampled to set the initial temperature.
_SAMPLE = 200


@dataclass(frozen=True, slots=True)
class Cooling:
    """An annealing schedule; temperatures are in medians of a move's cost change."""

    start: float = 1.0
    end: float = 1e-4
    #: share of moves that change two variables
    pairs: float = 0.2
    #: runs from random choices, equally long
    restarts: int = 4


def simulated_annealing(
    problem: CostProblem,
    weights: Sequence[float] | Floats,
    *,
    evaluations: int | None = None,
    cpu_s: float | None = None,
    seed: int = 0,
    stop_at: float = 0.0,
    cooling: Cooling | None = None,
) -> Tried:
    """The lowest weighted sum of objectives found before evaluations or CPU seconds run out, or a cost is reached.

    With only an evaluation limit the result depends only on the seed.
    """
    effort = Effort(evaluations, cpu_s, stop_at)
    flat, checked = flat_costs(problem, weights)
    search = _Annealing(flat, effort, seed, cooling or Cooling())
    search.run()
    return effort.result(problem, checked, search.walker.best_choice)


class _Annealing:
    """One search."""

    def __init__(self, flat: FlatCosts, effort: Effort, seed: int, cooling: Cooling) -> None:
        n = len(flat.sizes)
        choice, entries = np.zeros(n, np.int64), np.zeros(len(flat.firsts), np.int64)
        self.walker = Walker(choice, entries, np.full(3, np.inf), choice.copy(), random_state(seed))
        self._flat, self._effort, self._cooling = flat, effort, cooling

    def run(self) -> None:
        """Runs one after another until the budget is spent."""
        flat, walker, effort = self._flat, self.walker, self._effort
        if effort.over:
            return
        effort.begin()
        jump(flat, walker)
        count = int(min(_SAMPLE, (effort.left - 1) / 2)) if len(flat.free) else 0
        sampled = changes(flat, walker, count)
        self._count(1 + 2 * count)
        unit = float(np.median(sampled)) if len(sampled) else flat.penalty
        runs = self._cooling.restarts
        while len(flat.free) and not effort.over:
            self._anneal(unit, max(1, int(effort.left / max(runs, 1))))
            runs -= 1

    def _anneal(self, unit: float, length: int) -> None:
        """One run from hot to cold; its length is estimated from the speed so far."""
        flat, walker, cooling = self._flat, self.walker, self._cooling
        factor = (cooling.end / cooling.start) ** (1 / length)
        jump(flat, walker)
        walker.figures[2] = cooling.start * unit
        more = 1
        while length > 0 and not self._effort.over:
            steps = int(min(_ROUND, length, max(self._effort.left - more, 0)))
            anneal(flat, walker, steps, factor, cooling.pairs)
            add_up(flat, walker)
            self._count(more + steps)
            length, more = length - max(steps, 1), 0

    def _count(self, evaluations: int) -> None:
        best = float(self.walker.figures[1])
        self._effort.add(evaluations, best if best < self._flat.penalty else np.inf)
