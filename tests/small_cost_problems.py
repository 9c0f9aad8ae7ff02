"""Random small cost problems, and all that is asked about them by trying every choice."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from dovetail.mapping.elimination import CostProblem, CostTable

Floats = NDArray[np.float64]

#: Entries of a table: few different ones so that there are many ties, whole ones, or any.
KINDS = ("ties", "whole", "any")


def random_problem(seed: int) -> CostProblem:
    """Up to six variables of up to five options; tables of up to four variables, some entries forbidden."""
    rng = np.random.default_rng(seed)
    sizes = tuple(int(n) for n in rng.integers(1, 6, size=rng.integers(1, 7)))
    objectives = int(rng.integers(1, 4))
    kind, forbidden = KINDS[seed % 3], (0.0, 0.1, 0.3)[seed // 3 % 3]
    tables: list[CostTable] = []
    for _ in range(rng.integers(1, 2 * len(sizes) + 2)):
        arity = min(int(rng.choice([0, 1, 2, 3, 4], p=[0.04, 0.2, 0.45, 0.27, 0.04])), len(sizes))
        variables = tuple(int(v) for v in rng.permutation(len(sizes))[:arity])
        shape = (objectives, *(sizes[v] for v in variables))
        costs = rng.integers(0, 4 if kind == "ties" else 30, shape).astype(float)
        if kind == "any":
            costs = rng.random(shape) * np.array([1e-3, 1e9, 1.0])[:objectives].reshape(-1, *[1] * arity)
        if rng.random() < 0.2:
            costs[rng.integers(objectives)] = 0.0
        costs[:, rng.random(shape[1:]) < forbidden] = np.inf
        # one objective is enough to forbid
        costs[rng.integers(objectives), rng.random(shape[1:]) < forbidden / 3] = np.inf
        tables.append(CostTable(variables, costs))
    if seed % 7 == 0:
        tables = [
            CostTable(t.variables, t.costs * (np.arange(objectives) != 0).reshape(-1, *[1] * (t.costs.ndim - 1)))
            if np.isfinite(t.costs).all()
            else t
            for t in tables
        ]
    return CostProblem(sizes, tuple(tables))


def every_choice(problem: CostProblem) -> tuple[NDArray[np.int64], Floats]:
    """All allowed choices and their costs, entry by entry."""
    choices, costs = [], []
    for choice in product(*map(range, problem.sizes)):
        total = np.zeros(problem.objectives)
        for table in problem.tables:
            total = total + table.costs[(slice(None), *(choice[v] for v in table.variables))]
        if np.isfinite(total).all():
            choices.append(choice)
            costs.append(total)
    n = len(choices)
    return np.array(choices, np.int64).reshape(n, len(problem.sizes)), np.array(costs).reshape(n, problem.objectives)


def undominated_rows(costs: Floats) -> Floats:
    """The different rows that no other row is at most as large as, in lexicographic order."""
    rows = np.unique(costs, axis=0)
    best = [not any(np.all(other <= row) and np.any(other < row) for other in rows) for row in rows]
    return rows[np.array(best, dtype=bool)]
