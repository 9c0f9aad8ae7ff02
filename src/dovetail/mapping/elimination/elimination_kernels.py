"""Compiled sums and minima of cost tables."""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.arrays import Floats

# Minima along a row are only vectorised if no cost is NaN, which holds; infinite costs stay exact.
_MINIMA = {"nnan", "nsz"}


@njit(cache=True)
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


@njit(cache=True, fastmath=_MINIMA)
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


@njit(cache=True, fastmath=_MINIMA)
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


@njit(cache=True, fastmath=_MINIMA)
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
