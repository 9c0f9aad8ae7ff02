"""Graphs of catalogue models with what only traced ones have: frozen weights, and weights that are made of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dovetail.graph import Kind, LayerGraph, ModelGraph, Operand, Operator, Role, Tensor
from dovetail.graph.operator import matrix_work
from dovetail.models import TracedModel, load, model_graph
from dovetail.models.graph_document import document_of_graph

Change = Callable[[LayerGraph], LayerGraph]


def changed_model(name: str, change: Change) -> TracedModel:
    """A catalogue model as if it had been traced, its layers changed."""
    model = load(name)
    graph = model_graph(model)
    changed = ModelGraph(name, {key: change(layer) for key, layer in graph.layers.items()}, graph.chain)
    sizes = {"hidden": model.hidden, "vocab": model.vocab, "max_seq_len": model.max_seq_len}
    return TracedModel(kind="traced", name=name, graph=document_of_graph(changed), **sizes)


def frozen_weights(is_frozen: Callable[[Tensor], bool]) -> Change:
    """Freezes some weights."""

    def change(layer: LayerGraph) -> LayerGraph:
        tensors = {
            name: replace(tensor, frozen=True) if tensor.role is Role.WEIGHT and is_frozen(tensor) else tensor
            for name, tensor in layer.tensors.items()
        }
        return replace(layer, tensors=tensors)

    return change


def product_of_weights(name: str, rank: int = 8) -> Change:
    """Makes a weight of two dims the product of two narrow ones, where a layer has it."""

    def change(layer: LayerGraph) -> LayerGraph:
        if name not in layer.tensors:
            return layer
        first, last = layer.tensors[name].dims
        pair = (Operand(f"{name}.u", (first, "rank")), Operand(f"{name}.v", ("rank", last)))
        weights = {each.tensor: Tensor(each.tensor, each.indices, Role.WEIGHT) for each in pair}
        made, work = Operand(name, (first, last)), matrix_work((first, "rank", last))
        product = Operator(f"{name}.made", Kind.CONTRACTION, "einsum", pair, (made,), work=work)
        readers = tuple(
            replace(o, saves=(*o.saves, name)) if any(i.tensor == name for i in o.inputs) else o
            for o in layer.operators
        )
        tensors = {**layer.tensors, **weights, name: Tensor(name, (first, last))}
        return replace(layer, sizes={**layer.sizes, "rank": rank}, tensors=tensors, operators=(product, *readers))

    return change
