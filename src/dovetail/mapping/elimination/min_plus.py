"""Sums of tables with variables minimised away, without ever building a large joint table."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dovetail.arrays import Floats
from dovetail.mapping.elimination.elimination_kernels import product, product_across, product_along, sums

#: A table of one cost, and its variables in the order of its axes.
Factor = tuple[tuple[int, ...], Floats]

#: Joint tables of at most so many entries are added up by numpy, larger ones by compiled loops.
BLOCK_ENTRIES = 1 << 13

#: Two tables are added up before the loop over all if that takes this many times fewer entries than the loop.
FEWER = 8


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
    return _joint(list(gathered.items()), onto, variables, sizes)


def _merged(factors: Sequence[Factor], sizes: Sequence[int], total: int) -> list[Factor]:
    """Fewer tables with the same sum: those of few entries are added up first."""
    merged = list(factors)
    while len(merged) > 1:
        pairs = [
            (_entries(set(one[0]) | set(other[0]), sizes), number, place)
            for number, one in enumerate(merged)
            for place, other in enumerate(merged[:number])
        ]
        entries, number, place = min(pairs)
        if entries * FEWER > total and entries > max(merged[number][1].size, merged[place][1].size):
            break
        one, other = merged.pop(number), merged.pop(place)
        scope = tuple(sorted({*one[0], *other[0]}))
        merged.append((scope, _spread(one, scope) + _spread(other, scope)))
    return merged


def _entries(variables: set[int], sizes: Sequence[int]) -> int:
    return math.prod(sizes[v] for v in variables)


def _spread(factor: Factor, scope: tuple[int, ...]) -> Floats:
    """A table with an axis for each variable of a larger scope; both are in ascending order."""
    lengths = dict(zip(factor[0], factor[1].shape, strict=True))
    return factor[1].reshape([lengths.get(v, 1) for v in scope])


def _joint(
    factors: Sequence[Factor], onto: tuple[int, ...], variables: tuple[int, ...], sizes: Sequence[int]
) -> Floats:
    """Any number of variables: broadcast with numpy if there are few entries, else by a compiled loop."""
    total = math.prod(sizes[v] for v in variables)
    if total > BLOCK_ENTRIES:
        return _looped(_merged(factors, sizes, total), onto, variables, sizes)
    axes = (*onto, *(v for v in variables if v not in onto))
    joint = np.zeros([sizes[v] for v in axes])
    for scope, costs in factors:
        ordered = costs.transpose([scope.index(v) for v in axes if v in scope])
        joint += ordered.reshape([sizes[v] if v in scope else 1 for v in axes])
    return joint.min(axis=tuple(range(len(onto), len(axes)))) if len(axes) > len(onto) else joint


def _looped(
    factors: Sequence[Factor], onto: tuple[int, ...], variables: tuple[int, ...], sizes: Sequence[int]
) -> Floats:
    """The largest variable is the inner loop; what is minimised away is inside of what is not."""
    inner = max(variables, key=lambda v: sizes[v])
    order = [v for v in (*onto, *(v for v in variables if v not in onto)) if v != inner] + [inner]
    factors = sorted(factors, key=lambda factor: inner not in factor[0])
    strides, data = np.zeros((len(factors), len(order)), np.int64), list[Floats]()
    for number, (scope, costs) in enumerate(factors):
        within = [v for v in order if v in scope]
        turned = np.ascontiguousarray(costs.transpose([scope.index(v) for v in within]))
        data.append(turned.reshape(-1))
        for axis, variable in enumerate(within):
            strides[number, order.index(variable)] = math.prod(turned.shape[axis + 1 :])
    ends = np.cumsum([0, *(part.size for part in data)])
    kept = [v for v in order if v in onto]
    lowest = np.full([sizes[v] for v in kept], np.inf)
    steps = np.array([math.prod(lowest.shape[kept.index(v) + 1 :]) if v in onto else 0 for v in order], np.int64)
    lengths = np.array([sizes[v] for v in order], np.int64)
    along = sum(inner in scope for scope, _ in factors)
    sums(np.concatenate(data), ends[:-1], strides, lengths, along, lowest.reshape(-1), steps)
    return lowest.transpose([kept.index(v) for v in onto])


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
