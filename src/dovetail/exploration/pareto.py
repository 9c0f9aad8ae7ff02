"""Exact Pareto fronts with arrays in bounded memory; every objective is minimised.

An objective of +inf or nan means that nothing fits: such a point loses against any other, and is never on a front.
"""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Bools, Floats, Ints, Words

#: Points tested at once: with the sets of front points below each they fit a core's cache.
_ROWS = 2**13
#: Front points compared at once, as one bit set per rank and objective.
_FRONT_ROWS = 1024
_WORD = 64
#: Size of a sample whose front removes most points before sorting.
_PILOT = 4096


def dominated(points: Floats, front: Floats, *, strict: bool = False) -> Bools:
    """Whether some front point is at most as large in every objective.

    A point equal to a front point counts as dominated: a design whose lower bounds equal a front point cannot improve
    the front. With `strict` the front point must be smaller in at least one objective.
    """
    points, front = _checked(points), _checked(front)
    assert points.shape[1] == front.shape[1], "points and front have different objectives"
    front = front[_fits(front)]
    if not len(front):
        return np.zeros(len(points), np.bool_)
    result = np.empty(len(points), np.bool_)
    match points.shape[1]:
        case 1:
            lowest = front.min()
            # nan compares as false, so both tests are negated
            np.logical_not(points[:, 0] <= lowest if strict else points[:, 0] < lowest, out=result)
        case 2:
            steps = front[pareto(front)]
            steps = steps[np.argsort(steps[:, 0])]
            for first in range(0, len(points), _ROWS):
                rows = slice(first, first + _ROWS)
                result[rows] = _above_steps(points[rows], steps, strict)
        case _:
            result[:] = ~_fits(points)
            for first in range(0, len(front), _FRONT_ROWS):
                _mark(result, points, _Table(front[first : first + _FRONT_ROWS]), strict)
    return result


def pareto(points: Floats) -> Ints:
    """Positions of the undominated points, in ascending order; the first of equal points."""
    points = _checked(points)
    positions = np.flatnonzero(_fits(points))
    if not len(positions):
        return positions
    match points.shape[1]:
        case 1:
            return positions[[points[positions, 0].argmin()]]
        case 2:
            order = np.lexsort((points[positions, 1], points[positions, 0]))
            second = points[positions[order], 1]
            lowest = np.minimum.accumulate(second)
            first = np.ones(len(order), np.bool_)
            first[1:] = second[1:] < lowest[:-1]
            return np.sort(positions[order[first]])
        case _:
            return _many(points, positions)


def _checked(points: Floats) -> Floats:
    points = np.asarray(points, np.float64)
    assert points.ndim == 2, "points are rows of objectives"
    assert points.shape[1] > 0, "points have at least one objective"
    return points


def _fits(points: Floats) -> Bools:
    """Rows without +inf and nan."""
    # column after column: a reduction along short rows is several times slower
    result = points[:, 0] < np.inf
    for column in points.T[1:]:
        result &= column < np.inf
    return result


def _above_steps(points: Floats, steps: Floats, strict: bool) -> Bools:
    """Two objectives: the front is a staircase, and only the step to the left of a point matters."""
    step = np.searchsorted(steps[:, 0], points[:, 0], side="right") - 1
    second = steps[step, 1]
    above = (step >= 0) & (second <= points[:, 1])
    if strict:
        # no other step dominates a point that is itself a step
        above &= (second != points[:, 1]) | (steps[step, 0] != points[:, 0])
    return above | ~_fits(points)


class _Table:
    """Front points as bit sets: for each objective and rank r, the r smallest of them."""

    def __init__(self, front: Floats) -> None:
        rows, objectives = front.shape
        self.values = [np.sort(front[:, objective]) for objective in range(objectives)]
        self.below = [_prefixes(np.argsort(front[:, objective]), rows) for objective in range(objectives)]

    def above(self, points: Floats, strict: bool) -> Bools:
        """Which points some front point dominates: its bit is in the sets of every objective."""
        common = self._sets(points, 0, "right")
        for objective in range(1, points.shape[1]):
            common &= self._sets(points, objective, "right")
        result = np.any(common, axis=1)
        if strict and result.any():
            dominated_points, common = points[result], common[result]
            less = self._sets(dominated_points, 0, "left")
            for objective in range(1, points.shape[1]):
                less |= self._sets(dominated_points, objective, "left")
            result[result] = np.any(common & less, axis=1)
        return result

    def _sets(self, points: Floats, objective: int, side: str) -> Words:
        """For each point, the front points at most as large (right) or smaller (left) in an objective."""
        values, column = self.values[objective], points[:, objective]
        rank = np.searchsorted(values, column, side="right" if side == "right" else "left")
        return self.below[objective].take(rank, axis=0)


def _prefixes(order: Ints, rows: int) -> Words:
    """The sets of the first 0, 1, 2, ... of an order, one row each, with a bit for each member."""
    words = -(-rows // _WORD)
    result = np.zeros((rows + 1, words), np.uint64)
    result[np.arange(1, rows + 1), order // _WORD] = np.uint64(1) << (order % _WORD).astype(np.uint64)
    return np.bitwise_or.accumulate(result, axis=0)


def _mark(result: Bools, points: Floats, table: _Table, strict: bool = False) -> None:
    """Marks the points a table dominates, testing only those not marked yet."""
    for first in range(0, len(points), _ROWS):
        unmarked = first + np.flatnonzero(~result[first : first + _ROWS])
        if len(unmarked):
            result[unmarked] = table.above(points[unmarked], strict)


def _many(points: Floats, positions: Ints) -> Ints:
    """Three or more objectives: in lexicographic order no point is dominated by a later one."""
    if len(positions) > 2 * _PILOT:
        pilot = points[positions[:: len(positions) // _PILOT]]
        # equal points stay: the first of them may not be in the sample
        positions = positions[~dominated(points[positions], pilot[pareto(pilot)], strict=True)]
    positions = positions[np.lexsort(points[positions].T[::-1])]
    rows = points[positions]
    new = np.ones(len(rows), np.bool_)
    new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    rows, positions = rows[new], positions[new]
    tables: list[_Table] = []
    rest, front = rows[:0], [positions[:0]]
    for first in range(0, len(rows), _FRONT_ROWS):
        block, numbers = rows[first : first + _FRONT_ROWS], positions[first : first + _FRONT_ROWS]
        marked = np.zeros(len(block), np.bool_)
        for table in (*tables, _Table(rest)):
            _mark(marked, block, table)
        block, numbers = block[~marked], numbers[~marked]
        is_undominated = ~_Table(block).above(block, strict=True)
        rest = np.concatenate([rest, block[is_undominated]])
        front.append(numbers[is_undominated])
        # only full tables: a block may add a single point
        if len(rest) >= _FRONT_ROWS:
            tables.append(_Table(rest))
            rest = rows[:0]
    return np.sort(np.concatenate(front))
