"""Cost problems: what is refused, orders of elimination, and a chain large enough for every kernel."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.errors import InputError
from dovetail.mapping.elimination import CostProblem, CostTable, cheapest, frontier, through
from dovetail.mapping.elimination.tree import elimination_tree


def problem_of(*tables, sizes=(2, 3)):
    return CostProblem(sizes, tuple(CostTable(variables, np.array(costs, float)) for variables, costs in tables))


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (problem_of(), "has no costs"),
        (problem_of(((0,), [[1, 2]]), sizes=(2, 0)), "without options"),
        (problem_of(((2,), [[1, 2]])), "has the variables"),
        (problem_of(((0, 0), np.zeros((1, 2, 2)))), "has the variables"),
        (problem_of(((1,), [[1, 2]])), "has the shape"),
        (problem_of(((0,), [[1, -1]])), "negative or not a number"),
        (problem_of(((0,), [[1, np.nan]])), "negative or not a number"),
    ],
)
def test_what_is_no_cost_problem_is_refused(problem, said):
    with pytest.raises(InputError, match=said):
        cheapest(problem, [1.0])


def test_weights_limits_and_steps_are_checked():
    problem = problem_of(((0,), [[1, 2]]))
    for weights in ([1.0, 1.0], [-1.0], [np.inf]):
        with pytest.raises(InputError, match="weights"):
            through(problem, weights)
    with pytest.raises(InputError, match="epsilon"):
        frontier(problem, -0.1)
    with pytest.raises(InputError, match="most"):
        frontier(problem, most=[1.0, 1.0])


def test_a_chain_is_eliminated_without_a_joint_table_of_three():
    scopes = [(v, v + 1) for v in range(7)]
    tree = elimination_tree([3] * 8, scopes)
    assert max(len(bucket.separator) for bucket in tree.buckets) == 1
    assert sorted(table for bucket in tree.buckets for table in bucket.tables) == list(range(7))
    # with a ring two of them stay open
    ring = elimination_tree([3] * 8, [*scopes, (7, 0)], growth=2.0)
    assert max(len(bucket.separator) for bucket in ring.buckets) == 2


def test_large_tables_take_the_compiled_way_to_the_same_sums():
    rng = np.random.default_rng(2)
    sizes = (90, 100, 70, 110)
    scopes = [(0, 1), (2, 0), (2, 3), (3, 0), (0, 2, 3), (3, 1, 0), (1,)]
    # each order of axes is read along another one
    for turn in ([0, 1, 2], [1, 2, 0], [2, 0, 1]):
        tables = []
        for scope in scopes:
            scope = tuple(scope[a] for a in turn) if len(scope) == 3 else scope
            costs = rng.integers(0, 1000, (1, *(sizes[v] for v in scope))).astype(float)
            costs[:, rng.random(costs.shape[1:]) < 0.2] = np.inf
            tables.append(CostTable(scope, costs))
        problem = CostProblem(sizes, tuple(tables))
        marginals = through(problem, [1.0])
        cost, choice = cheapest(problem, [1.0])
        assert [marginal.min() for marginal in marginals] == [cost] * 4
        assert problem.cost(np.array([choice]))[0, 0] == cost
        # fixing an option leaves a problem with the least sum through it
        for option in (0, 37):
            fixed = problem.restricted([np.array([option]) if v == 2 else np.arange(n) for v, n in enumerate(sizes)])
            assert cheapest(fixed, [1.0])[0] == marginals[2][option]


def test_a_front_of_many_options_is_that_of_both_objectives():
    # seconds of a cut into parts against bytes of copies; the second variable pays for being cut differently
    parts = np.arange(1, 40.0)
    own = np.stack([120 / parts, 3 * parts])
    apart = np.abs(parts[:, None] - parts[None, :])
    problem = CostProblem(
        (39, 39),
        (CostTable((0,), own), CostTable((1,), own * 2), CostTable((0, 1), np.stack([apart, np.zeros_like(apart)]))),
    )
    every = problem.cost(np.stack(np.divmod(np.arange(39 * 39), 39), axis=1))
    best = [
        row for row in np.unique(every, axis=0) if not ((every <= row).all(axis=1) & (every < row).any(axis=1)).any()
    ]
    assert np.array_equal(frontier(problem).points, best)
    close = frontier(problem, 0.05)
    assert len(close.points) <= len(best)
    assert all((close.points <= row * 1.05).all(axis=1).any() for row in np.array(best))
