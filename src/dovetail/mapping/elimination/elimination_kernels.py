"""Compiled sums and minima of cost tables."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.compilation import compiled

# Minima along a row are only vectorised if no cost is NaN, which holds; infinite costs stay exact.
_MINIMA = {"nnan", "nsz"}


@compiled
def weighed(costs: Floats, weights: Floats) -> Floats:
    """The weighted sum of objectives (objectives × entries); infinite if any of them is."""
    objectives, n = costs.shape
    sums = np.empty(n)
    for start in range(0, n, 4096):
        end = min(start + 4096, n)
        for i in range(start, end):
            sums[i] = 0.0
        for k in range(objectives):
            weight = weights[k]
            if weight > 0:
                for i in range(start, end):
                    sums[i] += weight * costs[k, i]
            else:
                for i in range(start, end):
                    sums[i] = np.inf if costs[k, i] == np.inf else sums[i]
    return sums


@compiled(fastmath=_MINIMA)
def product(left: Floats, right: Floats) -> Floats:
    """The (min,+) product of two matrices: costs[x, y] = min over z of left[x, z] + right[z, y]."""
    rows, inner = left.shape
    columns = right.shape[1]
    costs = np.full((rows, columns), np.inf)
    # panels of `right` stay in the cache while all rows pass over them
    for start in range(0, inner, 64):
        end = min(start + 64, inner)
        for x in range(rows):
            for z in range(start, end):
                more = left[x, z]
                if more < np.inf:
                    for y in range(columns):
                        cost = more + right[z, y]
                        costs[x, y] = cost if cost < costs[x, y] else costs[x, y]
    return costs


@compiled(fastmath=_MINIMA)
def product_across(left: Floats, right: Floats, table: Floats) -> Floats:
    """costs[x, y] = min over z of left[x, z] + right[z, y] + table[x, z, y], the last being contiguous along y."""
    rows, inner = left.shape
    columns = right.shape[1]
    costs = np.full((rows, columns), np.inf)
    for x in range(rows):
        for z in range(inner):
            more = left[x, z]
            if more < np.inf:
                for y in range(columns):
                    cost = more + right[z, y] + table[x, z, y]
                    costs[x, y] = cost if cost < costs[x, y] else costs[x, y]
    return costs


@compiled(fastmath=_MINIMA)
def product_along(left: Floats, right: Floats, table: Floats) -> Floats:
    """costs[x, y] = min over z of left[x, z] + right[y, z] + table[x, y, z], all contiguous along z."""
    rows, inner = left.shape
    columns = right.shape[0]
    costs = np.empty((rows, columns))
    for x in range(rows):
        for y in range(columns):
            lowest = np.inf
            for z in range(inner):
                cost = left[x, z] + right[y, z] + table[x, y, z]
                lowest = cost if cost < lowest else lowest
            costs[x, y] = lowest
    return costs


@compiled(fastmath=_MINIMA)
def sums(data: Floats, starts: Ints, strides: Ints, sizes: Ints, along: int, result: Floats, steps: Ints) -> None:
    """result[onto] = min over all other variables of the sum of tables, over any number of variables.

    Tables are one after another in `data`, from `starts` on, with `strides` (tables × variables). The first `along`
    of them are contiguous along the last variable, the others do not have it. `steps` are the strides of the result,
    0 for variables that are minimised away.
    """
    tables, count = strides.shape
    last = count - 1
    inner = sizes[last]
    at = starts.copy()
    place = np.zeros(count, np.int64)
    row = np.empty(inner)
    to = 0
    while True:
        fixed = 0.0
        for t in range(along, tables):
            fixed += data[at[t]]
        if along == 2:
            a, b = data[at[0] : at[0] + inner], data[at[1] : at[1] + inner]
            for i in range(inner):
                row[i] = fixed + a[i] + b[i]
        elif along == 3:
            a, b, c = data[at[0] : at[0] + inner], data[at[1] : at[1] + inner], data[at[2] : at[2] + inner]
            for i in range(inner):
                row[i] = fixed + a[i] + b[i] + c[i]
        else:
            row[:] = fixed
            for t in range(along):
                a = data[at[t] : at[t] + inner]
                for i in range(inner):
                    row[i] += a[i]
        if steps[last] == 0:
            lowest = np.inf
            for i in range(inner):
                lowest = row[i] if row[i] < lowest else lowest
            result[to] = lowest if lowest < result[to] else result[to]
        else:
            best = result[to : to + inner]
            for i in range(inner):
                best[i] = row[i] if row[i] < best[i] else best[i]
        # the next choice of the other variables, the last of them first
        variable = last - 1
        while variable >= 0:
            place[variable] += 1
            to += steps[variable]
            for t in range(tables):
                at[t] += strides[t, variable]
            if place[variable] < sizes[variable]:
                break
            to -= steps[variable] * sizes[variable]
            for t in range(tables):
                at[t] -= strides[t, variable] * sizes[variable]
            place[variable] = 0
            variable -= 1
        if variable < 0:
            return
