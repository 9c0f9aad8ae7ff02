"""Importers of decoders of the GPT-2 line: layer norms, plain feed-forwards, biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from dovetail.errors import InputError, quoted
from dovetail.models.huggingface.classic_pieces import (
    biased,
    dropout,
    only,
    plain,
    split_heads,
    uniform,
    without_cross_attention,
)
from dovetail.models.huggingface.decoder import BlockFields, Importer, assemble, hidden_size
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.limits import MAX_HEADS, MAX_TOKENS
from dovetail.models.model import Model

#: What GPT-2 and its relatives call the usual sizes.
HIDDEN, HEADS, LAYERS = (
    ("n_embd", "hidden_size"),
    ("n_head", "num_attention_heads"),
    ("n_layer", "num_hidden_layers"),
)
POSITIONS = ("n_positions", "max_position_embeddings")

GLOBAL_OR_LOCAL = ("global", "local")


def gpt2(reader: ConfigReader, name: str) -> Model:
    """GPT-2."""
    return _gpt2_line(reader, name, act="gelu_new")


def gpt_bigcode(reader: ConfigReader, name: str) -> Model:
    """SantaCoder, StarCoder: GPT-2 with multi-query attention."""
    one = {"kv_heads": 1} if reader.flag("multi_query", default=True) else {}
    return _gpt2_line(reader, name, act="gelu_pytorch_tanh", **one)


def _gpt2_line(reader: ConfigReader, name: str, *, act: str, **attention: object) -> Model:
    without_cross_attention(reader)
    only(reader, "scale_attn_weights", True)
    only(reader, "scale_attn_by_inverse_layer_idx", False)
    hidden = reader.integer(*HIDDEN)
    size = reader.integer("n_inner", default=4 * hidden)
    positions = reader.integer(*POSITIONS, default=1024)
    block = {
        "norm": "layer",
        "mixer": split_heads(reader, hidden, *HEADS, **biased(), **attention),
        "feed_forward": plain(reader, size, field="activation_function", default=act),
    }
    return uniform(
        reader, name, block, LAYERS, tied=True, hidden=hidden, max_seq_len=positions,
        embedding={"positions": positions}, dropout=dropout(reader, "resid_pdrop", 0.1),
    )  # fmt: skip


def gptj(reader: ConfigReader, name: str) -> Model:
    """GPT-J, CodeGen: both halves of a block read one norm; the head has a bias."""
    hidden = reader.integer(*HIDDEN)
    size = reader.integer("n_inner", default=4 * hidden)
    block = {
        "norm": "layer",
        "parallel": True,
        "shared_norm": True,
        "mixer": split_heads(reader, hidden, *HEADS, rotary=True),
        "feed_forward": plain(reader, size, field="activation_function", default="gelu_new"),
    }
    return uniform(
        reader, name, block, LAYERS, hidden=hidden, max_seq_len=reader.integer(*POSITIONS, default=2048),
        head={"bias": True}, dropout=dropout(reader, "resid_pdrop", 0),
    )  # fmt: skip


def gpt_neox(reader: ConfigReader, name: str) -> Model:
    """GPT-NeoX, Pythia: parallel halves with a norm each."""
    hidden = hidden_size(reader)
    bias = reader.flag("attention_bias", default=True)
    block = {
        "norm": "layer",
        "parallel": reader.flag("use_parallel_residual", default=True),
        "mixer": split_heads(reader, hidden, rotary=True, **biased(bias)),
        "feed_forward": plain(reader, reader.integer("intermediate_size")),
    }
    return uniform(reader, name, block, dropout=dropout(reader, "hidden_dropout", 0))


def gpt_neo(reader: ConfigReader, name: str) -> Model:
    """GPT-Neo: full and local attention take turns; only the output projection has a bias."""
    hidden = hidden_size(reader)
    layers = reader.layers("num_layers", "num_hidden_layers")
    positions = reader.integer("max_position_embeddings", default=2048)
    size = reader.integer("intermediate_size", default=4 * hidden)
    windows = {"global": {}, "local": {"window": reader.integer("window_size", default=256)}}
    blocks = {
        kind: {
            "norm": "layer",
            "mixer": split_heads(reader, hidden, "num_heads", "num_attention_heads", output_bias=True, **window),
            "feed_forward": plain(reader, size, field="activation_function", default="gelu_new"),
        }
        for kind, window in windows.items()
    }
    return assemble(
        reader, name, blocks, _attention_types(reader, layers), tied=True, max_seq_len=positions,
        embedding={"positions": positions}, dropout=dropout(reader, "resid_dropout", 0),
    )  # fmt: skip


def _attention_types(reader: ConfigReader, layers: int) -> list[str]:
    """GPT-Neo's kinds of attention per layer, from pairs of a pattern and its repeats."""
    pairs = reader.fields.get("attention_types")
    if pairs is None:
        given = reader.words("attention_layers", GLOBAL_OR_LOCAL, layers)
        return given or [GLOBAL_OR_LOCAL[layer % 2] for layer in range(layers)]
    kinds: list[str] = []
    cover = f"it should cover the {layers} layers there are"
    for pair in cast("list[Any]", pairs if isinstance(pairs, list) else [pairs]):
        match pair:
            case [[*pattern], int(repeat)] if all(kind in GLOBAL_OR_LOCAL for kind in pattern):
                if len(kinds) + len(pattern) * repeat > layers:
                    raise InputError(reader.at("attention_types"), "covers more layers than there are", cover)
                kinds += cast("list[str]", pattern) * repeat
            case _:
                fix = 'it should pair a list of "global" and "local" with a number of repeats'
                raise InputError(reader.at("attention_types"), f"holds {quoted(pair)}", fix)
    if len(kinds) != layers:
        raise InputError(reader.at("attention_types"), f"covers {len(kinds)} layers", cover)
    return kinds


def opt(reader: ConfigReader, name: str) -> Model:
    """OPT: the position table has two rows more than positions; the 350M model norms after the addition."""
    hidden = hidden_size(reader)
    positions = reader.integer("max_position_embeddings", default=2048)
    before = reader.flag("do_layer_norm_before", default=True)
    norm = "layer" if reader.flag("layer_norm_elementwise_affine", default=True) else "plain_layer"
    final = before and not reader.flag("_remove_final_layer_norm", default=False)
    bias = reader.flag("enable_bias", default=True)
    width = reader.integer("word_embed_proj_dim", default=hidden)
    if width != hidden and not reader.flag("tie_word_embeddings", default=True):
        raise reader.refuse("word_embed_proj_dim", "an untied output table narrower than the stream")
    size = reader.integer("ffn_dim")
    block = {
        "norm": norm,
        "norm_position": "before" if before else "residual",
        "mixer": split_heads(reader, hidden, **biased(bias)),
        "feed_forward": plain(reader, size, field="activation_function", default="relu", bias=bias),
    }
    return uniform(
        reader, name, block, tied=True, max_seq_len=positions, head={"norm": norm if final else None},
        embedding={"positions": positions + 2, "width": width if width != hidden else None},
        dropout=dropout(reader, "dropout", 0.1),
    )  # fmt: skip


def xglm(reader: ConfigReader, name: str) -> Model:
    """XGLM: sinusoidal positions, which are no parameters."""
    without_cross_attention(reader)
    hidden = reader.integer("d_model", "hidden_size")
    block = {
        "norm": "layer",
        "mixer": split_heads(reader, hidden, "attention_heads", "num_attention_heads", **biased()),
        "feed_forward": plain(reader, reader.integer("ffn_dim"), field="activation_function"),
    }
    return uniform(
        reader, name, block, ("num_layers", "num_hidden_layers"), tied=True, hidden=hidden,
        dropout=dropout(reader, "dropout", 0.1),
    )  # fmt: skip


def bloom(reader: ConfigReader, name: str) -> Model:
    """BLOOM: linear attention biases instead of positions, a norm after the embedding."""
    if reader.flag("apply_residual_connection_post_layernorm", default=False):
        raise reader.refuse("apply_residual_connection_post_layernorm", "a residual stream taken after the norm")
    hidden = reader.integer("n_embed", "hidden_size")
    block = {
        "norm": "layer",
        "mixer": split_heads(reader, hidden, *HEADS, alibi=True, **biased()),
        "feed_forward": {"kind": "dense", "size": 4 * hidden, "activation": "gelu_tanh", "bias": True},
    }
    return uniform(
        reader, name, block, LAYERS, tied=True, hidden=hidden, embedding={"norm": "layer"},
        max_seq_len=reader.integer("seq_length", default=2048, high=MAX_TOKENS),
        dropout=dropout(reader, "hidden_dropout", 0),
    )  # fmt: skip


def falcon(reader: ConfigReader, name: str) -> Model:
    """Falcon 1B to 180B and Falcon 2: one, some or all heads keep keys; sequential or parallel halves."""
    hidden = reader.integer("n_embed", "hidden_size")
    bias = reader.flag("bias", default=False)
    size = reader.integer("ffn_hidden_size", default=4 * hidden)
    alibi = reader.flag("alibi", default=False)
    mixer = split_heads(reader, hidden, rotary=not alibi, alibi=alibi, **biased(bias))
    block: BlockFields = {
        "norm": "layer",
        "mixer": mixer,
        "feed_forward": plain(reader, size, field="activation", bias=bias),
    }
    norms = 1
    if reader.flag("new_decoder_architecture", default=False):
        only(reader, "parallel_attn", True)
        mixer["kv_heads"] = reader.integer("num_kv_heads", default=mixer["heads"], high=MAX_HEADS)
        norms = reader.integer("num_ln_in_parallel_attn", default=2, high=2)
    elif reader.flag("multi_query", default=True):
        mixer["kv_heads"] = 1
    if reader.flag("parallel_attn", default=True):
        block |= {"parallel": True, "shared_norm": norms == 1}
    return uniform(reader, name, block, tied=True, hidden=hidden, dropout=dropout(reader, "hidden_dropout", 0))


def mpt(reader: ConfigReader, name: str) -> Model:
    """MPT: linear attention biases, no bias anywhere, not even in norms."""
    attention = reader.part("attn_config") or ConfigReader({}, reader.at("attn_config"))
    only(reader, "expansion_ratio", 4)
    only(reader, "no_bias", True)
    only(attention, "attn_type", "multihead_attention")
    only(attention, "alibi", True)
    only(attention, "qk_ln", False)
    only(attention, "prefix_lm", False)
    hidden = reader.integer("d_model", "hidden_size")
    block = {
        "norm": "layer_no_bias",
        "mixer": split_heads(reader, hidden, "n_heads", "num_attention_heads", alibi=True),
        "feed_forward": {"kind": "dense", "size": 4 * hidden, "activation": "gelu"},
    }
    return uniform(
        reader, name, block, ("n_layers", "num_hidden_layers"), tied=True, hidden=hidden,
        max_seq_len=reader.integer("max_seq_len", default=2048, high=MAX_TOKENS),
        dropout=dropout(reader, "resid_pdrop", 0),
    )  # fmt: skip


#: `model_type` → importer.
CLASSIC: Mapping[str, Importer] = {
    "bloom": bloom,
    "codegen": gptj,
    "falcon": falcon,
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "gptj": gptj,
    "mpt": mpt,
    "opt": opt,
    "xglm": xglm,
}
