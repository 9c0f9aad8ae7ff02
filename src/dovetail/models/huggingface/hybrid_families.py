"""Importers of hybrids: linear attention and state-space layers mixed with attention."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.errors import InputError, quoted
from dovetail.models.huggingface.decoder import (
    BlockFields,
    Importer,
    activation,
    assemble,
    dense,
    grouped_attention,
    mixture,
)
from dovetail.models.huggingface.dense_families import FULL
from dovetail.models.huggingface.latent_families import latent_attention
from dovetail.models.huggingface.mixture_families import (
    DENSE_LAYER,
    SPARSE,
    block_name,
    deepseek_mixture,
    experts,
    granite_mixture,
    minimax_m2,
    paired,
    prediction,
    qwen_mixture,
    qwen_sparse_layers,
    sparse_layers,
    top_k,
)
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.limits import MAX_HEADS, MAX_LAYERS, MAX_SMALL, MAX_TOKENS
from dovetail.models.model import Model

LINEAR = "linear"
_LAYER_TYPES = {"full_attention": FULL, "attention": FULL, "linear_attention": LINEAR, "mamba": LINEAR}


def layer_kinds(reader: ConfigReader, default: list[str]) -> list[str]:
    """`full` or `linear` per layer: as listed, or as the family does by default."""
    listed = reader.words("layer_types", _LAYER_TYPES, len(default))
    return default if listed is None else [_LAYER_TYPES[word] for word in listed]


def _gated_delta(reader: ConfigReader) -> BlockFields:
    key_heads = reader.integer("linear_num_key_heads", high=MAX_HEADS)
    value_heads = reader.integer("linear_num_value_heads", high=MAX_HEADS)
    reader.divides("linear_num_key_heads", key_heads, "linear_num_value_heads", value_heads)
    return {
        "kind": "gated_delta",
        "key_heads": key_heads,
        "value_heads": value_heads,
        "key_dim": reader.integer("linear_key_head_dim"),
        "value_dim": reader.integer("linear_value_head_dim"),
        "conv_kernel": reader.integer("linear_conv_kernel_dim", default=4, high=MAX_SMALL),
    }


def qwen_hybrid(reader: ConfigReader, name: str) -> Model:
    """Qwen3-Next and Qwen3.5: Gated DeltaNet with every fourth layer gated attention."""
    layers = reader.layers()
    bias = reader.flag("attention_bias", default=False)
    head_dim = reader.integer("head_dim", default=256)
    mixers = {
        FULL: grouped_attention(
            reader,
            head_dim=head_dim,
            qkv_bias=bias,
            output_bias=bias,
            qk_norm="head",
            output_gate="channel",
            gate_bias=bias,
        ),
        LINEAR: _gated_delta(reader),
    }
    flags = qwen_sparse_layers(reader, layers) if reader.has("num_experts") else [False] * layers
    halves: dict[str, BlockFields] = {}
    if any(flags):
        shared = reader.optional("shared_expert_intermediate_size", low=0) or None
        halves[SPARSE] = qwen_mixture(reader, shared=shared, renormalise=True)
    if not all(flags):
        halves[DENSE_LAYER] = dense(reader)
    blocks = paired(mixers, halves)
    interval = reader.integer("full_attention_interval", default=4)
    kinds = layer_kinds(reader, [LINEAR if (i + 1) % interval else FULL for i in range(layers)])
    order = [block_name(*pair) for pair in zip(kinds, flags, strict=True)]
    modules = prediction(reader, block_name(FULL, flags[-1]), "mtp_num_hidden_layers", "num_nextn_predict_layers")
    return assemble(reader, name, blocks, order, multi_token_prediction=modules)


def kimi_linear(reader: ConfigReader, name: str) -> Model:
    """Kimi Linear: delta attention with a few latent-attention layers."""
    if reader.has("attn_res_block_size"):
        raise reader.refuse("attn_res_block_size", "attention over the outputs of earlier blocks (attention residuals)")
    layers = reader.layers()
    nested = reader.part("linear_attn_config")
    linear = nested or reader
    mixers = {
        FULL: latent_attention(reader, rotary=False),
        LINEAR: {
            "kind": "kimi_delta",
            "heads": linear.integer("num_heads", "linear_num_heads", high=MAX_HEADS),
            "head_dim": linear.integer("head_dim" if nested else "linear_head_dim"),
            "conv_kernel": linear.integer(
                "short_conv_kernel_size", "linear_conv_kernel_dim", default=4, high=MAX_SMALL
            ),
            "full_rank_gate": linear.flag("use_full_rank_gate", default=False),
        },
    }
    if nested is not None:
        full = set(nested.integers("full_attn_layers") or [])  # counted from 1
        kinds = [FULL if i + 1 in full else LINEAR for i in range(layers)]
    else:
        kinds = layer_kinds(reader, [FULL if i and i % 4 == 0 else LINEAR for i in range(layers)])
    flags = sparse_layers(reader, layers, dense_first=1)
    halves: dict[str, BlockFields] = {}
    if any(flags):
        halves[SPARSE] = deepseek_mixture(reader, score="sigmoid")
    if not all(flags):
        halves[DENSE_LAYER] = dense(reader)
    blocks = paired(mixers, halves)
    order = [block_name(*pair) for pair in zip(kinds, flags, strict=True)]
    positions = reader.optional("model_max_length", "max_position_embeddings", high=MAX_TOKENS)
    # built with an output table of its own whatever tie_word_embeddings says
    return assemble(reader, name, blocks, order, max_seq_len=positions, head={"tied": False})


def minimax(reader: ConfigReader, name: str) -> Model:
    """MiniMax-Text-01 and M1: lightning attention with every eighth layer softmax, experts everywhere."""
    if reader.flag("use_qk_norm", default=False):  # the first configs of M2 have this type
        return minimax_m2(reader, name)
    layers = reader.layers()
    full = grouped_attention(reader)
    mixers = {FULL: full, LINEAR: {"kind": "lightning", "heads": full["heads"], "head_dim": full["head_dim"]}}
    routed = mixture(
        reader, experts=experts(reader), top_k=top_k(reader), size=reader.integer("intermediate_size"),
        score="top_k_softmax",
    )  # fmt: skip
    flags = reader.integers("attn_type_list", layers, high=1)
    if flags is None:
        kinds = layer_kinds(reader, [LINEAR if i % 2 else FULL for i in range(layers)])
    else:
        kinds = [FULL if flag else LINEAR for flag in flags]
    blocks: dict[str, BlockFields] = {kind: {"mixer": mixers[kind], "feed_forward": routed} for kind in mixers}
    return assemble(reader, name, blocks, kinds)


def nemotron_h(reader: ConfigReader, name: str) -> Model:
    """Nemotron-H and Nemotron 3: Mamba-2, attention, plain and expert feed-forwards in layers of their own."""
    order = _nemotron_order(reader, "layers_block_type", "hybrid_override_pattern")
    modules = prediction(reader, "prediction_block")
    head_dim = reader.integer("head_dim", "attention_head_dim", default=128)
    # `attention_bias` stands in these configs but the attention never has biases
    attention = grouped_attention(reader, head_dim=head_dim, rotary=False)
    blocks: dict[str, BlockFields] = {"attention": {"mixer": attention}}
    if "mamba" in order:
        blocks["mamba"] = {"mixer": _nemotron_mamba(reader)}
    for kind in ("mlp", "moe"):
        if kind in order:
            blocks[kind] = {"feed_forward": _nemotron_half(reader, kind)}
    if modules is not None:
        half = _nemotron_half(reader, _nemotron_prediction(reader))
        blocks["prediction_block"] = {"mixer": attention, "feed_forward": half}
    # built with an output table of its own whatever tie_word_embeddings says
    return assemble(reader, name, blocks, order, head={"tied": False}, multi_token_prediction=modules)


def _nemotron_half(reader: ConfigReader, kind: str) -> BlockFields:
    plain = activation(reader, gated=False, name="mlp_hidden_act", default="relu2")
    bias = reader.flag("mlp_bias", default=False)
    if kind == "mlp":
        return {"kind": "dense", "size": reader.integer("intermediate_size"), "activation": plain, "bias": bias}
    latent = reader.optional("moe_latent_size")
    if bias and latent is not None:
        raise reader.refuse("mlp_bias", "biases on the way to and from the experts' latent width")
    shared = reader.integer("moe_shared_expert_intermediate_size")
    return deepseek_mixture(
        reader, score="sigmoid", activation=plain, shared_size=shared, shared_bias=bias, latent=latent
    )


def _nemotron_prediction(reader: ConfigReader) -> str:
    """The feed-forward of the prediction modules, which stands behind attention."""
    names = ("mtp_layers_block_type", "mtp_hybrid_override_pattern")
    if not reader.has(*names):
        return "moe"
    match _nemotron_order(reader, *names):
        case ["attention", ("mlp" | "moe") as half]:
            return half
        case _:
            raise reader.refuse(reader.given(*names), "prediction modules other than attention and a feed-forward")


def _nemotron_order(reader: ConfigReader, listed: str, spelt: str) -> list[str]:
    letters = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
    if reader.has(listed):
        renamed = {"linear_attention": "mamba", "full_attention": "attention"}
        words = reader.words(listed, (*letters.values(), *renamed)) or []
        return [renamed.get(word, word) for word in words]
    pattern = reader.fields.get(spelt)
    if pattern is None:
        fix = f"add it as a list of layer kinds, or {spelt} as letters"
        raise InputError(reader.at(listed), "is missing", fix)
    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_LAYERS or set(pattern) - set(letters):
        raise InputError(reader.at(spelt), f"is {quoted(pattern)}", "it should spell the layers with M, E, * and -")
    return [letters[letter] for letter in pattern]


def _nemotron_mamba(reader: ConfigReader) -> BlockFields:
    heads = reader.integer("mamba_num_heads", high=MAX_HEADS)
    groups = reader.integer("n_groups", default=8, high=MAX_HEADS)
    reader.divides("n_groups", groups, "mamba_num_heads", heads)
    return {
        "kind": "state_space",
        "heads": heads,
        "head_dim": reader.integer("mamba_head_dim"),
        "state": reader.integer("ssm_state_size"),
        "groups": groups,
        "conv_kernel": reader.integer("conv_kernel", default=4, high=MAX_SMALL),
        "conv_bias": reader.flag("use_conv_bias", default=True),
        "bias": reader.flag("use_bias", default=False),
        "chunk": reader.integer("chunk_size", default=128, high=MAX_SMALL),
    }


def _granite_mamba(reader: ConfigReader) -> BlockFields:
    heads = reader.integer("mamba_n_heads", high=MAX_HEADS)
    groups = reader.integer("mamba_n_groups", default=1, high=MAX_HEADS)
    reader.divides("mamba_n_groups", groups, "mamba_n_heads", heads)
    inner = reader.integer("mamba_expand", default=2) * reader.integer("hidden_size")
    reader.divides("mamba_n_heads", heads, "mamba_expand × hidden_size", inner)
    width = inner // heads
    given = None if reader.fields.get("mamba_d_head") == "auto" else reader.optional("mamba_d_head")
    if given not in (None, width):
        fix = f"it should be {width}, mamba_expand × hidden_size / mamba_n_heads"
        raise InputError(reader.at("mamba_d_head"), f"is {given}", fix)
    return {
        "kind": "state_space",
        "heads": heads,
        "head_dim": width,
        "state": reader.integer("mamba_d_state", default=256),
        "groups": groups,
        "conv_kernel": reader.integer("mamba_d_conv", default=4, high=MAX_SMALL),
        "conv_bias": reader.flag("mamba_conv_bias", default=True),
        "bias": reader.flag("mamba_proj_bias", default=False),
        "chunk": reader.integer("mamba_chunk_size", default=256, high=MAX_SMALL),
    }


def bamba(reader: ConfigReader, name: str) -> Model:
    """Bamba: Mamba-2 with a few attention layers, each followed by a dense half."""
    layers = reader.layers()
    bias = reader.flag("attention_bias", default=False)
    half = dense(reader, bias=reader.flag("mlp_bias", default=False))
    full = set(reader.integers("attn_layer_indices") or [])
    blocks: dict[str, BlockFields] = {
        FULL: {"mixer": grouped_attention(reader, qkv_bias=bias, output_bias=bias), "feed_forward": half},
        LINEAR: {"mixer": _granite_mamba(reader), "feed_forward": half},
    }
    return assemble(reader, name, blocks, [FULL if i in full else LINEAR for i in range(layers)])


def granite_hybrid(reader: ConfigReader, name: str) -> Model:
    """Granite 4: Mamba-2 with a few attention layers, experts beside a shared half."""
    layers = reader.layers()
    bias = reader.flag("attention_bias", default=False)
    half = granite_mixture(reader)
    rotary = reader.fields.get("position_embedding_type") == "rope"
    blocks: dict[str, BlockFields] = {
        FULL: {
            "mixer": grouped_attention(reader, qkv_bias=bias, output_bias=bias, rotary=rotary),
            "feed_forward": half,
        },
        LINEAR: {"mixer": _granite_mamba(reader), "feed_forward": half},
    }
    kinds = layer_kinds(reader, [LINEAR] * layers)
    return assemble(reader, name, blocks, kinds)


def mamba2(reader: ConfigReader, name: str) -> Model:
    """Mamba-2: state-space layers alone."""
    heads = reader.integer("num_heads", high=MAX_HEADS)
    groups = reader.integer("n_groups", default=8, high=MAX_HEADS)
    reader.divides("n_groups", groups, "num_heads", heads)
    mixer: BlockFields = {
        "kind": "state_space",
        "heads": heads,
        "head_dim": reader.integer("head_dim"),
        "state": reader.integer("state_size"),
        "groups": groups,
        "conv_kernel": reader.integer("conv_kernel", default=4, high=MAX_SMALL),
        "conv_bias": reader.flag("use_conv_bias", default=True),
        "bias": reader.flag("use_bias", default=False),
        "chunk": reader.integer("chunk_size", default=256, high=MAX_SMALL),
    }
    return assemble(reader, name, {LINEAR: {"mixer": mixer}}, [LINEAR] * reader.layers())


#: `model_type` → importer.
HYBRID: Mapping[str, Importer] = {
    "bamba": bamba,
    "granitemoehybrid": granite_hybrid,
    "kimi_linear": kimi_linear,
    "mamba2": mamba2,
    "minimax": minimax,
    "nemotron_h": nemotron_h,
    "qwen3_5_moe_text": qwen_hybrid,
    "qwen3_5_text": qwen_hybrid,
    "qwen3_next": qwen_hybrid,
}
