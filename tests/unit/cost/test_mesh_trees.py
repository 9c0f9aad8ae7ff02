"""Cheapest trees and arborescences against trying all of them."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest

from dovetail.cost.mesh import DieMesh
from dovetail.cost.mesh.arborescence import cheapest_arborescence
from dovetail.cost.mesh.trees import cheapest_tree, comb, middle_of, spread_over


def reached(root: int, arcs: list[tuple[int, int]]) -> set[int]:
    found = {root}
    while more := {b for a, b in arcs if a in found} - found:
        found |= more
    return found


@pytest.mark.parametrize("seed", range(60))
def test_no_arborescence_is_cheaper(seed):
    draw = random.Random(seed)  # noqa: S311
    nodes = draw.randint(2, 6)
    pairs = [(a, b) for a in range(nodes) for b in range(1, nodes) if a != b]
    # the first die reaches all others, so that there is one
    arcs = [pair for pair in pairs if pair[0] == 0 or draw.random() < 0.7]
    costs = [draw.choice([0.0, 1.0, 2.0, draw.random(), 5.0 + 5.0 * (a == 0)]) for a, _ in arcs]
    into = [[i for i, (_, b) in enumerate(arcs) if b == node] for node in range(1, nodes)]
    best = min(
        sum(costs[i] for i in chosen)
        for chosen in product(*into)
        if len(reached(0, [arcs[i] for i in chosen])) == nodes
    )
    chosen = cheapest_arborescence(nodes, 0, arcs, costs)
    assert sorted(arcs[i][1] for i in chosen) == list(range(1, nodes))
    assert reached(0, [arcs[i] for i in chosen]) == set(range(nodes))
    assert sum(costs[i] for i in chosen) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(10))
def test_no_tree_is_cheaper(seed):
    draw = random.Random(seed)  # noqa: S311
    mesh = DieMesh(2, 3)
    prices = [draw.random() for _ in mesh.edges]
    spanning = [
        tree
        for tree in combinations(range(mesh.num_edges), mesh.num_dies - 1)
        if len(spread_over(mesh, tree, (0, 0), 1.0).links) == mesh.num_dies - 1
    ]
    best = min(spanning, key=lambda tree: sum(prices[edge] for edge in tree))
    assert cheapest_tree(mesh, prices, (1, 1)) == best


def test_free_trees_are_shallow():
    mesh = DieMesh(5, 5)
    assert spread_over(mesh, cheapest_tree(mesh, [0.0] * mesh.num_edges, (2, 2)), (2, 2), 1.0).depth == 4


def test_combs_have_one_spine():
    mesh = DieMesh(3, 4)
    tree = comb(mesh, row=1)
    assert len(tree) == 11
    assert {mesh.edges[edge][0][0] for edge in tree if mesh.edges[edge][0][0] == mesh.edges[edge][1][0]} == {1}
    assert spread_over(mesh, tree, middle_of(mesh, tree), 1.0).depth == 2 + 1
