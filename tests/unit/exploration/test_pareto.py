"""Dominance against every pair looked at one by one: ties, equal rows, what does not fit; memory and speed."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dovetail.exploration import pareto as pareto_module
from dovetail.exploration.pareto import dominated, pareto
from timing import within

#: Few values, so that rows tie and repeat.
VALUES = st.sampled_from([-math.inf, -1.0, 0.0, -0.0, 1e-300, 1.0, 2.0, 3.0, math.inf, math.nan])


@st.composite
def rows(draw: st.DrawFn, objectives: int, most: int = 40) -> NDArray[np.float64]:
    row = st.lists(VALUES, min_size=objectives, max_size=objectives)
    return np.array(draw(st.lists(row, max_size=most)), np.float64).reshape(-1, objectives)


def fits(row: NDArray[np.float64]) -> bool:
    return all(value < math.inf for value in row)


def beats(one: NDArray[np.float64], other: NDArray[np.float64], *, strict: bool) -> bool:
    """By the definition: no worse in all, and better in one where that is asked for."""
    if not fits(one):
        return False
    if not fits(other):
        return True
    no_worse = all(a <= b for a, b in zip(one, other, strict=True))
    return no_worse and (not strict or any(a < b for a, b in zip(one, other, strict=True)))


@given(st.data(), st.integers(1, 5), st.booleans())
def test_dominated_is_as_defined(data, objectives, strict):
    points, front = data.draw(rows(objectives)), data.draw(rows(objectives))
    expected = [any(beats(one, point, strict=strict) for one in front) for point in points]
    assert dominated(points, front, strict=strict).tolist() == expected


@given(st.data(), st.integers(1, 5))
def test_the_front_is_as_defined(data, objectives):
    points = data.draw(rows(objectives))
    expected = [
        position
        for position, point in enumerate(points)
        if fits(point)
        and not any(beats(other, point, strict=True) for other in points)
        and not any(beats(other, point, strict=False) for other in points[:position])
    ]
    found = pareto(points)
    assert found.tolist() == expected
    assert found.dtype == np.int64


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
@pytest.mark.parametrize("levels", [3, 30, 10**9])
def test_many_blocks_give_what_one_gives(objectives, levels, monkeypatch):
    # blocks so small that front, points and pilots take many of them
    monkeypatch.setattr(pareto_module, "_ROWS", 16)
    monkeypatch.setattr(pareto_module, "_FRONT_ROWS", 8)
    monkeypatch.setattr(pareto_module, "_PILOT", 20)
    random = np.random.default_rng(levels + objectives)
    points = random.integers(0, levels, (700, objectives)).astype(np.float64)
    points[random.random(points.shape) < 0.02] = math.inf
    front = random.integers(0, levels, (90, objectives)).astype(np.float64)
    below = np.all(front[None] <= points[:, None], axis=2)
    less = np.any(front[None] < points[:, None], axis=2)
    lost = np.isinf(points).sum(axis=1) > 0
    assert np.array_equal(dominated(points, front), np.any(below, axis=1) | lost)
    assert np.array_equal(dominated(points, front, strict=True), np.any(below & less, axis=1) | lost)

    among = np.all(points[None] <= points[:, None], axis=2) & ~lost[None]
    better = np.any(points[None] < points[:, None], axis=2)
    beaten = np.any(among & better, axis=1)
    repeats = np.any(np.triu(among & among.T, 1), axis=0)
    assert np.array_equal(pareto(points), np.flatnonzero(~beaten & ~repeats & ~lost))


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_a_point_equal_to_one_of_the_front_adds_nothing(objectives):
    front = np.ones((1, objectives))
    assert dominated(front, front).tolist() == [True]
    assert dominated(front, front, strict=True).tolist() == [False]


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_what_does_not_fit_loses_against_what_fits_and_beats_nothing(objectives):
    half = np.full((1, objectives), -5.0)
    half[0, -1] = math.inf
    assert dominated(half, np.ones((1, objectives))).tolist() == [True]
    assert dominated(np.full((1, objectives), math.inf), half).tolist() == [False]
    assert pareto(half).tolist() == []
    assert pareto(np.full((2, objectives), math.nan)).tolist() == []


def curved(random: np.random.Generator, number: int, objectives: int) -> NDArray[np.float64]:
    """Points of which none dominates another."""
    drawn = np.abs(random.normal(size=(number, objectives))) + 1e-3
    return 1.5 - drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.mark.parametrize("objectives", [2, 3, 4])
def test_a_front_among_many_points_is_found_in_seconds(objectives):
    random = np.random.default_rng(7)
    front = curved(random, 1_000, objectives)
    behind = front[random.integers(0, len(front), 299_000)] + random.random((299_000, objectives))
    points = random.permutation(np.concatenate([behind, front]))
    # 0.3 s alone on a core; every pair would be 3·10^8 comparisons of each objective
    with within(5):
        found = pareto(points)
    assert sorted(map(tuple, points[found])) == sorted(map(tuple, front))


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
def test_memory_does_not_grow_with_points_times_front(objectives):
    random = np.random.default_rng(7)
    points, front = random.random((1_000_000, objectives)), curved(random, 1_000, objectives)
    tracemalloc.start()
    dominated(points, front)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 20e6
