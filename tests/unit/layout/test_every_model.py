"""Every layer of every catalogue model lies on every kind of mesh; no work is lost, none done twice without need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import prod

import numpy as np
import pytest
from placed_layers import exact, local_sizes

from dovetail.graph import HALF_PRECISION, LayerGraph, Role, Unit, differentiate, flops, saved_bytes
from dovetail.graph.size import Size, total
from dovetail.layout import (
    PARTIAL,
    CollectiveKind,
    CollectivePhase,
    Mesh,
    PlacedOperator,
    Strategy,
    local_bytes,
    place_layer,
)
from dovetail.models import load, model_graph, names

MESH = Mesh(data=("d",), tensor=("t",), context=("c",), expert=("d",), expert_tensor=("t",), zero=("d", "c"))
FOLDED = Mesh(data=("z", "d"), tensor=("t", "g"), context=("c",), expert=("z", "g"), group=("g",), zero=("z",))
AXES = {"d": 2, "t": 3, "c": 5, "z": 7, "g": 2}
BATCH, SEQ = 2 * 7, 8190

STRATEGIES = {
    "data": Strategy(Mesh(data=("d",))),
    "tensor": Strategy(Mesh(tensor=("t",))),
    "sequence": Strategy(MESH, sequence_parallel=True),
    "ring, ZeRO-1": Strategy(MESH, sequence_parallel=True, context="ring", zero_stage=1),
    "Ulysses, ZeRO-2": Strategy(MESH, sequence_parallel=True, context="ulysses", zero_stage=2),
    "no sequence, ZeRO-3": Strategy(MESH, zero_stage=3),
    "DTensor, FSDP": Strategy(MESH, rule="dtensor", sequence_parallel=True, zero_stage=3, keep_gathered=True),
    "folded": Strategy(FOLDED, sequence_parallel=True, zero_stage=3),
    "folded, no sequence": Strategy(FOLDED, context="ring"),
}
#: Strategies that cut every product along every axis.
COMPLETE = {"data", "sequence", "ring, ZeRO-1", "Ulysses, ZeRO-2", "DTensor, FSDP"}


@cache
def layers(model: str) -> tuple[LayerGraph, ...]:
    return tuple(model_graph(load(model)).layers.values())


def sample(strategy: str) -> Iterator[LayerGraph]:
    """Each model under one strategy; `slow` takes every model under every strategy."""
    first = list(STRATEGIES).index(strategy)
    for model in names()[first :: len(STRATEGIES)]:
        yield from layers(model)


def axis_sizes(strategy: Strategy) -> dict[str, int]:
    return {axis: AXES[axis] for axis in strategy.mesh.axes}


def work(placed: PlacedOperator, sizes: dict[str, Size], axes: dict[str, int], unit: Unit) -> tuple[Fraction, Fraction]:
    """FLOPs of an operator whole, and of all chips together."""
    local = local_sizes(placed.operator, placed.shards, sizes, axes)
    return exact(flops(placed.operator, sizes, unit)), exact(flops(placed.operator, local, unit)) * prod(axes.values())


def check(graph: LayerGraph, name: str) -> None:
    """Derives a layer; its work, weights and collectives must make sense."""
    strategy = STRATEGIES[name]
    axes, sizes = axis_sizes(strategy), graph.resolve(batch=BATCH, seq=SEQ)
    placed = place_layer(graph, strategy)
    assert [p.operator for p in placed.forward] == list(graph.operators)
    assert [p.operator for p in placed.backward] == list(differentiate(graph).graph.operators)
    for operator in (*placed.forward, *placed.backward):
        assert all(d == PARTIAL or operator.operator.split(d) is not None for d in operator.shards.values())
        for unit in Unit:
            whole, together = work(operator, sizes, axes, unit)
            assert together >= whole, operator.operator.name
            assert unit is Unit.VECTOR or name not in COMPLETE or together == whole, operator.operator.name
    for weight in placed.weights:
        assert PARTIAL not in weight.use.as_dict().values()
        assert set(weight.use.placements) <= set(weight.home.placements)
    for collective in placed.collectives:
        size = collective.bytes(sizes, axes, HALF_PRECISION)
        assert isinstance(size, int | Fraction)
        assert size > 0
        assert collective.axes
        assert not collective.streamed or collective.kind is CollectiveKind.PERMUTE
    reduced = {c.tensor.name for c in placed.collectives if c.tensor.role in (Role.GRADIENT, Role.WEIGHT_GRADIENT)}
    gradients = differentiate(graph).gradients.values()
    assert {g for g in gradients if placed.written[g].partial} <= reduced


@pytest.mark.parametrize("name", STRATEGIES)
def test_layers_are_laid_out(name: str) -> None:
    for graph in sample(name):
        check(graph, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_all_layers_are_laid_out(name: str) -> None:
    for model in names():
        for graph in layers(model):
            check(graph, name)


@pytest.mark.parametrize("name", STRATEGIES)
def test_axes_of_one_chip_change_nothing(name: str) -> None:
    strategy = STRATEGIES[name]
    ones = dict.fromkeys(strategy.mesh.axes, 1)
    for graph in list(sample(name))[::4]:
        sizes, placed = graph.resolve(batch=BATCH, seq=SEQ), place_layer(graph, strategy)
        for operator in (*placed.forward, *placed.backward):
            assert local_sizes(operator.operator, operator.shards, sizes, ones) == sizes
        kept = exact(total(local_bytes(t, layout, sizes, ones, HALF_PRECISION) for t, layout in placed.saved))
        whole = exact(saved_bytes(graph, sizes))
        # an exchange (Ulysses, experts) leaves a tensor on both sides, each kept by the operator that saw it there
        twice = len(placed.saved) > len({t.name for t, _ in placed.saved})
        assert kept > whole if twice else kept == whole


def test_one_derivation_serves_arrays_of_degrees() -> None:
    graph = layers("llama-3.1-8b")[1]
    strategy = replace(STRATEGIES["sequence"], zero_stage=3)
    degrees = [(1, 1, 1), (2, 4, 8), (64, 8, 2)]
    placed, sizes = place_layer(graph, strategy), graph.resolve(batch=BATCH, seq=SEQ)
    arrays = {axis: np.array([d[i] for d in degrees], dtype=np.float64) for i, axis in enumerate(("d", "t", "c"))}
    for collective in placed.collectives:
        together = collective.bytes(sizes, arrays, HALF_PRECISION)
        apart = [collective.bytes(sizes, dict(zip(("d", "t", "c"), d, strict=True)), HALF_PRECISION) for d in degrees]
        assert np.all(np.asarray(together) == np.array(apart, dtype=np.float64))
    assert {c.phase for c in placed.collectives} == {CollectivePhase.FORWARD, CollectivePhase.BACKWARD}
