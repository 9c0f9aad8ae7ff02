"""A genetic search of layouts, as published searches of mappings use it, on the same costs as the exact search.

An individual has one option of each variable, its genes, in the order of the operators. Libraries are too slow here: an
individual takes some hundred nanoseconds to make and to evaluate, a trial of Optuna's NSGA-II milliseconds, mostly
bookkeeping (`benchmarks/layout_search.py` measures it). Like annealing it proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from baselines.flat_costs import Effort, FlatCosts, Tried, flat_costs
from baselines.genetic_kernels import Breeding, Population, breed, settle
from baselines.random_kernels import random_state
from dovetail.arrays import Floats, Ints
from dovetail.mapping.elimination.problem import CostProblem

#: Evaluations between two checks of the clock.
_ROUND = 4096


@dataclass(frozen=True, slots=True)
class Evolution:
    """How a genetic search proceeds."""

    population: int = 50
    tournament: int = 3
    crossed: float = 0.9
    one_point: float = 0.5
    mutations: float = 1.0
    #: generations without improvement after which the population restarts at random
    patience: int = 50


def genetic_search(
    problem: CostProblem,
    weights: Sequence[float] | Floats,
    *,
    evaluations: int | None = None,
    cpu_s: float | None = None,
    seed: int = 0,
    stop_at: float = 0.0,
    evolution: Evolution | None = None,
) -> Tried:
    """The lowest weighted sum of objectives found before evaluations or CPU seconds run out, or a cost is reached.

    With only an evaluation limit the result depends only on the seed.
    """
    effort = Effort(evaluations, cpu_s, stop_at)
    flat, checked = flat_costs(problem, weights)
    return effort.result(problem, checked, _evolved(flat, effort, seed, evolution or Evolution()))


def _evolved(flat: FlatCosts, effort: Effort, seed: int, how: Evolution) -> Ints:
    """The best choice; a stagnant population restarts."""
    n = max(2, int(min(how.population, effort.left)))
    choices, entries = np.zeros((n, len(flat.sizes)), np.int64), np.zeros((n, len(flat.firsts)), np.int64)
    now, then = (choices, entries, np.zeros(n)), (choices.copy(), entries.copy(), np.zeros(n))
    population = Population(*now, *then, choices[0].copy(), np.full(2, np.inf), random_state(seed))
    breeding = Breeding(how.tournament, how.crossed, how.one_point, how.mutations)
    children = n - 1
    stale = how.patience
    effort.begin()
    while not effort.over:
        if stale >= how.patience:
            settle(flat, population)
            spent, stale = n, 0
        else:
            generations = max(1, min(_ROUND, int(effort.left)) // children)
            since = breed(flat, population, breeding, generations)
            spent, stale = generations * children, since if since < generations else stale + generations
        lowest = float(population.lowest[0])
        effort.add(spent, lowest if lowest < flat.penalty else np.inf)
        if not len(flat.free):
            break
    return population.best_choice
