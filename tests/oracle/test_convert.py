"""Conversions between layouts against brute force: no path of collectives is cheaper, and the data really gets there.

Cost is what one chip sends: of `held` bytes on a chip, in a group of n, an all-gather sends (n−1)/n of its result, a
reduce-scatter (n−1)/n of its input, an all-reduce twice that, an all-to-all (n−1)/n of what it exchanges; a slice is
free. Two things are outside the comparison, and `convert` says so: axes that replicate the tensor before and after
take no part, and which piece of a dim a chip holds is open, so that no permutation of pieces is ever needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations, product
from math import prod

import numpy as np
import pytest
from layout_simulation import Chips

from dovetail.layout import FLAT, PARTIAL, CollectiveKind, Layout, convert
from dovetail.layout.convert import ConversionStep

#: A placement per axis, in the axes' order; None replicates.
State = tuple[str | None, ...]
AXES = ("a", "b", "c")
DIMS = ("x", "y", "z")
#: Equal sizes, a size of one, and random ones.
MESHES: list[tuple[int, ...]] = [(2,), (2, 2), (2, 2, 2), (8, 1, 2)]
MESHES += [
    tuple(np.random.default_rng(seed).integers(2, 65, n).tolist()) for seed, n in enumerate((1, 2, 2, 2, 3, 3, 3))
]


def layout(state: State) -> Layout:
    return Layout.of({axis: p for axis, p in zip(AXES, state, strict=False) if p is not None})


def states(axes: int, dims: tuple[str, ...]) -> list[State]:
    return list(product((None, PARTIAL, *dims), repeat=axes))


def reachable(before: State, after: State) -> bool:
    """Nothing whole or cut is ever made partial."""
    return all(b == PARTIAL for b, a in zip(before, after, strict=True) if a == PARTIAL)


def bystanders(before: State, after: State) -> tuple[int, ...]:
    return tuple(i for i, (b, a) in enumerate(zip(before, after, strict=True)) if b is None and a is None)


def held(state: State, sizes: tuple[int, ...]) -> int:
    """Bytes on a chip, of a tensor whose every share is a whole number."""
    whole = prod(sizes) ** 2
    return whole // prod(n for n, p in zip(sizes, state, strict=True) if p not in (None, PARTIAL))


def moves(state: State, sizes: tuple[int, ...], dims: tuple[str, ...]) -> Iterator[tuple[State, int]]:
    """Every single-axis move and its cost."""
    here = held(state, sizes)
    for i, (old, n) in enumerate(zip(state, sizes, strict=True)):
        for new in (None, *dims):
            if new == old:
                continue
            then = (*state[:i], new, *state[i + 1 :])
            if old is None:
                yield then, 0
            elif old == PARTIAL:
                yield then, (2 if new is None else 1) * here * (n - 1) // n
            elif new is None:
                yield then, held(then, sizes) * (n - 1) // n
            else:
                yield then, here * (n - 1) // n


@cache
def cheapest(
    before: State, frozen: tuple[int, ...], sizes: tuple[int, ...], dims: tuple[str, ...]
) -> Mapping[State, int]:
    """Dijkstra: the least cost from one layout to every other, `frozen` axes staying whole."""
    best: dict[State, int] = {}
    queue: list[tuple[int, int, State]] = [(0, 0, before)]
    pushed = 0
    while queue:
        cost, _, state = heapq.heappop(queue)
        if state in best:
            continue
        best[state] = cost
        for then, more in moves(state, sizes, dims):
            if then not in best and all(then[i] is None for i in frozen):
                pushed += 1
                heapq.heappush(queue, (cost + more, pushed, then))
    return best


def cost(steps: tuple[ConversionStep, ...], sizes: Mapping[str, int], whole: int) -> int:
    """What one chip sends over all steps."""
    total = 0
    for step in steps:
        n = prod(sizes[axis] for axis in step.axes)
        smaller = min(whole // prod(sizes[a] for a in side.sharded) for side in (step.before, step.after))
        larger = max(whole // prod(sizes[a] for a in side.sharded) for side in (step.before, step.after))
        if step.kind is CollectiveKind.ALL_TO_ALL:
            assert smaller == larger
        twice = 2 if step.kind is CollectiveKind.ALL_REDUCE else 1
        total += 0 if step.kind is None else twice * larger * (n - 1) // n
    return total


@cache
def pairs(axes: int, dims: tuple[str, ...]) -> list[tuple[State, State]]:
    return [(b, a) for b, a in product(states(axes, dims), repeat=2) if reachable(b, a)]


def some(found: list[tuple[State, State]], at_most: int = 600) -> list[tuple[State, State]]:
    return (
        found
        if len(found) <= at_most
        else [found[i] for i in np.random.default_rng(0).permutation(len(found))[:at_most]]
    )


@pytest.mark.parametrize("dims", [DIMS, ("x", FLAT)], ids=["three dims", "one dim and flat"])
@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_no_path_is_cheaper(sizes: tuple[int, ...], dims: tuple[str, ...]) -> None:
    named: dict[str, int] = dict(zip(AXES, sizes, strict=False))
    for before, after in pairs(len(sizes), dims):
        steps = convert(layout(before), layout(after))
        least = cheapest(before, bystanders(before, after), sizes, dims)[after]
        assert cost(steps, named, prod(sizes) ** 2) <= least, (before, after, steps)


def test_replicas_would_help_reductions_alone() -> None:
    """Where the stated exception bites: an axis that replicates throughout, beside a sum to complete."""
    sizes, named = (8, 2), {"a": 8, "b": 2}
    helped: set[tuple[State, State]] = set()
    for before, after in pairs(2, DIMS):
        ours = cost(convert(layout(before), layout(after)), named, prod(sizes) ** 2)
        if ours > cheapest(before, (), sizes, DIMS)[after]:
            assert bystanders(before, after)
            assert PARTIAL in before
            helped.add((before, after))
    assert ((PARTIAL, None), (None, None)) in helped


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (2, 2, 3)], ids=str)
def test_steps_carry_the_data_from_before_to_after(sizes: tuple[int, ...]) -> None:
    named: dict[str, int] = dict(zip(AXES, sizes, strict=False))
    for before, after in some(pairs(len(sizes), DIMS)):
        chips = Chips.holding(layout(before), DIMS, named)
        current = layout(before)
        for step in convert(layout(before), layout(after)):
            assert step.before == current
            chips.apply(step)
            current = step.after
            chips.check(current)
        assert current == layout(after)


def test_axes_that_change_alike_move_together() -> None:
    for count in range(1, len(AXES) + 1):
        for axes in combinations(AXES, count):
            summed, cut = Layout.of(dict.fromkeys(axes, PARTIAL)), Layout.of(dict.fromkeys(axes, "x"))
            assert [(s.kind, s.axes) for s in convert(summed, cut)] == [(CollectiveKind.REDUCE_SCATTER, axes)]
            assert [(s.kind, s.axes) for s in convert(summed, Layout())] == [(CollectiveKind.ALL_REDUCE, axes)]
            assert [(s.kind, s.axes) for s in convert(cut, Layout())] == [(CollectiveKind.ALL_GATHER, axes)]


@pytest.mark.parametrize("before", [Layout(), Layout.of({"a": "x"})])
def test_nothing_whole_is_made_partial(before: Layout) -> None:
    with pytest.raises(AssertionError, match="never made partial"):
        convert(before, Layout.of({"a": PARTIAL}))
