"""Importers of decoders with Llama's field names but other norms, feed-forwards or orders in a block."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.models.huggingface.classic_pieces import biased, dropout, only, plain, split_heads, uniform
from dovetail.models.huggingface.decoder import (
    BlockFields,
    Importer,
    assemble,
    dense,
    grouped_attention,
    hidden_size,
)
from dovetail.models.huggingface.dense_families import FULL, SLIDING, attention_spans, spanned
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.limits import MAX_HEADS
from dovetail.models.model import Model


def phi(reader: ConfigReader, name: str) -> Model:
    """Phi-1 to Phi-2: parallel halves, biases up to the head."""
    block = {
        "norm": "layer",
        "parallel": True,
        "shared_norm": True,
        "mixer": grouped_attention(reader, **biased(), **_head_norm(reader, default=False)),
        "feed_forward": plain(reader, reader.integer("intermediate_size"), default="gelu_new"),
    }
    return uniform(reader, name, block, head={"bias": True}, dropout=dropout(reader, "resid_pdrop", 0))


def persimmon(reader: ConfigReader, name: str) -> Model:
    """Persimmon: squared ReLU, normed queries and keys."""
    mixer = split_heads(reader, hidden_size(reader), rotary=True, **biased(), **_head_norm(reader, default=True))
    block = {
        "norm": "layer",
        "mixer": mixer,
        "feed_forward": plain(reader, reader.integer("intermediate_size"), default="relu2"),
    }
    return uniform(reader, name, block, dropout=dropout(reader, "hidden_dropout", 0))


def _head_norm(reader: ConfigReader, *, default: bool) -> BlockFields:
    return {"qk_norm": "head", "qk_norm_kind": "layer"} if reader.flag("qk_layernorm", default=default) else {}


def starcoder2(reader: ConfigReader, name: str) -> Model:
    """StarCoder 2: grouped queries, plain feed-forwards, a window in some sizes."""
    bias = reader.flag("use_bias", default=True)
    kv_heads = reader.integer("num_key_value_heads", default=2, high=MAX_HEADS)
    window = reader.optional("sliding_window")
    block = {
        "norm": "layer",
        "mixer": grouped_attention(reader, kv_heads=kv_heads, window=window, **biased(bias)),
        "feed_forward": plain(reader, reader.integer("intermediate_size"), default="gelu_pytorch_tanh", bias=bias),
    }
    return uniform(reader, name, block, tied=True, dropout=dropout(reader, "residual_dropout", 0))


def nemotron(reader: ConfigReader, name: str) -> Model:
    """Nemotron-3 8B to Nemotron-4 340B: squared ReLU, layer norms."""
    bias = reader.flag("mlp_bias", default=False)
    block = {
        "norm": "layer",
        "mixer": grouped_attention(reader, **biased(reader.flag("attention_bias", default=False))),
        "feed_forward": plain(reader, reader.integer("intermediate_size"), default="relu2", bias=bias),
    }
    return uniform(reader, name, block)


def stablelm(reader: ConfigReader, name: str) -> Model:
    """StableLM 2 and 3B-4E1T: layer norms around Llama's halves, in parallel in the 12B."""
    parallel = reader.flag("use_parallel_residual", default=False)
    kv_heads = reader.integer("num_key_value_heads", default=32, high=MAX_HEADS)
    bias = reader.flag("use_qkv_bias", default=False)
    mixer = split_heads(reader, hidden_size(reader), rotary=True, kv_heads=kv_heads, qkv_bias=bias)
    block = {
        "norm": "layer",
        "parallel": parallel,
        "shared_norm": parallel,
        "mixer": mixer | _own_head_norms(reader, "qk_layernorm"),
        "feed_forward": dense(reader),
    }
    return uniform(reader, name, block, dropout=dropout(reader, "hidden_dropout", 0))


def _own_head_norms(reader: ConfigReader, field: str) -> BlockFields:
    normalised = reader.flag(field, default=False)
    return {"qk_norm": "heads", "qk_norm_kind": "layer_no_bias"} if normalised else {}


def cohere(reader: ConfigReader, name: str) -> Model:
    """Command R: parallel halves under one norm without bias."""
    bias = biased(reader.flag("attention_bias", default=False))
    mixer = grouped_attention(reader, **bias, **_own_head_norms(reader, "use_qk_norm"))
    return uniform(reader, name, _command_block(reader, mixer), tied=True)


def cohere2(reader: ConfigReader, name: str) -> Model:
    """Command R7B, Command A: windowed layers with rotary positions, full layers without."""
    mixer = split_heads(reader, hidden_size(reader), **biased(reader.flag("attention_bias", default=False)))
    only(reader, "head_dim", mixer["head_dim"])
    mixer["kv_heads"] = reader.integer("num_key_value_heads", default=mixer["heads"], high=MAX_HEADS)
    window = reader.integer("sliding_window", default=4096)
    blocks = {
        FULL: _command_block(reader, mixer),
        SLIDING: _command_block(reader, mixer | {"rotary": True, "window": window}),
    }
    period = reader.integer("sliding_window_pattern", default=4)
    spans = attention_spans(reader, reader.layers(), period=period, window=window)
    return assemble(reader, name, blocks, spans, tied=True)


def _command_block(reader: ConfigReader, mixer: BlockFields) -> BlockFields:
    halves = {"mixer": mixer, "feed_forward": dense(reader)}
    return {"norm": "layer_no_bias", "parallel": True, "shared_norm": True} | halves


def olmo(reader: ConfigReader, name: str) -> Model:
    """OLMo 1: layer norms without weights."""
    bias = biased(reader.flag("attention_bias", default=False))
    block = {"norm": "plain_layer", "mixer": grouped_attention(reader, **bias), "feed_forward": dense(reader)}
    return uniform(reader, name, block)


def olmo2(reader: ConfigReader, name: str) -> Model:
    """OLMo 2: norms after each half and over all queries and keys."""
    return uniform(reader, name, _olmo2_block(reader))


def olmo3(reader: ConfigReader, name: str) -> Model:
    """OLMo 3: OLMo 2 with windows in three of four layers."""
    window = reader.integer("sliding_window", default=4096)
    spans = attention_spans(reader, reader.layers(), period=4, window=window)
    return assemble(reader, name, spanned(_olmo2_block(reader), window), spans)


def _olmo2_block(reader: ConfigReader) -> BlockFields:
    bias = biased(reader.flag("attention_bias", default=False))
    mixer = grouped_attention(reader, qk_norm="all", **bias)
    return {"norm": "rms", "norm_position": "after", "mixer": mixer, "feed_forward": dense(reader)}


#: `model_type` → importer.
VARIANTS: Mapping[str, Importer] = {
    "cohere": cohere,
    "cohere2": cohere2,
    "nemotron": nemotron,
    "olmo": olmo,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "persimmon": persimmon,
    "phi": phi,
    "stablelm": stablelm,
    "starcoder2": starcoder2,
}
