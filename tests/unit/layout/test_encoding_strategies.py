"""Named strategies written in the encoding: read back, they cut, send and keep what they did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod

import pytest
from placed_layers import mixture

from dovetail.errors import InputError
from dovetail.graph import Backward, LayerGraph, differentiate
from dovetail.layout import Collective, Mesh, Strategy, place_layer
from dovetail.layout.encoding import (
    AxesOnTile,
    Factor,
    MeshAxis,
    Strings,
    as_strategy,
    decode,
    stream_shards,
    tile_axes,
)
from dovetail.layout.encoding.named import encode_strategy
from dovetail.layout.encoding.rules import operator_violations
from dovetail.models import load, model_graph, names

MESH = Mesh(data=("d",), tensor=("t",), context=("c",), expert=("d",), expert_tensor=("t",), zero=("d", "c"))
FOLDED = Mesh(data=("z", "d"), tensor=("t", "g"), context=("c",), expert=("z", "g"), group=("g",), zero=("z",))

STRATEGIES = {
    "data": Strategy(Mesh(data=("d",))),
    "Megatron": Strategy(Mesh(tensor=("t",), data=("d",))),
    "sequence": Strategy(MESH, sequence_parallel=True),
    "ZeRO-1": Strategy(Mesh(data=("d",), zero=("d",)), zero_stage=1),
    "ZeRO-3": Strategy(Mesh(data=("z", "d"), zero=("z",)), zero_stage=3),
    "ring, ZeRO-1": Strategy(MESH, sequence_parallel=True, context="ring", zero_stage=1),
    "Ulysses, ZeRO-2": Strategy(MESH, sequence_parallel=True, context="ulysses", zero_stage=2),
    "experts, ZeRO-3": Strategy(MESH, zero_stage=3),
    "DTensor, FSDP": Strategy(MESH, rule="dtensor", sequence_parallel=True, zero_stage=3, keep_gathered=True),
    "folded experts": Strategy(FOLDED, sequence_parallel=True, zero_stage=3),
    "more chips than key heads": Strategy(FOLDED, context="ring"),
}
MODELS = ("gpt3-175b", "llama-3.1-70b", "deepseek-v3", "mixtral-8x7b", "opt-350m")


@cache
def layers(model: str) -> tuple[tuple[LayerGraph, Backward], ...]:
    return tuple((graph, differentiate(graph)) for graph in model_graph(load(model)).layers.values())


def on_tile(strategy: Strategy) -> AxesOnTile:
    """The context along the rows, so that a ring takes one hop; everything else along the columns."""
    axes = sorted(strategy.mesh.axes, key="ctgzd".index)
    return AxesOnTile(
        tuple((a, 2) for a in axes if a == "c"), tuple((a, 4 if a == "d" else 2) for a in axes if a != "c")
    )


def sent(collectives: tuple[Collective, ...], name: Callable[[str], str]) -> Counter[object]:
    """Everything a collective says, with axes under other names, in any order."""
    return Counter(
        (
            c.kind, tuple(sorted(name(a) for a in c.axes)), c.tensor.name, tuple(sorted(name(a) for a in c.sharded_by)),
            c.user, c.phase, c.values, c.streamed,
        )
        for c in collectives
    )  # fmt: skip


def check(graph: LayerGraph, backward: Backward, strategy: Strategy) -> None:
    on = on_tile(strategy)
    named, axes = on.names(), on.axes()
    encoded = encode_strategy(graph, strategy, on, backward)
    for operator in graph.operators:
        expected = {named[a]: d for a, d in strategy.shard(operator).items() if operator.split(d) is not None}
        assert decode(operator, encoded[operator.name].forward, axes) == expected, operator.name
    stream = {named[a]: dim for a, dim in strategy.stream_shard().items()}
    again = as_strategy(
        graph, encoded, axes, stream=stream, rule=strategy.rule, keep_gathered=strategy.keep_gathered, backward=backward
    )
    one, two = place_layer(graph, strategy, backward), place_layer(graph, again, backward)
    for before, after in zip((*one.forward, *one.backward), (*two.forward, *two.backward), strict=True):
        assert {named[a]: d for a, d in before.shards.items()} == after.shards, before.operator.name
    assert sent(one.collectives, named.__getitem__) == sent(two.collectives, str)
    for weight, same in zip(one.weights, two.weights, strict=True):
        assert {named[a]: d for a, d in weight.home.placements} == same.home.as_dict()
    kept = sorted((t.name, sorted((named[a], d) for a, d in layout.placements)) for t, layout in one.saved)
    assert kept == sorted((t.name, sorted(layout.placements)) for t, layout in two.saved)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("model", MODELS)
def test_a_named_strategy_reads_back(name: str, model: str) -> None:
    for graph, backward in layers(model):
        check(graph, backward, STRATEGIES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_model_under_a_named_strategy_reads_back(name: str) -> None:
    for model in names():
        for graph, backward in layers(model):
            check(graph, backward, STRATEGIES[name])


def test_a_block_says_how_the_stream_lies() -> None:
    for name, strategy in STRATEGIES.items():
        on = on_tile(strategy)
        for graph, backward in layers("llama-3.1-70b")[1:]:
            expected = {on.names()[a]: dim for a, dim in strategy.stream_shard().items()}
            assert stream_shards(graph, encode_strategy(graph, strategy, on, backward), on.axes()) == expected, name


def test_strings_of_megatron() -> None:
    """Written down by hand: 4 tensor-parallel dies along a row, 2 copies along the columns."""
    strategy = Strategy(Mesh(tensor=("t",), data=("d",), zero=("d",)), zero_stage=1)
    graph = layers("llama-3.1-70b")[1][0]
    encoded = encode_strategy(graph, strategy, AxesOnTile((("d", 2),), (("t", 4),)))
    batch = (Factor(2, "batch"),)
    assert encoded["query"].forward == Strings(batch, (Factor(4, "kv_heads"),))
    assert encoded["attention"].forward == Strings(batch, (Factor(4, "kv_heads"),))
    assert encoded["mlp.down"].forward == Strings(batch, (Factor(4, "ffn"),))
    assert encoded["mixer_residual"].forward == Strings(batch, (Factor(4, "replicate"),))
    assert encoded["mlp.down"].optimizer.sharded == ((MeshAxis.ROWS, 0),)
    assert encoded["mlp.down"].weights.sharded == ()
    assert encoded["mixer_residual"].optimizer.sharded == ()
    assert encoded["mlp.down"].input_gradient is None


def test_a_ring_streams_keys_and_values() -> None:
    strategy = Strategy(Mesh(context=("c",)), context="ring")
    encoded = encode_strategy(layers("llama-3.1-70b")[1][0], strategy, AxesOnTile((("c", 4),)))
    assert encoded["attention"].forward == Strings((Factor(4, "seq", True),))
    assert encoded["query"].forward == Strings((Factor(4, "seq"),))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_named_strategy_breaks_no_rule(name: str) -> None:
    on = on_tile(STRATEGIES[name])
    rows, cols = (prod(size for _, size in axes) for axes in (on.rows, on.cols))
    # query groups are cut only in models that have them
    models = ("llama-3.1-70b", "mixtral-8x7b") if STRATEGIES[name].mesh.group else MODELS
    for model in models:
        for graph, backward in layers(model):
            encoded = encode_strategy(graph, STRATEGIES[name], on, backward)
            for operator in graph.operators:
                sizes = graph.resolve(batch=64, seq=8192)
                found = operator_violations(operator, sizes, encoded[operator.name].forward, rows, cols)
                assert [str(v) for v in found] == []


def test_experts_lie_along_the_data_axis() -> None:
    """And are cut there, so ZeRO has nothing to shard."""
    strategy = Strategy(Mesh(data=("d",), expert=("d",), zero=("d",)), zero_stage=1)
    encoded = encode_strategy(mixture()["block"], strategy, AxesOnTile((("d", 4),)))
    assert encoded["expert.up"].forward == Strings((Factor(4, "experts"),))
    assert encoded["dispatch"].forward == Strings((Factor(4, "batch"),))
    assert encoded["expert.up"].optimizer.sharded == ()
    assert encoded["query"].optimizer.sharded == ((MeshAxis.ROWS, 0),)


def test_axes_must_lie_on_the_tile_and_nest() -> None:
    graph = layers("llama-3.1-70b")[1][0]
    with pytest.raises(InputError, match="its axis t is not on the tile"):
        encode_strategy(graph, Strategy(Mesh(tensor=("t",))), AxesOnTile())
    two, three = Factor(2, "batch"), Factor(3, "seq")
    with pytest.raises(InputError, match="groups of 2 and 3 dies do not nest"):
        tile_axes([Strings((two, three)), Strings((three, two))])
    assert tile_axes([Strings((two, three)), Strings((two, Factor(3, "ffn")), (two,))]).sizes() == {
        "rows.1": 2, "rows.2": 3, "cols.1": 2,
    }  # fmt: skip


def test_homes_no_zero_stage_has_are_refused() -> None:
    graph = layers("llama-3.1-70b")[1][0]
    strategy = STRATEGIES["ZeRO-1"]
    encoded = encode_strategy(graph, strategy, on_tile(strategy))
    changed = {n: replace(o, weights=o.optimizer, optimizer=o.weights) for n, o in encoded.items()}
    with pytest.raises(InputError, match="shards weights or gradients along other factors than optimizer state"):
        as_strategy(graph, changed, on_tile(strategy).axes())
