"""Elimination with sets of labels: all undominated costs in one pass, each with its choice."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dovetail.arrays import ROUNDING, Floats, Ints
from dovetail.frozen import frozen
from dovetail.mapping.elimination.label_kernels import Entries, Limits, NewLabels, least_by_entry, made_labels
from dovetail.mapping.elimination.min_plus import least_over
from dovetail.mapping.elimination.open_costs import DirectionBounds, Incumbents, weighed_corners
from dovetail.mapping.elimination.problem import CostProblem, CostTable

#: Cost values gathered at once (32 MB).
BLOCK_NUMBERS = 1 << 22


@frozen
class LabelTable:
    """Undominated labels for every choice of some variables."""

    variables: tuple[int, ...]
    entries: Entries
    #: buckets whose variables the labels have decided on
    places: tuple[int, ...]
    #: the variable eliminated to make this table, if any, and the option each label takes
    variable: int | None
    options: Ints
    #: tables whose labels were joined, and which of their labels
    parts: tuple[tuple[LabelTable, Ints], ...]

    @property
    def labels(self) -> int:
        """How many labels it has."""
        return len(self.options)


class TooMuchWork(Exception):  # noqa: N818 - no error: the caller falls back on what is proved
    """The elimination would examine more labels than allowed."""


class LabelElimination:
    """Eliminates all variables of a problem, within 1 + epsilon of everything the incumbents leave open.

    A label l may be dropped for another l' of the same entry if l' ≤ l + δ·(l + r) in every objective, where r is the
    lower bound of the rest: completing l' then costs at most 1 + δ times as much as completing l. Every step that
    drops labels this way loses a factor of 1 + δ; all steps together lose no more than 1 + epsilon. What a step
    leaves of epsilon is how much worse incumbents may be than the costs they cover.
    """

    def __init__(
        self, problem: CostProblem, bounds: DirectionBounds, incumbents: Incumbents, epsilon: float, work: float
    ) -> None:
        """Prepares the elimination; `choices` runs it."""
        self.problem, self.bounds, self.incumbents, self.epsilon = problem, bounds, incumbents, epsilon
        self.work = work
        self.spent = 1.0
        self.made = 0
        self.steps_left = len(bounds.tree.buckets) + sum(max(0, len(b.children) - 2) for b in bounds.tree.buckets)

    def choices(self) -> Ints:
        """Choices (n × variables) that together with the incumbents cover every choice within 1 + epsilon."""
        tree, tables = self.bounds.tree, dict[int, LabelTable]()
        for place, bucket in enumerate(tree.buckets):
            joined = [tables.pop(child) for child in bucket.children]
            while len(joined) > 2:
                joined.sort(key=lambda table: math.prod(tree.sizes[v] for v in table.variables))
                joined = [self._step(place, None, joined[:2]), *joined[2:]]
            tables[place] = self._step(place, bucket.variable, joined)
        (last,) = tables.values()
        choices = np.zeros((last.labels, len(tree.sizes)), np.int64)
        _trace(last, np.arange(last.labels), choices)
        return choices[:, :-1]

    def _step(self, place: int, variable: int | None, joined: Sequence[LabelTable]) -> LabelTable:
        """Joins up to two tables of labels and, if a variable is given, eliminates it with its tables."""
        bucket = self.bounds.tree.buckets[place]
        if variable is None:
            separator = tuple(sorted({v for table in joined for v in table.variables}))
            tables: list[CostTable] = []
            outside = self._cost_outside(place, [p for table in joined for p in table.places], separator)
        else:
            separator, tables = bucket.separator, [self.problem.tables[number] for number in bucket.tables]
            outside = np.stack([passes.down[place] for passes in self.bounds.messages], axis=-1)
        outside = np.ascontiguousarray(outside.reshape(-1, len(self.bounds.weights)))
        slack = max((1 + self.epsilon) / self.spent, 1.0) ** (1 / self.steps_left) - 1
        self.steps_left -= 1
        corners = self.incumbents.corners(self.epsilon, self.spent - 1)
        limits = Limits(
            self.bounds.weights,
            weighed_corners(corners, self.bounds.weights),
            outside,
            self.bounds.outside_costs(outside),
            max(slack, ROUNDING / 100),
        )
        made = self._made(separator, variable, tables, joined, limits)
        if made.used_slack and slack > ROUNDING / 100:
            self.spent *= 1 + slack
        self.made += len(made.parts)
        entries = Entries(made.offsets, made.costs, least_by_entry(made.offsets, made.costs, self.bounds.weights))
        places = (place,) if variable is not None else tuple(p for table in joined for p in table.places)
        parts = tuple(zip(joined, made.parts.T[1:], strict=False))
        return LabelTable(separator, entries, places, variable, made.parts[:, 0], parts)

    def _cost_outside(self, place: int, without: Sequence[int], onto: tuple[int, ...]) -> Floats:
        """The lowest cost of everything outside some children's parts, by direction."""
        sizes = self.bounds.tree.sizes
        by_direction = [least_over(passes.factors(place, without), onto, sizes) for passes in self.bounds.messages]
        return np.stack(by_direction, axis=-1)

    def _made(
        self,
        separator: tuple[int, ...],
        variable: int | None,
        tables: Sequence[CostTable],
        joined: Sequence[LabelTable],
        limits: Limits,
    ) -> NewLabels:
        """The new labels, in blocks of entries."""
        sizes = self.bounds.tree.sizes
        shape = tuple(sizes[v] for v in separator)
        options = 1 if variable is None else sizes[variable]
        objectives = self.problem.objectives
        whole = math.prod(shape)
        step = max(1, BLOCK_NUMBERS // (options * objectives))
        left, right = (joined[side].entries if side < len(joined) else self._nothing() for side in (0, 1))
        blocks: list[NewLabels] = []
        for start in range(0, whole, step):
            rows = np.arange(start, min(start + step, whole))
            index = {
                v: at[:, None] for v, at in zip(separator, np.unravel_index(rows, shape) if shape else (), strict=True)
            }
            if variable is not None:
                index[variable] = np.arange(options)[None, :]
            base = np.zeros((len(rows), options, objectives))
            for table in tables:
                base += np.moveaxis(table.costs[(slice(None), *(index[v] for v in table.variables))], 0, -1)
            base[np.isinf(base).any(axis=2)] = np.inf
            at = [np.zeros((len(rows), options), np.int64) for _ in range(2)]
            for entry, table in zip(at, joined, strict=False):
                for v in table.variables:
                    entry *= sizes[v]
                    entry += index[v]
            self.work -= int((np.diff(left.offsets)[at[0]] * np.diff(right.offsets)[at[1]]).sum())
            if self.work < 0:
                raise TooMuchWork
            here = slice(rows[0], rows[-1] + 1)
            inside = limits._replace(outside=limits.outside[here], outside_costs=limits.outside_costs[here])
            blocks.append(made_labels(base, at[0], at[1], left, right, inside))
        return _joined(blocks)

    def _nothing(self) -> Entries:
        """One label that costs nothing."""
        zero = np.zeros((1, self.problem.objectives))
        return Entries(np.array([0, 1]), zero, np.zeros((1, len(self.bounds.weights))))


def _joined(blocks: Sequence[NewLabels]) -> NewLabels:
    counts = np.concatenate([np.diff(block.offsets) for block in blocks])
    return NewLabels(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.concatenate([block.costs for block in blocks]),
        np.concatenate([block.parts for block in blocks]),
        any(block.used_slack for block in blocks),
    )


def _trace(table: LabelTable, labels: Ints, choices: Ints) -> None:
    """Records the options that labels, and the labels they were made of, have taken."""
    if table.variable is not None:
        choices[:, table.variable] = table.options[labels]
    for part, of_part in table.parts:
        _trace(part, of_part[labels], choices)
