"""What most decoder configs share: sizes, heads, activation, layers in order, head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

from dovetail.documents import validate
from dovetail.models.huggingface.constants import (
    attention_constants,
    constants,
    embedding_scale,
    logit_constants,
    routed_scale,
)
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.limits import MAX_HEADS, MAX_TOKENS, MAX_VOCABULARY
from dovetail.models.model import Model

#: `hidden_act` → the activation of a plain and of a gated feed-forward.
ACTIVATIONS: Mapping[str, tuple[str, str | None]] = {
    "silu": ("silu", "swiglu"),
    "swish": ("silu", "swiglu"),
    "gelu": ("gelu", "geglu"),
    "gelu_new": ("gelu_tanh", "geglu_tanh"),
    "gelu_fast": ("gelu_tanh", "geglu_tanh"),
    "gelu_pytorch_tanh": ("gelu_tanh", "geglu_tanh"),
    "quick_gelu": ("quick_gelu", None),
    "relu": ("relu", "reglu"),
    "relu2": ("relu2", None),
    "swigluoai": ("silu", "swiglu_clamped"),
}

#: A block, or a half of one, as a model file has it.
BlockFields = dict[str, Any]
Importer = Callable[[ConfigReader, str], Model]


def activation(reader: ConfigReader, *, gated: bool, name: str = "hidden_act", default: str = "silu") -> str:
    """The activation's name in a model file."""
    choices = [n for n, (_, form) in ACTIVATIONS.items() if form is not None or not gated]
    plain, form = ACTIVATIONS[reader.text(name, choices, default=default)]
    return form if gated and form is not None else plain


def hidden_size(reader: ConfigReader, *names: str) -> int:
    """The width of the residual stream."""
    return reader.integer(*(names or ("hidden_size",)))


def grouped_attention(reader: ConfigReader, **options: object) -> BlockFields:
    """Grouped-query attention from the usual fields; options override or add fields."""
    heads = reader.integer("num_attention_heads", high=MAX_HEADS)
    kv_heads = reader.integer("num_key_value_heads", default=heads, high=MAX_HEADS)
    reader.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    head_dim = reader.optional("head_dim")
    if head_dim is None:
        hidden = hidden_size(reader)
        reader.divides("num_attention_heads", heads, "hidden_size", hidden)
        head_dim = hidden // heads
    fields: BlockFields = {"kind": "attention", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    return without_none(fields | options)


def dense(reader: ConfigReader, *, size: int | None = None, gated: bool = True, **options: object) -> BlockFields:
    """A dense feed-forward from the usual fields."""
    fields: BlockFields = {
        "kind": "dense",
        "size": size if size is not None else reader.integer("intermediate_size"),
        "activation": activation(reader, gated=gated),
    }
    return without_none(fields | options)


def mixture(reader: ConfigReader, *, experts: int, top_k: int, size: int, **options: object) -> BlockFields:
    """A mixture of experts."""
    fields: BlockFields = {
        "kind": "mixture",
        "experts": experts,
        "top_k": top_k,
        "size": size,
        "activation": activation(reader, gated=True),
        "routed_scale": routed_scale(reader),
    }
    fields |= options
    if fields.get("shared_size") is None:
        fields["shared_bias"] = None
    return without_none(fields)


def in_order(names: Iterable[str]) -> list[dict[str, Any]]:
    """The `layers` of a model file from one block name per layer, repeats folded."""
    sequence = list(names)
    for period in range(1, min(len(sequence) // 2, 16) + 1):
        # hybrids repeat a short pattern: fold whole periods where all layers follow one
        if len(sequence) % period == 0 and sequence == sequence[:period] * (len(sequence) // period):
            return [{"blocks": sequence[:period], "repeat": len(sequence) // period}]
    return [{"blocks": [name], "repeat": len(list(run))} for name, run in groupby(sequence)]


def assemble(
    reader: ConfigReader,
    name: str,
    blocks: Mapping[str, BlockFields],
    order: Iterable[str],
    *,
    tied: bool = False,
    head: Mapping[str, object] | None = None,
    multi_token_prediction: Mapping[str, object] | None = None,
    **fields: object,
) -> Model:
    """The model from its blocks; sizes that are not among `fields` are read from where every config has them."""
    sequence = list(order)
    used = {*sequence, (multi_token_prediction or {}).get("block")}
    norm = next(iter(blocks.values())).get("norm", "rms")
    tied = reader.flag("tie_word_embeddings", default=tied)
    document: dict[str, Any] = {
        "name": name,
        "blocks": {n: _with_constants(reader, b) for n, b in blocks.items() if n in used},
        "layers": in_order(sequence),
        "head": {"norm": norm, "tied": tied} | logit_constants(reader) | dict(head or {}),
        "multi_token_prediction": multi_token_prediction,
        **constants(reader, _head_dim(blocks)),
    }
    given = without_none(fields)
    document |= {field: read(reader) for field, read in _SIZES.items() if field not in given}
    document |= given
    scale = embedding_scale(reader, document["hidden"])
    document["embedding"] = {**document.get("embedding", {}), "scale": scale}
    return validate(Model, without_none(document), reader.where)


def _with_constants(reader: ConfigReader, block: BlockFields) -> BlockFields:
    mixer = block.get("mixer")
    if mixer is None or mixer["kind"] != "attention":
        return block
    return {**block, "mixer": {**mixer, **attention_constants(reader, mixer)}}


def _head_dim(blocks: Mapping[str, BlockFields]) -> int | None:
    """The width of an attention head, of which some configs turn so many columns."""
    mixers: list[BlockFields] = [block["mixer"] for block in blocks.values() if block.get("mixer") is not None]
    return next((mixer["head_dim"] for mixer in mixers if mixer["kind"] == "attention"), None)


#: Field of a model file → how it is read from a config.
_SIZES: Mapping[str, Callable[[ConfigReader], int]] = {
    "hidden": lambda reader: hidden_size(reader),
    "vocab": lambda reader: reader.integer("vocab_size", high=MAX_VOCABULARY),
    "max_seq_len": lambda reader: reader.integer("max_position_embeddings", default=4096, high=MAX_TOKENS),
}


def without_none(fields: Mapping[str, object]) -> dict[str, Any]:
    """The fields that are given."""
    return {name: value for name, value in fields.items() if value is not None}
