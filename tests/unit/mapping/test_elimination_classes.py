"""Options that cost the same are one class, and options no cheapest choice needs are dropped: the answer stays."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.errors import InputError
from dovetail.mapping.elimination import CostProblem, CostTable, cheapest, frontier, messages, min_plus, needed_options
from dovetail.mapping.elimination.messages import Messages, through, tree_of
from dovetail.mapping.elimination.tree import split_tree
from dovetail.mapping.elimination.tree_messages import TreeMessages
from small_cost_problems import every_choice, random_problem


def classed(seed: int) -> tuple[CostProblem, CostProblem]:
    """A random problem some of whose tables tell only classes of options apart, and the same with all written out."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed)
    by_class: list[CostTable] = []
    by_option: list[CostTable] = []
    for table in problem.tables:
        classes: list[tuple[int, ...] | None] = []
        few, every = table.costs, table.costs
        for axis, variable in enumerate(table.variables, 1):
            size = problem.sizes[variable]
            number = int(rng.integers(1, size + 1))
            if rng.random() < 0.4:
                classes.append(None)
                continue
            drawn = [*range(number), *rng.integers(number, size=size - number).tolist()]
            classes.append(tuple(drawn))
            few = np.take(few, range(number), axis=axis)
            every = np.take(every, drawn, axis=axis)
        by_class.append(CostTable(table.variables, few, tuple(classes)))
        by_option.append(CostTable(table.variables, every))
    return CostProblem(problem.sizes, tuple(by_class)), CostProblem(problem.sizes, tuple(by_option))


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_classes_cost_what_their_options_cost(first):
    for seed in range(first, first + 30):
        few, every = classed(seed)
        choices, costs = every_choice(every)
        weights = np.arange(1.0, 1.0 + every.objectives)
        if len(choices):
            assert np.array_equal(few.cost(choices), every.cost(choices))
        lowest, choice = cheapest(few, weights)
        assert lowest == pytest.approx((costs @ weights).min() if len(choices) else np.inf, rel=1e-12)
        assert len(choice) == (len(every.sizes) if len(choices) else 0)
        for found, expected in zip(through(few, weights), through(every, weights), strict=True):
            assert found == pytest.approx(expected, rel=1e-12)


def test_the_front_of_a_problem_with_classes_is_that_of_its_options():
    for seed in range(24):
        few, every = classed(seed)
        found, expected = frontier(few), frontier(every)
        assert found.points == pytest.approx(expected.points, rel=1e-11), seed
        assert found.choices.shape == expected.choices.shape
        if len(found.choices):
            assert every.cost(found.choices) == pytest.approx(found.points, rel=1e-11)


def test_classes_of_another_number_of_options_are_refused():
    table = CostTable((0,), np.ones((1, 3)), ((0, 1, 1),))
    with pytest.raises(InputError, match="has the shape"):
        cheapest(CostProblem((3,), (table,)), [1.0])
    with pytest.raises(InputError, match="classes of other options"):
        cheapest(CostProblem((4,), (table,)), [1.0])


@pytest.fixture
def always_bounded(monkeypatch):
    """Even the smallest problems drop options by bounds, from joint tables as small as can be."""
    monkeypatch.setattr(messages, "EASY_ENTRIES", 0)
    monkeypatch.setattr(needed_options, "EASY_ENTRIES", 6)
    monkeypatch.setattr(needed_options, "BOUND_ENTRIES", 4)
    monkeypatch.setattr(min_plus, "BLOCK_ENTRIES", 7)


@pytest.mark.usefixtures("always_bounded")
def test_the_least_sum_without_options_that_are_not_needed():
    for seed in range(300):
        problem = random_problem(seed)
        choices, costs = every_choice(problem)
        weights = np.arange(1.0, 1.0 + problem.objectives)
        lowest, choice = cheapest(problem, weights)
        if not len(choices):
            assert (lowest, choice) == (np.inf, ())
            continue
        assert lowest == pytest.approx((costs @ weights).min(), rel=1e-11), seed
        (row,) = np.flatnonzero((choices == choice).all(axis=1))
        assert costs[row] @ weights == pytest.approx(lowest, rel=1e-11), seed


def test_copies_of_variables_give_lower_bounds_of_every_option():
    tighter = 0
    for seed in range(60):
        problem = random_problem(seed)
        weights = np.ones(problem.objectives)
        exact, tree = through(problem, weights), tree_of(problem)
        split = split_tree(tree, [table.variables for table in problem.tables], 6)
        bound = TreeMessages(problem, split, weights)
        bound.send_down()
        for found, expected in zip(bound.marginals(), exact, strict=True):
            assert (found <= expected * (1 + 1e-12)).all(), seed
        tighter += len(split.buckets) > len(tree.buckets)
        assert bound.lowest <= Messages(problem, tree, weights).lowest * (1 + 1e-12)
    assert tighter > 10
