"""Compiled dominance tests: what the incumbents leave open, and sets of mutually undominated labels."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dovetail.arrays import Bools, Floats, Ints
from dovetail.compilation import compiled

Number = TypeVar("Number", np.float64, np.int64)


class Entries(NamedTuple):
    """Sets of labels, one set for each entry of a table."""

    #: entries + 1: where the labels of each begin
    offsets: Ints
    #: labels × objectives
    costs: Floats
    #: entries × directions: the lowest weighted cost of an entry's labels
    bounds: Floats


class Limits(NamedTuple):
    """What makes a label worth keeping."""

    #: directions × objectives
    weights: Floats
    #: corners × directions: weighted costs of the corners of the open region
    corners: Floats
    #: entries × directions: the lowest weighted cost of everything a label does not contain
    outside: Floats
    #: entries × objectives: the same by objective
    outside_costs: Floats
    #: a label may replace another if it is at most this share of the total cost worse in each objective
    slack: float


class NewLabels(NamedTuple):
    """New labels and what they were made of."""

    offsets: Ints
    costs: Floats
    #: labels × (option, left label, right label)
    parts: Ints
    #: whether a label was dropped only thanks to the slack
    used_slack: bool


@compiled
def open_corners(points: Floats, upper: Floats) -> Floats:
    """Corners u of the region points leave open: below `upper`, no point dominates a cost exactly if it is < some u.

    A corner above a new point is replaced by corners with one coordinate taken from the point; only the largest stay.
    """
    objectives = len(upper)
    corners = np.empty((64, objectives))
    corners[0] = upper
    count = 1
    fresh = np.empty((64, objectives))
    for point in points:
        num_kept, made = 0, 0
        for c in range(count):
            if np.all(point < corners[c]):
                if made + objectives > len(fresh):
                    fresh = _longer(fresh)
                for k in range(objectives):
                    fresh[made] = corners[c]
                    fresh[made, k] = point[k]
                    made += 1
            else:
                corners[num_kept] = corners[c]
                num_kept += 1
        count = num_kept
        for f in range(made):
            covered = False
            for c in range(num_kept):
                if np.all(fresh[f] <= corners[c]):
                    covered = True
                    break
            for g in range(made):
                if covered:
                    break
                # the first of equal corners stays
                if g != f and np.all(fresh[f] <= fresh[g]) and (g < f or np.any(fresh[f] < fresh[g])):
                    covered = True
            if not covered:
                if count == len(corners):
                    corners = _longer(corners)
                corners[count] = fresh[f]
                count += 1
    return corners[:count].copy()


@compiled
def _longer(rows: NDArray[Number]) -> NDArray[Number]:
    grown = np.empty((2 * len(rows), rows.shape[1]), rows.dtype)
    grown[: len(rows)] = rows
    return grown


#: Corners tested as one run.
TOGETHER = 16


@compiled
def highest_together(corners: Floats) -> Floats:
    """The highest corner of each run, direction by direction."""
    number, directions = corners.shape
    highest = np.full((-(-number // TOGETHER), directions), -np.inf)
    for c in range(number):
        for j in range(directions):
            highest[c // TOGETHER, j] = max(highest[c // TOGETHER, j], corners[c, j])
    return highest


@compiled
def _below(bounds: Floats, corners: Floats, c: int) -> bool:
    for j in range(len(bounds)):  # noqa: SIM110 - a loop is quicker once compiled
        if bounds[j] >= corners[c, j]:
            return False
    return True


@compiled
def _is_open(bounds: Floats, corners: Floats, highest: Floats, likely: int) -> int:
    """A corner that bounds stay below, trying a likely one first; -1 if there is none."""
    number = len(corners)
    if likely < number and _below(bounds, corners, likely):
        return likely
    for run in range(len(highest)):
        if _below(bounds, highest, run):
            for c in range(run * TOGETHER, min((run + 1) * TOGETHER, number)):
                if _below(bounds, corners, c):
                    return c
    return -1


@compiled
def worth_keeping(bounds: Floats, corners: Floats) -> Bools:
    """Which rows (the lowest weighted cost of some choices by direction) may contain an undominated choice."""
    is_open = np.empty(len(bounds), np.bool_)
    last, highest = 0, highest_together(corners)
    for row in range(len(bounds)):
        corner = _is_open(bounds[row], corners, highest, last)
        is_open[row] = corner >= 0
        last = max(corner, 0)
    return is_open


@compiled
def margin_below(bounds: Floats, corners: Floats) -> Floats:
    """How far each row of bounds is below the corner with the largest margin; negative if it is below none."""
    margins = np.full(len(bounds), -np.inf)
    for row in range(len(bounds)):
        for c in range(len(corners)):
            margin = np.inf
            for j in range(bounds.shape[1]):
                margin = min(margin, corners[c, j] - bounds[row, j])
                if margin <= margins[row]:
                    break
            margins[row] = max(margins[row], margin)
    return margins


@compiled
def undominated(points: Floats) -> Bools:
    """Which points no other dominates; rows are in lexicographic order, and the first of equal points counts."""
    n = len(points)
    is_undominated = np.zeros(n, np.bool_)
    members = np.empty(n, np.int64)
    count = 0
    for i in range(n):
        best = True
        for at in range(count):
            if _at_most(points, members[at], points[i]):
                best = False
                break
        if best:
            is_undominated[i] = True
            members[count] = i
            count += 1
    return is_undominated


@compiled
def least_by_entry(offsets: Ints, costs: Floats, weights: Floats) -> Floats:
    """The lowest weighted cost of each entry's labels (entries × directions); infinite if it has none."""
    entries, directions, objectives = len(offsets) - 1, len(weights), weights.shape[1]
    bounds = np.full((entries, directions), np.inf)
    for entry in range(entries):
        for label in range(offsets[entry], offsets[entry + 1]):
            for j in range(directions):
                cost = 0.0
                for k in range(objectives):
                    cost += weights[j, k] * costs[label, k]
                bounds[entry, j] = min(bounds[entry, j], cost)
    return bounds


@compiled
def _at_most(costs: Floats, at: int, cost: Floats) -> bool:
    for k in range(len(cost)):  # noqa: SIM110
        if costs[at, k] > cost[k]:
            return False
    return True


@compiled
def _at_least(costs: Floats, at: int, cost: Floats) -> bool:
    for k in range(len(cost)):  # noqa: SIM110
        if costs[at, k] < cost[k]:
            return False
    return True


@compiled
def _among(costs: Floats, begin: int, end: int, limit: Floats) -> int:
    """A label in a range that is within a limit; -1 if there is none."""
    for at in range(begin, end):
        if _at_most(costs, at, limit):
            return at
    return -1


@compiled
def _weigh(weights: Floats, cost: Floats, outside: Floats, row: int, bounds: Floats) -> None:
    """Writes a lower bound of every choice that contains a label, direction by direction."""
    for j in range(len(bounds)):
        total = outside[row, j]
        for k in range(len(cost)):
            total += weights[j, k] * cost[k]
        bounds[j] = total


@compiled
def made_labels(
    base: Floats, left_at: Ints, right_at: Ints, left: Entries, right: Entries, limits: Limits
) -> NewLabels:
    """Undominated sums of a base cost, a left and a right label for each row, over all options.

    `base` is rows × options × objectives; `left_at` and `right_at` (rows × options) say which entries' labels join.
    """
    rows, options, objectives = base.shape
    offsets, costs, parts = np.zeros(rows + 1, np.int64), np.empty((1024, objectives)), np.empty((1024, 3), np.int64)
    bounds, cost, limit = np.empty(len(limits.weights)), np.empty(objectives), np.empty(objectives)
    highest = highest_together(limits.corners)
    count, last, used_slack = 0, 0, False
    for row in range(rows):
        begin = count
        for o in range(options):
            a, b = left_at[row, o], right_at[row, o]
            if base[row, o, 0] == np.inf:
                continue
            _weigh(limits.weights, base[row, o], limits.outside, row, bounds)
            for j in range(len(bounds)):
                bounds[j] += left.bounds[a, j] + right.bounds[b, j]
            corner = _is_open(bounds, limits.corners, highest, last)
            if corner < 0:
                continue
            for x in range(left.offsets[a], left.offsets[a + 1]):
                for y in range(right.offsets[b], right.offsets[b + 1]):
                    for k in range(objectives):
                        cost[k] = base[row, o, k] + left.costs[x, k] + right.costs[y, k]
                        limit[k] = cost[k] + limits.slack * (cost[k] + limits.outside_costs[row, k])
                    better = _among(costs, begin, count, limit)
                    if better >= 0:
                        used_slack = used_slack or not _at_most(costs, better, cost)
                        continue
                    _weigh(limits.weights, cost, limits.outside, row, bounds)
                    corner = _is_open(bounds, limits.corners, highest, last)
                    if corner < 0:
                        continue
                    last = corner
                    count = _without(costs, parts, begin, count, cost)
                    if count == len(costs):
                        costs, parts = _longer(costs), _longer(parts)
                    for k in range(objectives):
                        costs[count, k] = cost[k]
                    parts[count, 0], parts[count, 1], parts[count, 2] = o, x, y
                    count += 1
        offsets[row + 1] = count
    return NewLabels(offsets, costs[:count].copy(), parts[:count].copy(), used_slack)


@compiled
def _without(costs: Floats, parts: Ints, begin: int, end: int, cost: Floats) -> int:
    """Removes from a range what a cost dominates; returns the new end."""
    new_end = begin
    for at in range(begin, end):
        if not _at_least(costs, at, cost):
            if new_end != at:
                for k in range(len(cost)):
                    costs[new_end, k] = costs[at, k]
                for part in range(3):
                    parts[new_end, part] = parts[at, part]
            new_end += 1
    return new_end
