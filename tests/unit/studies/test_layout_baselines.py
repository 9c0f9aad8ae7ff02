"""Annealing and genetic search of cost problems: against the exact search, seeds, efforts and what is forbidden."""

from __future__ import annotations

import numpy as np
import pytest
from baselines.annealing import Cooling, simulated_annealing
from baselines.flat_costs import flat_costs
from baselines.genetic import Evolution, genetic_search
from baselines.genetic_kernels import Breeding, Population, breed, settle
from baselines.random_kernels import random_state

from dovetail.errors import InputError
from dovetail.mapping.elimination import CostProblem, CostTable, cheapest
from small_cost_problems import random_problem

SEARCHES = [simulated_annealing, genetic_search]
WEIGHTS = (1.0, 0.3, 0.0)
#: six variables of 16 options each: no short search meets the optimum by chance
CHAIN_SEED = 5


def weighed(problem, weights, choice):
    """The cost of a choice as the problem itself says."""
    return float(problem.cost(np.array([choice]))[0] @ np.array(weights))


def chain(n=6, options=16):
    """A chain whose neighbours should agree, with one constant and one variable that has nothing to choose."""
    rng = np.random.default_rng(CHAIN_SEED)
    sizes = (*[options] * n, 1)
    tables = [CostTable((v, v + 1), rng.random((2, options, options))) for v in range(n - 1)]
    tables += [CostTable((v,), rng.random((2, options))) for v in range(n)]
    return CostProblem(sizes, (*tables, CostTable((), np.array([1.0, 2.0])), CostTable((n,), np.ones((2, 1)))))


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("seeds", [range(40), range(40, 80)])
def test_small_problems_are_solved(search, seeds):
    for seed in seeds:
        problem = random_problem(seed)
        weights = WEIGHTS[: problem.objectives]
        cost, _ = cheapest(problem, weights)
        tried = search(problem, weights, evaluations=6000, seed=seed)
        if np.isinf(cost):
            assert (tried.cost, tried.choice, tried.trace) == (np.inf, (), ())
        else:
            assert tried.cost == pytest.approx(cost, rel=1e-12, abs=0), seed
            assert tried.cost == weighed(problem, weights, tried.choice)


@pytest.mark.parametrize("search", SEARCHES)
def test_costs_are_those_of_the_choice_and_never_below_the_optimum(search):
    problem = chain()
    weights = (1.0, 0.5)
    cost, _ = cheapest(problem, weights)
    gaps = []
    for evaluations in (1, 2, 30, 1000, 40_000):
        tried = search(problem, weights, evaluations=evaluations, seed=3)
        assert tried.cost == weighed(problem, weights, tried.choice)
        # a generation is bred as a whole
        assert tried.evaluations <= evaluations + 50
        assert [point.evaluations for point in tried.trace] == sorted({point.evaluations for point in tried.trace})
        costs = [point.cost for point in tried.trace]
        assert costs == sorted(costs, reverse=True)
        assert costs[-1] == pytest.approx(tried.cost, rel=1e-9)
        gaps.append(tried.cost / cost - 1)
    assert min(gaps) > -1e-12
    assert gaps[1] > 0.01
    assert gaps[-1] < 1e-9


@pytest.mark.parametrize("search", SEARCHES)
def test_a_seed_decides_everything(search):
    problem = chain()
    first, again, other = (search(problem, (1.0, 1.0), evaluations=9000, seed=seed) for seed in (1, 1, 2))
    assert (first.cost, first.choice, first.evaluations) == (again.cost, again.choice, again.evaluations)
    assert [(p.evaluations, p.cost) for p in first.trace] == [(p.evaluations, p.cost) for p in again.trace]
    assert [p.cost for p in first.trace] != [p.cost for p in other.trace]


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_ends_in_time_or_at_a_cost(search):
    problem = chain()
    cost, _ = cheapest(problem, (1.0, 1.0))
    tried = search(problem, (1.0, 1.0), cpu_s=10.0, stop_at=cost * (1 + 1e-9))
    assert tried.cost == pytest.approx(cost, rel=1e-12)
    assert tried.trace[-1].cpu_s < 5
    short = search(problem, (1.0, 1.0), cpu_s=0.01)
    assert 0 < short.trace[-1].cpu_s < 1
    assert short.evaluations > 100
    assert np.isinf(search(problem, (1.0, 1.0), evaluations=0).cost)
    with pytest.raises(InputError, match="budget of a search"):
        search(problem, (1.0, 1.0))
    with pytest.raises(InputError, match="weights"):
        search(problem, (1.0,), evaluations=1)


def test_settings_change_the_search():
    problem = chain()
    plain = simulated_annealing(problem, (1.0, 1.0), evaluations=3000)
    cold = simulated_annealing(problem, (1.0, 1.0), evaluations=3000, cooling=Cooling(1e-9, 1e-12, 0.0, 1))
    assert plain.cost < cold.cost
    # without children of two parents, and none that differ from one, only random people are tried
    stuck = Evolution(crossed=0.0, mutations=0.0, patience=10**9)
    assert (
        genetic_search(problem, (1.0, 1.0), evaluations=3000).cost
        < genetic_search(problem, (1.0, 1.0), evaluations=3000, evolution=stuck).cost
    )


def test_the_best_of_a_generation_lives_on():
    flat, _ = flat_costs(chain(), (1.0, 1.0))
    n = 20
    choices, entries = np.zeros((n, len(flat.sizes)), np.int64), np.zeros((n, len(flat.firsts)), np.int64)
    now, then = (choices, entries, np.zeros(n)), (choices.copy(), entries.copy(), np.zeros(n))
    people = Population(*now, *then, choices[0].copy(), np.full(2, np.inf), random_state(0))
    settle(flat, people)
    # nearly all children are as good as random ones: without it the least cost would rise
    for generations in (1, 2, 1, 1):
        before = people.costs.min()
        breed(flat, people, Breeding(1, 0.5, 0.5, 50.0), generations)
        assert people.costs.min() <= before
    assert people.costs.min() == people.lowest[0]


def test_tables_are_folded_without_a_change_of_any_cost():
    for seed in range(30):
        problem = random_problem(seed)
        weights = WEIGHTS[: problem.objectives]
        flat, _ = flat_costs(problem, weights)
        rng = np.random.default_rng(seed)
        for _ in range(20):
            choice = rng.integers(0, problem.sizes)
            entries = [
                flat.firsts[t]
                + sum(
                    flat.scope_strides[place] * choice[flat.scope_variables[place]]
                    for place in range(flat.scope_starts[t], flat.scope_starts[t + 1])
                )
                for t in range(len(flat.firsts))
            ]
            total = flat.values[entries].sum()
            costs = problem.cost(choice[None, :])[0]
            if np.isinf(costs).any():
                assert total >= flat.penalty
            else:
                assert total == pytest.approx(costs @ weights, rel=1e-12)
                assert total < flat.penalty
