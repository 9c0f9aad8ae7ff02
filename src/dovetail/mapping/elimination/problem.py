"""Cost problems: variables with options, and tables that say what options cost together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.mapping.elimination.elimination_kernels import weighed


@frozen
class CostTable:
    """Joint costs of the options of some variables."""

    variables: tuple[int, ...]
    #: objectives × the options (or classes) of each variable; a combination is forbidden if any objective is infinite
    costs: Floats
    #: by variable, the class of each option if options of a class cost the same here; all None if empty
    classes: tuple[tuple[int, ...] | None, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether the costs are by option."""
        return all(classes is None for classes in self.classes)

    def entries(self, choices: Ints) -> tuple[Ints, ...]:
        """Where the costs of choices (n × variables) are, along each variable."""
        columns = [choices[:, variable] for variable in self.variables]
        if self.is_plain:
            return tuple(columns)
        pairs = zip(columns, self.classes, strict=True)
        return tuple(column if classes is None else np.array(classes)[column] for column, classes in pairs)


@dataclass(frozen=True)
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
            total += table.costs[(slice(None), *table.entries(choices))].T
        total[np.isinf(total).any(axis=1)] = np.inf
        return total

    @cached_property
    def plain(self) -> CostProblem:
        """The same problem with costs by option: classes become further variables, tied to those they belong to.

        A table over classes has far fewer entries than one over options, and eliminating the variable a class
        belongs to only leaves the class.
        """
        if all(table.is_plain for table in self.tables):
            return self
        sizes, tables = list(self.sizes), list[CostTable]()
        numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        for table in self.tables:
            variables = list(table.variables)
            for axis, classes in enumerate(table.classes):
                if classes is None:
                    continue
                key = variables[axis], classes
                if key not in numbers:
                    numbers[key] = len(sizes)
                    sizes.append(1 + max(classes))
                    tables.append(CostTable((key[0], numbers[key]), _ties(classes, self.objectives)))
                variables[axis] = numbers[key]
            tables.append(CostTable(tuple(variables), table.costs))
        return CostProblem(tuple(sizes), tuple(tables))

    def restricted(self, remaining: Sequence[Ints]) -> CostProblem:
        """The same problem with only some options of each variable; its tables should be plain."""
        tables: list[CostTable] = []
        for table in self.tables:
            assert table.is_plain, "classes are variables of the plain problem"
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

    def weighted(self, weights: Floats) -> CostProblem:
        """The problem of one objective, their weighted sum; what is forbidden stays so whatever its weight."""
        tables: list[CostTable] = []
        for table in self.tables:
            flat = np.ascontiguousarray(table.costs, dtype=np.float64).reshape(len(weights), -1)
            costs = weighed(flat, weights).reshape((1, *table.costs.shape[1:]))
            tables.append(CostTable(table.variables, costs, table.classes))
        return CostProblem(self.sizes, tuple(tables))


def _ties(classes: tuple[int, ...], objectives: int) -> Floats:
    """Costs that forbid every class but an option's own."""
    costs = np.full((objectives, len(classes), 1 + max(classes)), np.inf)
    costs[:, np.arange(len(classes)), list(classes)] = 0.0
    return costs


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
        classes = table.classes or (None,) * len(table.variables)
        if any(
            each is not None and len(each) != problem.sizes[v] for v, each in zip(table.variables, classes, strict=True)
        ):
            raise InputError(place, "has classes of other options", "each option of a variable should have one")
        lengths = [
            problem.sizes[v] if each is None else 1 + max(each)
            for v, each in zip(table.variables, classes, strict=True)
        ]
        shape = (problem.objectives, *lengths)
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
