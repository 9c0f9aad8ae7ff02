"""Elimination against trying every choice of hundreds of small problems."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest

from dovetail.mapping.elimination import cheapest, frontier, min_plus, pareto, through
from small_cost_problems import every_choice, random_problem, undominated_rows

PROBLEMS = 3000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 330
#: Sums of other than whole numbers depend on their order.
CLOSE = 1e-11


@cache
def solved(seed):
    problem = random_problem(seed)
    return problem, *every_choice(problem)


def same(found, expected, seed):
    return np.array_equal(found, expected) if seed % 3 < 2 else np.allclose(found, expected, rtol=CLOSE, atol=0.0)


def weights_of(seed, objectives):
    weights = np.random.default_rng(seed).integers(0, 4, objectives).astype(float)
    return weights if weights.any() else np.ones(objectives)


@pytest.fixture(params=["small", "in blocks"])
def blocks(request, monkeypatch):
    """The same problems with blocks so small that every way to cut them is taken."""
    if request.param == "in blocks":
        monkeypatch.setattr(min_plus, "BLOCK_ENTRIES", 7)


@pytest.mark.usefixtures("blocks")
def test_the_least_sum_is_that_of_all_choices_and_its_choice_has_it():
    for seed in range(PROBLEMS):
        problem, choices, costs = solved(seed)
        weights = weights_of(seed, problem.objectives)
        cost, choice = cheapest(problem, weights)
        if not len(choices):
            assert (cost, choice) == (np.inf, ())
            continue
        assert same(cost, (costs @ weights).min(), seed), seed
        (row,) = np.flatnonzero((choices == choice).all(axis=1))
        assert same(costs[row] @ weights, cost, seed), seed


@pytest.mark.usefixtures("blocks")
def test_the_least_sum_through_every_option():
    for seed in range(PROBLEMS):
        problem, choices, costs = solved(seed)
        weights = weights_of(seed + 1, problem.objectives)
        for variable, found in enumerate(through(problem, weights)):
            expected = [
                (costs @ weights)[choices[:, variable] == option].min(initial=np.inf)
                for option in range(problem.sizes[variable])
            ]
            assert same(found, expected, seed), (seed, variable)


def test_the_front_is_that_of_all_choices():
    sizes = []
    for seed in range(PROBLEMS):
        problem, _, costs = solved(seed)
        found, expected = frontier(problem), undominated_rows(costs)
        assert found.points.shape == expected.shape, seed
        assert same(found.points, expected, seed), seed
        assert found.epsilon == 0.0
        assert np.array_equal(problem.cost(found.choices), found.points)
        sizes.append(len(expected))
    assert max(sizes) > 50


def test_the_front_within_limits(monkeypatch):
    # small enough for problems with fewer options to be solved first
    monkeypatch.setattr(pareto, "FEW_OPTIONS", 2)
    monkeypatch.setattr(pareto, "MORE_OPTIONS", 3)
    for seed in range(0, PROBLEMS, 3):
        problem, choices, costs = solved(seed)
        if not len(choices):
            continue
        most = np.quantile(costs, 0.3, axis=0, method="nearest")
        most[seed // 3 % len(most)] = np.inf
        expected = undominated_rows(costs[(costs <= most).all(axis=1)])
        assert np.array_equal(frontier(problem, most=most).points, expected), seed


@pytest.mark.parametrize("epsilon", [0.1, 0.6])
def test_a_coarser_front_covers_every_choice_and_has_only_choices(epsilon):
    fewer = 0
    for seed in range(PROBLEMS):
        if seed % 4 == round(10 * epsilon) % 4:
            # the other coarseness has its turn
            continue
        problem, choices, costs = solved(seed)
        most = np.full(problem.objectives, np.inf)
        if seed % 2 and len(choices):
            most = np.quantile(costs, 0.6, axis=0)
        found = frontier(problem, epsilon, most)
        assert found.epsilon == epsilon
        for point, choice in zip(found.points, found.choices, strict=True):
            (row,) = np.flatnonzero((choices == choice).all(axis=1))
            assert same(costs[row], point, seed), seed
        expected = undominated_rows(costs[(costs <= most).all(axis=1)])
        for cost in expected:
            assert (found.points <= cost * ((1 + epsilon) * (1 + 1e-11))).all(axis=1).any(), (seed, cost)
        fewer += len(found.points) < len(expected)
    assert fewer > PROBLEMS // 30


def test_a_front_with_little_work_says_what_it_proves():
    proved = []
    for seed in range(0, PROBLEMS, 4):
        problem, _, costs = solved(seed)
        found = frontier(problem, work=40)
        proved.append(found.epsilon)
        for cost in undominated_rows(costs):
            if np.isfinite(found.epsilon):
                assert (found.points <= cost * ((1 + found.epsilon) * (1 + 1e-11))).all(axis=1).any(), (seed, cost)
    assert min(proved) == 0.0
    assert any(0 < epsilon < np.inf for epsilon in proved)
