"""A graph as plain data: the same graph again, nothing said twice, and one sentence for a broken one."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.documents import parse_document, to_yaml, validate
from dovetail.errors import InputError
from dovetail.graph import ModelGraph
from dovetail.models import load, model_from, model_graph, names
from dovetail.models.graph_document import GraphSpec, document_of_graph
from dovetail.models.traced import TracedModel


def document(graph: ModelGraph) -> dict[str, Any]:
    return document_of_graph(graph).model_dump(mode="json", exclude_defaults=True)


def traced(name: str) -> dict[str, Any]:
    """A traced model file of a catalogue model's graph."""
    model = load(name)
    return {
        "kind": "traced", "name": model.name, "hidden": model.hidden, "vocab": model.vocab,
        "graph": document(model_graph(model)),
    }  # fmt: skip


DENSE, MIXED = traced("llama-3.2-1b"), traced("deepseek-v2-lite")


def in_order(graph: ModelGraph) -> list[Any]:
    layers = graph.layers.items()
    return [(name, list(layer.sizes), list(layer.tensors), layer.outputs) for name, layer in layers]


def test_every_model_of_the_catalogue_is_the_same_graph_again():
    for name in names():
        graph = model_graph(load(name))
        read = validate(GraphSpec, json.loads(json.dumps(document(graph))), name).graph(graph.name)
        assert read == graph, name
        assert in_order(read) == in_order(graph), name


def test_yaml_holds_the_same():
    for whole in (DENSE, MIXED):
        assert parse_document(to_yaml(whole), "model.yaml") == whole


def test_what_is_usual_is_left_out():
    block = MIXED["graph"]["layers"]["sparse"]
    assert block["tensors"]["x"] == ["batch", "seq", "hidden"]
    assert all("phase" not in operator for operator in block["operators"])
    assert len(json.dumps(DENSE)) < 12_000


def changed(path: str, value: Any, of: dict[str, Any] = DENSE) -> dict[str, Any]:
    """The document with another value at a place, or without it where the value is ...."""
    whole = copy.deepcopy(of)
    *parts, last = path.split(".")
    at: Any = whole
    for part in parts:
        at = at[int(part)] if isinstance(at, list) else at[part]
    if value is ...:
        del at[last]
    else:
        at[int(last) if isinstance(at, list) else last] = value
    return whole


(BLOCK,) = DENSE["graph"]["layers"].keys() - {"embedding", "head"}
LAYER = f"graph.layers.{BLOCK}"
OPERATORS = [operator["name"] for operator in DENSE["graph"]["layers"][BLOCK]["operators"]]
ATTENTION = OPERATORS.index("attention")
WRONG = [
    ("graph.chain", [], "graph.chain"),
    ("graph.chain.1.layer", "other", "graph.chain.1.layer: is other"),
    ("graph.chain.1.count", 0, "graph.chain.1.count"),
    ("graph.chain.1", {"layer": "head"}, f"{LAYER}: is used nowhere"),
    ("graph.chain.0", {"layer": BLOCK}, "graph.layers.embedding: is used nowhere"),
    ("graph.chain.0.count", 2, "graph.chain: does not have one embedding"),
    (f"{LAYER}.sizes.seq", 5, f"{LAYER}.sizes.seq"),
    (f"{LAYER}.sizes.hidden", 0, f"{LAYER}.sizes.hidden"),
    (f"{LAYER}.sizes.hidden", 5, "graph.chain: embedding hands on"),
    (f"{LAYER}.sizes.hidden", ..., "which is missing in sizes"),
    (f"{LAYER}.sizes.ffn", {"numerator": ["ffn"]}, f"{LAYER}.sizes: are incomplete"),
    (f"{LAYER}.sizes.ffn", {"numerator": ["seq"]}, "whose size follows from the job"),
    (f"{LAYER}.sizes.key_seq", {"numerator": ["seq"], "factor": "1/0"}, f"{LAYER}.sizes.key_seq.factor"),
    (f"{LAYER}.sizes.key_seq", {"numerator": ["seq"], "factr": "1"}, "did you mean 'factor'"),
    (f"{LAYER}.inputs", ["y"], f"{LAYER}.inputs: names y"),
    (f"{LAYER}.tensors.x", ["batch", "nowhere"], "dim nowhere, which is missing in sizes"),
    (f"{LAYER}.tensors.x", {"dims": ["batch", "seq", "hidden"], "role": "wieght"}, f"{LAYER}.tensors.x.role"),
    (f"{LAYER}.operators.0.inputs.0", "nothing", "operators.0.inputs: names nothing"),
    (f"{LAYER}.operators.0.outputs", [], f"{LAYER}.operators.0.outputs"),
    (f"{LAYER}.operators.0.kind", "sorcery", f"{LAYER}.operators.0.kind: is 'sorcery'"),
    (f"{LAYER}.operators.0.kind", "optimizer", "operators.0.kind: is optimizer, which the forward"),
    (f"{LAYER}.operators.0.name", OPERATORS[1], f"{LAYER}: two operators are called"),
    (f"{LAYER}.operators.0.saves", ["nothing"], "cannot save nothing"),
    (f"{LAYER}.operators.{ATTENTION}.mask", ..., f"operators.{ATTENTION}.mask: is missing"),
    (f"{LAYER}.operators.{ATTENTION}.work", [], f"operators.{ATTENTION}.work: are 0"),
    ("graph.layers.head.outputs", ["final_norm"], "graph.layers.head.outputs: have no loss"),
    ("hidden", ..., "hidden: is missing"),
    ("blocks", {}, "blocks: is not a field here"),
    ("approximated", {"blok": {}}, "approximated.blok: is no layer of the graph; it should be one of embedding"),
    ("approximated", {BLOCK: {"attn": "x"}}, f"approximated.{BLOCK}.attn: is no operator there"),
    ("fixed_seq_len", 2**21, "fixed_seq_len: is 2097152"),
]


@pytest.mark.parametrize(("path", "value", "named"), WRONG)
def test_a_broken_document_is_refused_by_its_place(path, value, named, refusal):
    assert named in refusal(model_from, changed(path, value), "model.yaml")


def test_sizes_that_double_without_end_are_refused(refusal):
    sizes: dict[str, Any] = {"d0": 2}
    sizes |= {f"d{n}": {"numerator": [f"d{n - 1}", f"d{n - 1}"]} for n in range(1, 60)}
    whole = changed(f"{LAYER}.sizes", DENSE["graph"]["layers"][BLOCK]["sizes"] | sizes)
    assert "is no size that a dim can have" in refusal(model_from, whole, "model.yaml")


def places(item: Any, path: str = "") -> list[str]:
    """Every place of a document."""
    if isinstance(item, dict):
        children = [(str(name), value) for name, value in item.items() if "." not in name]
    elif isinstance(item, list):
        children = [(str(number), value) for number, value in enumerate(item)]
    else:
        children = []
    inner = [place for name, value in children for place in places(value, f"{path}{name}.")]
    return [*(f"{path}{name}" for name, _ in children), *inner]


VALUES = st.sampled_from(
    (..., None, 0, 1, -3, 2**41, 0.5, "", "x", "seq", "hidden", "loss", [], ["x"], ["batch", "seq"], {}, {"dims": []})
)


@settings(max_examples=100)
@given(whole=st.sampled_from((DENSE, MIXED)), data=st.data(), value=VALUES)
def test_any_change_of_a_document_is_read_or_refused(whole, data, value):
    path = data.draw(st.sampled_from(places(whole)))
    if value is ... and path.rpartition(".")[2].isdigit():
        value = "x"
    try:
        model = model_from(changed(path, value, whole), "model.yaml")
    except InputError:
        return
    assert isinstance(model, TracedModel)
    model_graph(model).training_flops(1, 64)
