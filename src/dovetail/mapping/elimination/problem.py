"""Cost problems: variables with options, and tables that say what options cost together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.errors import InputError
from dovetail.mapping.elimination.elimination_kernels import weighed


@dataclass(frozen=True, slots=True)
class CostTable:
    """Joint costs of the options of some variables."""

    variables: tuple[int, ...]
    #: objectives × the options of each variable; a combination is forbidden if any objective is infinite
    costs: Floats


@dataclass(frozen=True, slots=True)
class CostProblem:
    """Choose one option of each variable; in each objective a choice costs the sum of its table entries."""

    #: options of each variable
    sizes: tuple[int, ...]
    tables: tuple[CostTable, ...]

    @property
    def objectives(self) -> int:
        """The number of objectives."""
        return len(self.tables[0].costs)

    def cost(self, choices: Ints) -> Floats:
        """What choices (n × variables) cost (n × objectives)."""
        total = np.zeros((len(choices), self.objectives))
        for table in self.tables:
            total += table.costs[(slice(None), *(choices[:, v] for v in table.variables))].T
        total[np.isinf(total).any(axis=1)] = np.inf
        return total

    def restricted(self, remaining: Sequence[Ints]) -> CostProblem:
        """The same problem with only some options of each variable."""
        tables: list[CostTable] = []
        for table in self.tables:
            if all(len(remaining[v]) == self.sizes[v] for v in table.variables):
                tables.append(table)
                continue
            costs = table.costs
            # taking one axis after another, the one that shrinks most first, is much faster than all at once
            for axis in sorted(
                range(len(table.variables)), key=lambda a: len(remaining[table.variables[a]]) / costs.shape[a + 1]
            ):
                costs = np.take(costs, remaining[table.variables[axis]], axis=axis + 1)
            tables.append(CostTable(table.variables, costs))
        return CostProblem(tuple(len(options) for options in remaining), tuple(tables))

    def weighted(self, weights: Floats) -> list[Floats]:
        """The tables with their weighted sums; what is forbidden stays so whatever its weight."""
        weighted: list[Floats] = []
        for table in self.tables:
            flat = np.ascontiguousarray(table.costs, dtype=np.float64).reshape(len(weights), -1)
            weighted.append(weighed(flat, weights).reshape(table.costs.shape[1:]))
        return weighted


def check(problem: CostProblem) -> None:
    """Raises an error if this is not a valid cost problem."""
    where = "cost problem"
    if not problem.tables or not problem.objectives:
        raise InputError(where, "has no costs", "it should have a table with an objective")
    if min(problem.sizes, default=1) < 1:
        raise InputError(where, "has a variable without options", "each should have one or more")
    for number, table in enumerate(problem.tables):
        place = f"{where}: table {number}"
        in_range = all(0 <= v < len(problem.sizes) for v in table.variables)
        if not in_range or len(set(table.variables)) < len(table.variables):
            raise InputError(place, f"has the variables {table.variables}", "they should exist and differ")
        shape = (problem.objectives, *(problem.sizes[v] for v in table.variables))
        if table.costs.shape != shape:
            raise InputError(place, f"has the shape {table.costs.shape}", f"it should be {shape}")
        # the minimum is NaN if any cost is
        if not table.costs.min() >= 0:
            raise InputError(place, "has a cost that is negative or not a number", "costs should be 0 or more")


def check_weights(problem: CostProblem, weights: Sequence[float] | Floats) -> Floats:
    """The weights as an array; raises an error unless there is one number of 0 or more per objective."""
    checked = np.asarray(weights, dtype=np.float64)
    if checked.shape != (problem.objectives,) or not np.all(np.isfinite(checked) & (checked >= 0)):
        expected = f"they should be {problem.objectives} finite numbers of 0 or more"
        raise InputError("weights", f"are {checked.tolist()}", expected)
    return checked
