"""A cost problem laid out for searches that try one choice after another, and the result of such a search.

The tables of a weighted sum are concatenated in one array, those of fewer variables added into larger ones: a choice
then costs the sum of a few entries, and changing one variable only changes the entries of its tables.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.errors import InputError
from dovetail.mapping.elimination.problem import CostProblem, CostTable, check, check_weights


class FlatCosts(NamedTuple):
    """One weighted sum of the objectives of a cost problem."""

    #: options by variable
    sizes: Ints
    #: variables with more than one option
    free: Ints
    #: entries of all tables; a forbidden one has the penalty
    values: Floats
    #: by table: its first entry
    firsts: Ints
    #: tables + 1: where the variables of each begin in the two arrays below
    scope_starts: Ints
    scope_variables: Ints
    scope_strides: Ints
    #: variables + 1: where the tables of each begin in the two arrays below
    member_starts: Ints
    member_tables: Ints
    member_strides: Ints
    #: variables + 1: where the variables begin that share a table with each and have more than one option
    near_starts: Ints
    near: Ints
    #: more than any allowed choice costs, so that forbidden choices rank by how many entries are forbidden
    penalty: float


class TracePoint(NamedTuple):
    """The lowest cost found after a number of evaluations."""

    evaluations: int
    cpu_s: float
    cost: float


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of a heuristic search."""

    #: infinite if no allowed choice was found
    cost: float
    choice: tuple[int, ...]
    #: choices whose cost was evaluated
    evaluations: int
    #: whenever the lowest cost fell, seen between rounds of some thousand evaluations
    trace: tuple[TracePoint, ...]


class Effort:
    """The budget of a search, what it has spent, and its progress."""

    def __init__(self, evaluations: int | None, cpu_s: float | None, stop_at: float) -> None:
        if (evaluations or 0) < 0 or (cpu_s or 0.0) < 0 or (evaluations is None and cpu_s is None):
            what = f"is {evaluations} evaluations and {cpu_s} s"
            raise InputError("budget of a search", what, "one of them should be given, and be 0 or more")
        self._most, self._most_s, self._stop_at = evaluations, cpu_s, stop_at
        self._began = self._last = time.process_time()
        self._speed = 0.0
        self.evaluations = 0
        self.best = np.inf
        self._trace: list[TracePoint] = []

    @property
    def spent_s(self) -> float:
        """CPU seconds since the search began."""
        return time.process_time() - self._began

    @property
    def over(self) -> bool:
        """Whether the search must stop."""
        return self.left < 1 or self.best <= self._stop_at

    @property
    def left(self) -> float:
        """Evaluations left; with a time limit, as many as it allows at the speed of the last round."""
        left = np.inf if self._most is None else float(self._most - self.evaluations)
        if self._most_s is not None and self.evaluations:
            left_s = self._most_s - self.spent_s
            left = min(left, max(left_s * self._speed, 1.0) if left_s > 0 else 0.0)
        return left

    def begin(self) -> None:
        """Starts the first round: preparation does not count towards the speed."""
        self._last = time.process_time()

    def add(self, evaluations: int, best: float) -> None:
        """Records a round: its evaluations, and the lowest cost after it."""
        now = time.process_time()
        self._speed, self._last = evaluations / max(now - self._last, 1e-9), now
        self.evaluations += evaluations
        if best < self.best:
            self.best = best
            self._trace.append(TracePoint(self.evaluations, now - self._began, best))

    def result(self, problem: CostProblem, weights: Floats, choice: Ints) -> Tried:
        """The best choice, with its cost summed again: running sums have rounding errors."""
        if np.isinf(self.best):
            return Tried(np.inf, (), self.evaluations, ())
        cost = float(problem.cost(choice[None, :])[0] @ weights)
        return Tried(cost, tuple(choice.tolist()), self.evaluations, tuple(self._trace))


def _by_option(table: CostTable) -> Floats:
    """The costs of a table of one objective by option, where it has them by class."""
    costs = table.costs[0]
    for axis, classes in enumerate(table.classes):
        if classes is not None:
            costs = np.take(costs, np.array(classes), axis=axis)
    return np.array(costs)


def flat_costs(problem: CostProblem, weights: Sequence[float] | Floats) -> tuple[FlatCosts, Floats]:
    """A weighted sum of a problem in this form, and the weights; raises an error for an invalid problem."""
    check(problem)
    checked = check_weights(problem, weights)
    weighted = problem.weighted(checked).tables
    tables = _folded([table.variables for table in weighted], [_by_option(table) for table in weighted])
    scopes = list(tables)
    values = np.concatenate([costs.ravel() for costs in tables.values()])
    lengths = np.array([costs.size for costs in tables.values()], np.int64)
    firsts = np.cumsum(lengths) - lengths
    forbidden = np.isinf(values)
    values[forbidden] = 0.0
    penalty = 2.0 * float(np.maximum.reduceat(values, firsts).sum()) or 1.0
    values[forbidden] = penalty

    sizes = problem.sizes
    strides = [[math.prod(sizes[v] for v in scope[place + 1 :]) for place in range(len(scope))] for scope in scopes]
    members: list[list[tuple[int, int]]] = [[] for _ in sizes]
    near: list[set[int]] = [set() for _ in sizes]
    for number, scope in enumerate(scopes):
        for variable, stride in zip(scope, strides[number], strict=True):
            members[variable].append((number, stride))
            near[variable].update(v for v in scope if v != variable and sizes[v] > 1)
    return FlatCosts(
        np.array(sizes, np.int64),
        np.flatnonzero(np.array(sizes) > 1).astype(np.int64),
        values,
        firsts,
        _starts(scopes),
        _joined(scopes),
        _joined(strides),
        _starts(members),
        _joined([[number for number, _ in tables_of] for tables_of in members]),
        _joined([[stride for _, stride in tables_of] for tables_of in members]),
        _starts(near),
        _joined([sorted(variables) for variables in near]),
        penalty,
    ), checked


def _folded(scopes: Sequence[tuple[int, ...]], costs: Sequence[Floats]) -> dict[tuple[int, ...], Floats]:
    """Tables by their variables in ascending order, each added into the smallest that has all of its variables."""
    gathered: dict[tuple[int, ...], Floats] = {}
    for variables, table in zip(scopes, costs, strict=True):
        scope = tuple(sorted(variables))
        turned = table.transpose([variables.index(v) for v in scope])
        gathered[scope] = gathered[scope] + turned if scope in gathered else turned
    folded: dict[tuple[int, ...], Floats] = {}
    members = {scope: frozenset(scope) for scope in gathered}
    for scope in sorted(gathered, key=len):
        table, inside = gathered.pop(scope), members.pop(scope)
        larger = [other for other, theirs in members.items() if inside < theirs]
        if not larger:
            folded[scope] = table
            continue
        onto = min(larger, key=lambda other: gathered[other].size)
        sizes = dict(zip(scope, table.shape, strict=True))
        gathered[onto] = gathered[onto] + table.reshape([sizes.get(v, 1) for v in onto])
    return folded


def _starts(parts: Sequence[Sequence[object] | set[int]]) -> Ints:
    return np.cumsum([0, *(len(part) for part in parts)]).astype(np.int64)


def _joined(parts: Sequence[Sequence[int]]) -> Ints:
    return np.array([number for part in parts for number in part], np.int64)
