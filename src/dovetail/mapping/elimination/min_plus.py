"""Sums of tables with variables minimised away, without ever building a large joint table."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dovetail.arrays import Floats
from dovetail.mapping.elimination.elimination_kernels import product, product_across, product_along

#: A table of one cost, and its variables in the order of its axes.
Factor = tuple[tuple[int, ...], Floats]

#: Entries of a joint table that exist at once (4 MB, which fits a core's cache).
BLOCK_ENTRIES = 1 << 19


def least_over(factors: Sequence[Factor], onto: tuple[int, ...], sizes: Sequence[int]) -> Floats:
    """The lowest sum of all tables for every choice of `onto`, over all choices of the other variables."""
    gathered: dict[tuple[int, ...], Floats] = {}
    for axes, costs in factors:
        scope = tuple(sorted(axes))
        turned = costs.transpose([axes.index(v) for v in scope])
        gathered[scope] = gathered[scope] + turned if scope in gathered else turned
    variables = tuple(sorted({v for scope in gathered for v in scope} | set(onto)))
    if math.prod(sizes[v] for v in variables) > BLOCK_ENTRIES and len(variables) == 3 and 1 <= len(onto) <= 2:
        return _of_three(gathered, onto, variables, sizes)
    return _joint(list(gathered.items()), onto, variables, {v: sizes[v] for v in variables})


def _joint(
    factors: Sequence[Factor], onto: tuple[int, ...], variables: tuple[int, ...], sizes: dict[int, int]
) -> Floats:
    """Broadcasts with numpy, in blocks along the largest variable."""
    if math.prod(sizes.values()) > BLOCK_ENTRIES:
        sliced = max(sizes, key=lambda v: sizes[v])
        others = math.prod(sizes.values()) // sizes[sliced]
        step = min(max(1, BLOCK_ENTRIES // others), -(-sizes[sliced] // 2))
        lowest = np.full([sizes[v] for v in onto], np.inf)
        for start in range(0, sizes[sliced], step):
            part = slice(start, min(start + step, sizes[sliced]))
            inner = [(scope, _sliced(scope, costs, sliced, part)) for scope, costs in factors]
            block = _joint(inner, onto, variables, sizes | {sliced: part.stop - part.start})
            if sliced in onto:
                lowest[tuple(part if v == sliced else slice(None) for v in onto)] = block
            else:
                np.minimum(lowest, block, out=lowest)
        return lowest
    axes = (*onto, *(v for v in variables if v not in onto))
    total = np.zeros([sizes[v] for v in axes])
    for scope, costs in factors:
        ordered = costs.transpose([scope.index(v) for v in axes if v in scope])
        total += ordered.reshape([sizes[v] if v in scope else 1 for v in axes])
    return total.min(axis=tuple(range(len(onto), len(axes)))) if len(axes) > len(onto) else total


def _sliced(scope: tuple[int, ...], costs: Floats, variable: int, part: slice) -> Floats:
    return costs[tuple(part if v == variable else slice(None) for v in scope)]


def _of_three(
    gathered: dict[tuple[int, ...], Floats], onto: tuple[int, ...], variables: tuple[int, ...], sizes: Sequence[int]
) -> Floats:
    """Takes a matrix product over one of three variables, then minimises a second one away if needed."""
    table = gathered.get(variables)
    free = [v for v in variables if v not in onto]
    z = free[0]
    if table is not None and len(free) > 1:
        # read the table in memory order
        z = next(variables[axis] for axis in _by_stride(table) if variables[axis] in free)
    x, y = (v for v in variables if v != z)
    if table is not None and variables[_by_stride(table)[-1]] == x:
        x, y = y, x
    left, right, outer = _pairs(gathered, x, y, z, sizes)
    if table is None:
        lowest = product(left, right)
    elif variables[_by_stride(table)[-1]] == z:
        turned = np.ascontiguousarray(table.transpose([variables.index(v) for v in (x, y, z)]))
        lowest = product_along(left, np.ascontiguousarray(right.T), turned)
    else:
        lowest = product_across(left, right, table.transpose([variables.index(v) for v in (x, z, y)]))
    lowest += outer
    if len(onto) == 1:
        return lowest.min(axis=1 if x == onto[0] else 0)
    return lowest if onto == (x, y) else lowest.T


def _by_stride(table: Floats) -> list[int]:
    """Axes of a table, the contiguous one last."""
    return sorted(range(table.ndim), key=lambda axis: -abs(table.strides[axis]))


def _pairs(
    gathered: dict[tuple[int, ...], Floats], x: int, y: int, z: int, sizes: Sequence[int]
) -> tuple[Floats, Floats, Floats]:
    """All tables of one or two variables merged into three: (x, z), (z, y) and (x, y)."""
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
