"""The number of canonical encodings equals a count over partitions of dies, for every linear operator and attention."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache

import pytest
from encoding_enumeration import count, partitions

from dovetail.graph import Kind, LayerGraph, Operator
from dovetail.graph.size import is_exact
from dovetail.layout.encoding.operator_space import OperatorSpace
from dovetail.models import load, model_graph

TILES = ((2, 2), (2, 4), (4, 4))
#: In CI tight sizes, where divisibility and dominated replication both bite.
CI_MODELS = ("gpt3-175b", "llama-3.1-70b", "deepseek-v3")
ALL_MODELS = (*CI_MODELS, "mixtral-8x7b", "llama-30b", "gpt-oss-20b", "qwen3-235b-a22b", "deepseek-v3.2")


@cache
def layers(model: str) -> tuple[LayerGraph, ...]:
    return tuple(model_graph(load(model)).layers.values())


def operators(model: str, batch: int, seq: int) -> Iterator[tuple[Operator, dict[str, int | Fraction]]]:
    """Every linear operator and attention; those with the same dims, sizes and operands once."""
    seen = set()
    for graph in layers(model):
        sizes = {d: s for d, s in graph.resolve(batch=batch, seq=seq).items() if is_exact(s)}
        for operator in graph.operators:
            if operator.kind not in (Kind.CONTRACTION, Kind.ATTENTION):
                continue
            indices = tuple(o.indices for o in (*operator.inputs, *operator.outputs))
            key = (operator.kind, indices, tuple(sizes[d] for d in operator.dims))
            if key not in seen:
                seen.add(key)
                yield operator, sizes


def check(model: str, batch: int, seq: int, tiles: tuple[tuple[int, int], ...]) -> int:
    checked = 0
    for operator, sizes in operators(model, batch, seq):
        for rows, cols in tiles:
            for dominated, expected in zip((True, False), count(operator, sizes, rows, cols), strict=True):
                space = OperatorSpace(operator, sizes, rows, cols, dominated=dominated)
                listed = list(space)
                assert space.count() == len(listed) == len(set(listed)) == expected, (operator.name, rows, cols)
                checked += 1
    return checked


def test_parts_along_an_axis_are_runs_or_strided() -> None:
    assert partitions(2) == ((0, 0), (0, 1))
    assert partitions(4) == ((0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 2, 3))


@pytest.mark.parametrize("model", CI_MODELS)
def test_counts_of_small_tiles(model: str) -> None:
    # a batch of 2 and an odd sequence: most dims run out on the larger tiles
    assert check(model, 2, 4094, ((2, 2), (2, 4))) > 20


@pytest.mark.parametrize("model", CI_MODELS)
def test_counts_of_a_large_tile(model: str) -> None:
    assert check(model, 4, 4096, ((4, 4),)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("model", ALL_MODELS)
@pytest.mark.parametrize(("batch", "seq"), [(1, 4096), (2, 4098), (16, 4096), (3, 8190), (1, 4097)])
def test_counts_of_every_operator(model: str, batch: int, seq: int) -> None:
    assert check(model, batch, seq, TILES) > 10
