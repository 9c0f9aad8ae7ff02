"""The frontier of free layouts against every layout there is, each derived and profiled by itself."""

from __future__ import annotations

from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest
from free_layout_graphs import random_allowed, random_graph

from dovetail.mapping.layouts import LayoutSpace, Together, free_layouts, layer_problem
from free_layout_settings import costs_of, setting_of, tile_of

#: Tiles with the axes along which tokens are cut as sequences of a batch.
TILES = [tile_of(2, 2), tile_of(2, 2, ("cols.1",)), tile_of(2, 4, ("rows.1",)), tile_of(2, 4), tile_of(3, 2)]


def frontier_of(points: list[tuple[float, ...]]) -> np.ndarray:
    """Those that no other is at least as good as in everything, in order."""
    found = np.array(sorted({tuple(float(f"{x:.11e}") for x in point) for point in points}))
    kept = [p for p in found if not ((found <= p).all(axis=1) & (found < p).any(axis=1)).any()]
    return np.array(kept)


def check(seed: int, most_operators: int, most_layouts: int) -> int:
    """One random layer; how many layouts it has."""
    draw = Random(seed)  # noqa: S311
    graph, tile, together = random_graph(draw, most_operators), draw.choice(TILES), draw.choice(list(Together))
    setting = setting_of(graph, tile, batch=6, seq=96, zero_stage=draw.choice((0, 1, 3)))
    recompute, share = draw.random() < 0.7, 1.0
    stream = None if draw.random() < 0.5 else {axis: "seq" for axis in tile.names[:1] if axis not in tile.batch_axes}
    while True:
        space = LayoutSpace(
            stream=stream, allowed=random_allowed(draw, graph, share), recompute=recompute, together=together
        )
        problem = layer_problem(setting, tile, space)
        if prod(problem.problem.sizes) <= most_layouts:
            break
        share *= 0.85
        if share < 0.3:
            stream = {}
        recompute = recompute and share > 0.2
    every = [
        costs_of(setting, problem, np.array(choice)) for choice in product(*(range(n) for n in problem.problem.sizes))
    ]
    points = free_layouts(setting, [tile], space=space)
    found, expected = frontier_of([point.costs for point in points]), frontier_of(every)
    assert found.shape == expected.shape, (seed, found, expected)
    assert found == pytest.approx(expected, rel=1e-9)
    for point in points:
        assert any(np.allclose(point.costs, other, rtol=1e-9) for other in every)
    return len(every)


def test_tables_of_small_layers_add_up():
    for seed in range(24):
        draw = Random(seed)  # noqa: S311
        graph, tile = random_graph(draw, 5), draw.choice(TILES)
        setting = setting_of(graph, tile, batch=6, seq=96, zero_stage=draw.choice((0, 1, 3)))
        problem = layer_problem(setting, tile, LayoutSpace(together=draw.choice(list(Together))))
        for _ in range(8):
            choice = np.array([draw.randrange(size) for size in problem.problem.sizes])
            found = problem.problem.cost(choice[None])[0]
            assert found == pytest.approx(costs_of(setting, problem, choice), rel=1e-9), seed


@pytest.mark.parametrize("seed", range(20))
def test_the_frontier_is_that_of_every_layout(seed):
    check(seed, 5, 60)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 300, 10))
def test_the_frontier_is_that_of_every_layout_of_many_layers(first):
    layouts = [check(seed, 5, 1200) for seed in range(first, first + 10)]
    assert sum(layouts) > 1000
