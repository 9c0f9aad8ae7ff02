"""Model description → graph: each block becomes a layer class, analysed once however often it repeats."""

from __future__ import annotations

from dataclasses import field
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.graph import LayerBuilder, LayerGraph, ModelGraph, Role, Run, verify_chain
from dovetail.graph.count import parameters, whole
from dovetail.models.assembly import STREAM, Settings, add, drop, normalise, project
from dovetail.models.block import Block
from dovetail.models.graph_document import GraphSpec
from dovetail.models.model import EMBEDDING, HEAD, PREDICTION, Model
from dovetail.models.traced import AnyModel, TracedModel

if TYPE_CHECKING:
    from dovetail.models.adapters import Adapters

TOKEN_TABLE, OUTPUT_TABLE = "token_table", "output_table"


def model_graph(model: AnyModel, *, fused_attention: bool = True, adapters: Adapters | None = None) -> ModelGraph:
    """The model as a verified chain of layer classes, with adapters where it has some."""
    if isinstance(model, TracedModel):
        model.check_attention("model", fused=fused_attention)
        plain = _read(_Traced(model.name, _document(_SpecKey(id(model.graph), model.graph)), model.graph))
    else:
        plain = _build(_Request(model.model_dump_json(), fused_attention, model))
    return plain if adapters is None else _with_adapters(_Adapted(id(plain), adapters, plain))


def check_description(model: AnyModel, where: str) -> None:
    """Refuses the description of another model than was traced: launch files would train that one."""
    if not isinstance(model, TracedModel) or model.described is None:
        return
    own, traced = model_graph(model.described), model_graph(model)
    figures = (
        ("hidden", model.described.hidden, model.hidden),
        ("vocab", model.described.vocab, model.vocab),
        ("parameters", own.parameters(), traced.parameters()),
    )
    for figure, ours, theirs in figures:
        if ours != theirs:
            what = f"is another model than the graph: {figure} is {ours:,}, and the graph's {theirs:,}"
            raise InputError(where, what, "describe the traced model or leave it out")


@frozen
class _Adapted:
    """A graph, known by its identity, and what is added to it."""

    identity: int
    adapters: Adapters
    graph: ModelGraph = field(compare=False)


@lru_cache(maxsize=64)
def _with_adapters(request: _Adapted) -> ModelGraph:
    return request.adapters.model(request.graph)


@frozen
class _SpecKey:
    """A graph of a file, known by its identity: it can be long, and is asked for again and again."""

    identity: int
    spec: GraphSpec = field(compare=False)


@lru_cache(maxsize=64)
def _document(held: _SpecKey) -> str:
    return held.spec.model_dump_json()


@frozen
class _Traced:
    """A graph of a file, known by what it says; equal ones share one graph."""

    name: str
    document: str
    spec: GraphSpec = field(compare=False)


@lru_cache(maxsize=64)
def _read(request: _Traced) -> ModelGraph:
    return request.spec.graph(request.name)


@frozen
class _Request:
    """What a graph depends on; equal descriptions share one graph."""

    document: str
    fused_attention: bool
    model: Model = field(compare=False)


@lru_cache(maxsize=256)
def _build(request: _Request) -> ModelGraph:
    model = request.model
    settings = Settings(fused_attention=request.fused_attention, dropout=model.dropout)
    layers = {EMBEDDING: _embedding(model, settings)}
    for name, block in model.blocks.items():
        layers[name] = _block(_BlockRequest(name, model.hidden, repr(block), settings, block))
    layers[HEAD] = _head(model)
    order = [Run(EMBEDDING, 1)]
    order += [Run(name, len(list(run))) for name, run in groupby(_blocks_in_order(model))]
    order.append(Run(HEAD, 1))
    if model.multi_token_prediction is not None:
        layers[PREDICTION] = _prediction(model, settings)
        order.append(Run(PREDICTION, model.multi_token_prediction.modules))
    used = {run.layer for run in order}
    return verify_chain(ModelGraph(model.name, {n: g for n, g in layers.items() if n in used}, tuple(order)))


@frozen
class _BlockRequest:
    """What a block's layer depends on: models that differ in depth alone share it, and all that is derived from it."""

    name: str
    hidden: int
    document: str
    settings: Settings
    block: Block = field(compare=False)


@lru_cache(maxsize=1024)
def _block(request: _BlockRequest) -> LayerGraph:
    builder = LayerBuilder(request.name, {"hidden": request.hidden})
    return builder.build(request.block.build(builder, builder.input("x", STREAM), request.settings))


def _blocks_in_order(model: Model) -> list[str]:
    return [name for part in model.layers for _ in range(part.repeat) for name in part.blocks]


def prediction_parameters(graph: ModelGraph) -> int:
    """Parameters of the multi-token-prediction modules beyond the tables they share."""
    if PREDICTION not in graph.layers:
        return 0
    layer = graph.layers[PREDICTION]
    sizes = layer.fixed_sizes()
    shared = sum(whole(w.points(sizes)) for w in layer.weights() if w.tied)
    return graph.counts()[PREDICTION] * (parameters(layer) - shared)


def _stream(model: Model, name: str) -> tuple[LayerBuilder, str]:
    builder = LayerBuilder(name, {"hidden": model.hidden})
    return builder, builder.input("x", STREAM)


def _token_table(model: Model, builder: LayerBuilder, *, tied: bool) -> str:
    builder.size("vocab", model.vocab)
    width = "hidden"
    if model.embedding.width is not None:
        width = builder.size("embedding_width", model.embedding.width)
    return builder.weight("token_table", ("vocab", width), tied=TOKEN_TABLE if tied else "")


def _embedding(model: Model, settings: Settings) -> LayerGraph:
    builder = LayerBuilder(EMBEDDING, {"hidden": model.hidden})
    ids = builder.input("tokens", STREAM[:2], Role.INDEX)
    shared = model.head.tied or model.multi_token_prediction is not None
    table = _token_table(model, builder, tied=shared)
    width = builder.tensors[table].dims[-1]
    stream = builder.embedding("embedded", table, ids, (*STREAM[:2], width))
    if width != "hidden":
        stream = project(builder, "embedding_up", stream, ("hidden",), over=(width,))
    if model.embedding.positions is not None:
        rows = builder.size("positions", model.embedding.positions)
        stream = _add_table(builder, "position", rows, builder.input("position_ids", STREAM[1:2], Role.INDEX), stream)
    if model.embedding.token_types is not None:
        rows = builder.size("token_types", model.embedding.token_types)
        stream = _add_table(
            builder, "token_type", rows, builder.input("token_type_ids", STREAM[:2], Role.INDEX), stream
        )
    if model.embedding.norm is not None:
        stream = normalise(builder, "embedding_norm", stream, model.embedding.norm)
    return builder.build(drop(builder, "embedding_dropout", stream, settings))


def _add_table(builder: LayerBuilder, name: str, rows: str, ids: str, stream: str) -> str:
    table = builder.weight(f"{name}_table", (rows, "hidden"))
    embedded = builder.embedding(f"{name}_embedded", table, ids, (*builder.tensors[ids].dims, "hidden"))
    return add(builder, f"{name}_added", stream, embedded)


def _head(model: Model) -> LayerGraph:
    builder, stream = _stream(model, HEAD)
    if model.head.norm is not None:
        final = normalise(builder, "final_norm", stream, model.head.norm)
    else:
        final = stream
    loss = _logits_and_loss(model, builder, final)
    # prediction modules go on from the stream the head read
    return builder.build(*((loss, stream) if model.multi_token_prediction is not None else (loss,)))


def _logits_and_loss(model: Model, builder: LayerBuilder, stream: str) -> str:
    builder.size("vocab", model.vocab)
    if model.head.transform:
        out = builder.size("transformed", model.hidden)
        stream = project(builder, "transform", stream, (out,), bias=True)
        stream = builder.elementwise("transform_activation", model.head.transform_activation, stream)
        stream = normalise(builder, "transform_norm", stream, "layer", over=(out,))
    if model.head.tied:
        table = builder.tensors.get("token_table")
        name = table.name if table is not None else _token_table(model, builder, tied=True)
        width = builder.tensors[name].dims[-1]
        if width == "embedding_width":
            stream = project(builder, "embedding_down", stream, (width,), over=builder.tensors[stream].dims[2:])
    else:
        tied = OUTPUT_TABLE if model.multi_token_prediction is not None else ""
        name, width = builder.weight("output_table", ("vocab", "hidden"), tied=tied), "hidden"
    source = builder.use(stream, {builder.tensors[stream].dims[-1]: width})
    logits = builder.contraction("logits", source, name, (*STREAM[:2], "vocab"))
    if model.head.bias:
        logits = builder.elementwise("logits.biased", "add", logits, builder.weight("logits.bias", ("vocab",)))
    if model.head.softcap is not None:
        logits = builder.elementwise("logits.softcap", "softcap", logits)
    labels = builder.input("labels", STREAM[:2], Role.INDEX)
    return builder.loss("loss", logits, labels, "vocab")


def _prediction(model: Model, settings: Settings) -> LayerGraph:
    assert model.multi_token_prediction is not None
    builder, stream = _stream(model, PREDICTION)
    ids = builder.input("next_tokens", STREAM[:2], Role.INDEX)
    table = _token_table(model, builder, tied=True)
    embedded = builder.embedding("embedded", table, ids, STREAM)
    kind = model.head.norm or "rms"
    left = normalise(builder, "stream_norm", stream, kind)
    right = normalise(builder, "embedded_norm", embedded, kind)
    both = builder.size("both", 2 * model.hidden)
    joined = builder.movement("joined", "concatenate", (left, right), (*STREAM[:2], both), along=("hidden", both))
    merged = project(builder, "merge", joined, ("hidden",), over=(both,))
    out = model.blocks[model.multi_token_prediction.block].build(builder, merged, settings)
    final = normalise(builder, "final_norm", out, kind)
    return builder.build(_logits_and_loss(model, builder, final), out)
