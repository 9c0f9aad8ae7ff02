"""All layouts of all layer classes along the axes of a tile, if they are few: small spaces are searched completely."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product

import numpy as np

from dovetail.arrays import Ints
from dovetail.graph import LayerGraph
from dovetail.layout.encoding import Strings, TileLayouts
from dovetail.mapping.layouts.layer_problem import LayerProblem, tile_strings

#: The problem of a layer class whose residual stream lies as given, or freely.
ProblemOf = Callable[[LayerGraph, Mapping[str, str] | None], LayerProblem]


def every_layout(
    main: LayerGraph, others: Mapping[str, LayerGraph], problem_of: ProblemOf, most: int
) -> tuple[TileLayouts, ...] | None:
    """Every layout of the main class with all of the others that follow its stream; None if more than `most`."""
    problem = problem_of(main, None)
    if math.prod(problem.problem.sizes) > most:
        return None
    followers: dict[tuple[tuple[str, str], ...], list[LayerProblem]] = {}
    layouts: list[TileLayouts] = []
    for choice in _choices(problem):
        stream = problem.stream(choice)
        key = tuple(sorted(stream.items()))
        if key not in followers:
            followers[key] = [problem_of(graph, stream) for graph in others.values()]
        if len(layouts) + math.prod(math.prod(each.problem.sizes) for each in followers[key]) > most:
            return None
        tile, strings = problem.tile, problem.strings(choice)
        for classes in _classes(list(others), followers[key]):
            lying = tile_strings(tile, stream)
            layouts.append(TileLayouts.of(tile.rows, tile.cols, lying, {main.name: strings, **classes}))
    return tuple(dict.fromkeys(layouts))


def _choices(problem: LayerProblem) -> Iterator[Ints]:
    for options in product(*(range(size) for size in problem.problem.sizes)):
        choice = np.array(options, np.int64)
        if np.isfinite(problem.problem.cost(choice[None])).all():
            yield choice


def _classes(names: list[str], problems: list[LayerProblem]) -> Iterator[dict[str, Mapping[str, Strings]]]:
    for choices in product(*(list(_choices(problem)) for problem in problems)):
        yield {name: problem.strings(choice) for name, problem, choice in zip(names, problems, choices, strict=True)}
