"""Chains of layers, tied weights, bytes read and written, the optimizer step."""

import pytest

from dovetail.documents import validate
from dovetail.graph import (
    OPTIMIZERS,
    Element,
    GraphError,
    Kind,
    ModelGraph,
    Phase,
    Role,
    Run,
    bytes_read,
    bytes_written,
    optimizer_step,
    verify_chain,
)
from dovetail.graph.model import shared_weights
from dovetail.models import Model, model_graph, prediction_parameters

BLOCK = {
    "mixer": {"kind": "attention", "heads": 4, "kv_heads": 2, "head_dim": 16},
    "feed_forward": {"kind": "dense", "size": 256},
}


def small(**fields):
    document = {"name": "small", "hidden": 64, "vocab": 100, "blocks": {"block": BLOCK}}
    layers = [{"blocks": ["block"], "repeat": 3}]
    return model_graph(validate(Model, {**document, "layers": layers, **fields}, "small"))


def test_tied_tables_count_once_and_are_found():
    untied, tied = small(), small(head={"tied": True})
    assert untied.parameters() - tied.parameters() == 64 * 100
    assert [layer for layer, _ in shared_weights(tied)["token_table"]] == ["embedding", "head"]


def test_prediction_modules_share_both_tables():
    with_modules = small(multi_token_prediction={"modules": 2, "block": "block"})
    block = next(g for n, g in with_modules.layers.items() if n == "block")
    own = sum(w.points(block.fixed_sizes()) for w in block.weights())
    # per module: a block, a 2h -> h projection and three norms
    assert prediction_parameters(with_modules) == 2 * (own + 2 * 64 * 64 + 3 * 64)
    assert with_modules.parameters() - prediction_parameters(with_modules) == small().parameters()


def test_runs_must_fit_together():
    graph = small()
    assert verify_chain(graph).counts() == {"embedding": 1, "block": 3, "head": 1}
    with pytest.raises(GraphError, match="hands on"):
        verify_chain(ModelGraph("wrong", graph.layers, (Run("head", 1), Run("block", 1))))
    wide = validate(Model, {"name": "wide", "hidden": 128, "vocab": 100, "blocks": {"block": BLOCK},
                            "layers": [{"blocks": ["block"]}]}, "wide")  # fmt: skip
    mixed = {"block": graph.layers["block"], "other": model_graph(wide).layers["block"]}
    with pytest.raises(GraphError, match="hands on"):
        verify_chain(ModelGraph("wrong", mixed, (Run("block", 1), Run("other", 1))))


def test_bytes_of_operators():
    graph = small().layers["embedding"]
    sizes = graph.resolve(batch=2, seq=8)
    lookup = graph.operators[0]
    # a lookup reads the rows it needs, not the table
    assert bytes_read(lookup, graph.tensors, sizes) == 2 * 8 * (8 + 64 * 2)
    block = small().layers["block"]
    sizes = block.resolve(batch=2, seq=8)
    up = next(o for o in block.operators if o.name == "mlp.up")
    assert bytes_read(up, block.tensors, sizes) == 2 * (2 * 8 * 64 + 64 * 256)
    assert bytes_written(up, block.tensors, sizes) == 2 * 2 * 8 * 256


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizer_updates_every_weight_once(optimizer):
    block = small().layers["block"]
    step = optimizer_step(block, optimizer)
    assert len(step.operators) == len(list(block.weights()))
    assert {o.kind for o in step.operators} == {Kind.OPTIMIZER}
    assert {o.phase for o in step.operators} == {Phase.OPTIMIZER}
    states = [t for t in step.tensors.values() if t.role is Role.OPTIMIZER_STATE]
    kept = [1 + len(OPTIMIZERS[o.function].states) for o in step.operators]
    assert len(states) == sum(kept)
    assert {o.function for o in step.operators} == ({"muon", "adamw"} if optimizer == "muon" else {optimizer})
    assert {t.element for t in states} == {Element.FLOAT32}
