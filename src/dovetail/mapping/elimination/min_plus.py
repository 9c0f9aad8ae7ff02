"""Sums of tables with all variables but some minimised away, without ever holding a large joint table."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dovetail.arrays import Floats
from dovetail.mapping.elimination.elimination_kernels import product, product_across, product_along

#: A table of one cost, and its variables in the order of its axes.
Factor = tuple[tuple[int, ...], Floats]

#: Entries of a joint table that may exist at once (4 MB: the cache of a core holds them).
BLOCK_ENTRIES = 1 << 19


def least_over(factors: Sequence[Factor], onto: tuple[int, ...], sizes: Sequence[int]) -> Floats:
    """For every choice of `onto` the least sum of all tables, whatever the other variables choose."""
    gathered: dict[tuple[int, ...], Floats] = {}
    for variables, costs in factors:
        scope = tuple(sorted(variables))
        turned = costs.transpose([variables.index(v) for v in scope])
        gathered[scope] = gathered[scope] + turned if scope in gathered else turned
    every = tuple(sorted({v for scope in gathered for v in scope} | set(onto)))
    if math.prod(sizes[v] for v in every) > BLOCK_ENTRIES and len(every) == 3 and 1 <= len(onto) <= 2:
        return _of_three(gathered, onto, every, sizes)
    return _joint(list(gathered.items()), onto, every, {v: sizes[v] for v in every})


def _joint(factors: Sequence[Factor], onto: tuple[int, ...], every: tuple[int, ...], sizes: dict[int, int]) -> Floats:
    """By numpy's broadcasting, cut in blocks along the largest variable."""
    if math.prod(sizes.values()) > BLOCK_ENTRIES:
        cut = max(sizes, key=lambda v: sizes[v])
        others = math.prod(sizes.values()) // sizes[cut]
        step = min(max(1, BLOCK_ENTRIES // others), -(-sizes[cut] // 2))
        found = np.full([sizes[v] for v in onto], np.inf)
        for start in range(0, sizes[cut], step):
            part = slice(start, min(start + step, sizes[cut]))
            inner = [(scope, _sliced(scope, costs, cut, part)) for scope, costs in factors]
            block = _joint(inner, onto, every, sizes | {cut: part.stop - part.start})
            if cut in onto:
                found[tuple(part if v == cut else slice(None) for v in onto)] = block
            else:
                np.minimum(found, block, out=found)
        return found
    axes = (*onto, *(v for v in every if v not in onto))
    total = np.zeros([sizes[v] for v in axes])
    for scope, costs in factors:
        ordered = costs.transpose([scope.index(v) for v in axes if v in scope])
        total += ordered.reshape([sizes[v] if v in scope else 1 for v in axes])
    return total.min(axis=tuple(range(len(onto), len(axes)))) if len(axes) > len(onto) else total


def _sliced(scope: tuple[int, ...], costs: Floats, variable: int, part: slice) -> Floats:
    return costs[tuple(part if v == variable else slice(None) for v in scope)]


def _of_three(
    gathered: dict[tuple[int, ...], Floats], onto: tuple[int, ...], every: tuple[int, ...], sizes: Sequence[int]
) -> Floats:
    """By a product of matrices over one of three variables; a second one is then minimised away."""
    table = gathered.get(every)
    free = [v for v in every if v not in onto]
    z = free[0]
    if table is not None and len(free) > 1:
        # read a table in the order in which it lies
        z = next(every[axis] for axis in _by_stride(table) if every[axis] in free)
    x, y = (v for v in every if v != z)
    if table is not None and every[_by_stride(table)[-1]] == x:
        x, y = y, x
    left, right, outer = _pairs(gathered, x, y, z, sizes)
    if table is None:
        found = product(left, right)
    elif every[_by_stride(table)[-1]] == z:
        turned = np.ascontiguousarray(table.transpose([every.index(v) for v in (x, y, z)]))
        found = product_along(left, np.ascontiguousarray(right.T), turned)
    else:
        found = product_across(left, right, table.transpose([every.index(v) for v in (x, z, y)]))
    found += outer
    if len(onto) == 1:
        return found.min(axis=1 if x == onto[0] else 0)
    return found if onto == (x, y) else found.T


def _by_stride(table: Floats) -> list[int]:
    """Axes of a table, that along which it is contiguous last."""
    return sorted(range(table.ndim), key=lambda axis: -abs(table.strides[axis]))


def _pairs(
    gathered: dict[tuple[int, ...], Floats], x: int, y: int, z: int, sizes: Sequence[int]
) -> tuple[Floats, Floats, Floats]:
    """All tables of one or two variables as three: of x and z, of z and y, of x and y."""
    left, right = np.zeros((sizes[x], sizes[z])), np.zeros((sizes[z], sizes[y]))
    outer = np.zeros((sizes[x], sizes[y]))
    for scope, costs in gathered.items():
        if len(scope) == 3:
            continue
        target, axes = next(
            (target, axes)
            for target, axes in ((left, (x, z)), (right, (z, y)), (outer, (x, y)))
            if set(scope) <= set(axes)
        )
        ordered = costs.transpose([scope.index(v) for v in axes if v in scope])
        target += ordered.reshape([sizes[v] if v in scope else 1 for v in axes])
    return left, right, outer
