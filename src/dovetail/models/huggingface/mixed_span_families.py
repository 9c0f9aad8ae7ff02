"""Importers of mixtures whose layers differ in what their attention sees: windows, chunks, chosen keys."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.models.huggingface.decoder import (
    BlockFields,
    Importer,
    assemble,
    dense,
    grouped_attention,
    mixture,
)
from dovetail.models.huggingface.dense_families import FULL, SLIDING, attention_spans, spanned
from dovetail.models.huggingface.mixture_families import (
    DENSE_LAYER,
    SPARSE,
    block_name,
    experts,
    paired,
    prediction,
    sparse_layers,
    top_k,
)
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.limits import MAX_HEADS
from dovetail.models.model import Model


def gpt_oss(reader: ConfigReader, name: str) -> Model:
    """GPT-OSS: attention sinks, alternating windows, biased experts."""
    bias = reader.flag("attention_bias", default=True)
    window = reader.integer("sliding_window", default=128)
    block = {
        "mixer": grouped_attention(
            reader, qkv_bias=bias, output_bias=bias, sinks=True, head_dim=reader.optional("head_dim") or 64
        ),
        "feed_forward": mixture(
            reader,
            experts=experts(reader),
            top_k=top_k(reader, "experts_per_token"),
            size=reader.integer("intermediate_size"),
            activation="swiglu_clamped",
            bias=True,
            router_bias=True,
            score="top_k_softmax",
        ),
    }
    spans = attention_spans(reader, reader.layers(), period=2, window=window)
    return assemble(reader, name, spanned(block, window), spans)


def llama4(reader: ConfigReader, name: str) -> Model:
    """Llama 4: chunked attention with positions, every fourth layer full without; one expert plus a shared one."""
    layers = reader.layers()
    size = reader.integer("intermediate_size")
    wide = reader.optional("intermediate_size_mlp") or size
    bias = reader.flag("attention_bias", default=False)
    step = reader.integer("interleave_moe_layer_step", default=1)
    sparse = reader.integers("moe_layers")
    with_experts = set(range(step - 1, layers, step) if sparse is None else sparse)
    interval = reader.integer("no_rope_layer_interval", default=4)
    rotary = [int((i + 1) % interval != 0) for i in range(layers)]
    if reader.fields.get("no_rope_layers") != []:  # an empty list stands for the default
        rotary = reader.integers("no_rope_layers", layers, high=1) or rotary
    routed = mixture(reader, experts=experts(reader), top_k=top_k(reader), size=size, score="sigmoid", shared_size=size)
    norm = "head" if reader.flag("use_qk_norm", default=True) else "none"
    chunk = reader.integer("attention_chunk_size", default=8192)
    mixers = {
        "chunked": grouped_attention(
            reader, qkv_bias=bias, output_bias=bias, qk_norm=norm, qk_norm_kind="plain_rms", chunk=chunk
        ),
        FULL: grouped_attention(reader, qkv_bias=bias, output_bias=bias, rotary=False),
    }
    halves = {SPARSE: routed, DENSE_LAYER: dense(reader, size=wide)}
    order = [block_name("chunked" if rotary[i] else FULL, i in with_experts) for i in range(layers)]
    return assemble(reader, name, paired(mixers, halves), order)


def gemma4(reader: ConfigReader, name: str) -> Model:
    """Gemma 4: wider heads and keys used as values in full layers, experts beside a dense half."""
    if reader.integer("hidden_size_per_layer_input", default=256, low=0) > 0:
        raise reader.refuse("hidden_size_per_layer_input", "a token table per layer (per-layer inputs)")
    if reader.integer("num_kv_shared_layers", default=0, low=0) > 0:
        raise reader.refuse("num_kv_shared_layers", "keys and values shared by several layers")
    bias = reader.flag("attention_bias", default=False)
    shared_keys = reader.flag("attention_k_eq_v", default=False)
    common = {"qkv_bias": bias, "output_bias": bias, "qk_norm": "head", "value_norm": True}
    local = grouped_attention(reader, head_dim=reader.integer("head_dim", default=256), **common)
    kv_heads = reader.optional("num_global_key_value_heads") if shared_keys else None
    full = {
        **local,
        "head_dim": reader.integer("global_head_dim", default=512),
        "kv_heads": kv_heads or local["kv_heads"],
        "key_is_value": shared_keys,
    }
    window = reader.integer("sliding_window", default=512)
    half = dense(reader, activation="geglu_tanh")
    if reader.flag("enable_moe_block", default=False):
        routed = mixture(
            reader,
            experts=experts(reader),
            top_k=top_k(reader, "top_k_experts"),
            size=reader.integer("moe_intermediate_size"),
            activation="geglu_tanh",
            router_scale=True,
        )
        half = {"kind": "dense_beside_mixture", "dense": half, "mixture": routed}
    blocks: dict[str, BlockFields] = {
        FULL: {"mixer": full, "feed_forward": half, "norm_position": "around"},
        SLIDING: {"mixer": {**local, "window": window}, "feed_forward": half, "norm_position": "around"},
    }
    layers = reader.layers()
    spans = attention_spans(reader, layers, period=6, window=window)
    spans[-1] = FULL
    return assemble(reader, name, blocks, spans, tied=True)


def mimo(reader: ConfigReader, name: str) -> Model:
    """MiMo-V2-Flash: full and sliding layers with their own head counts, sinks in some."""
    layers = reader.layers()
    bias = reader.flag("attention_bias", default=False)
    full = grouped_attention(
        reader,
        value_dim=reader.optional("v_head_dim"),
        qkv_bias=bias,
        sinks=reader.flag("add_full_attention_sink_bias", default=False),
    )
    local: BlockFields = {
        **full,
        "heads": reader.integer("swa_num_attention_heads", default=full["heads"]),
        "kv_heads": reader.integer("swa_num_key_value_heads", default=2 * full["kv_heads"]),
        "head_dim": reader.integer("swa_head_dim", default=full["head_dim"]),
        "value_dim": reader.optional("swa_v_head_dim") or full.get("value_dim"),
        "sinks": reader.flag("add_swa_attention_sink_bias", default=True),
        "window": reader.integer("sliding_window", "sliding_window_size"),
    }
    reader.divides("swa_num_key_value_heads", local["kv_heads"], "swa_num_attention_heads", local["heads"])
    routed = mixture(
        reader, experts=experts(reader), top_k=top_k(reader), size=reader.integer("moe_intermediate_size"),
        score="sigmoid", correction_bias=True,
    )  # fmt: skip
    blocks = paired({FULL: full, SLIDING: local}, {SPARSE: routed, DENSE_LAYER: dense(reader)})
    pattern = reader.integers("hybrid_layer_pattern", layers, high=1)
    if pattern is None and not reader.has("layer_types"):
        pattern = [int(i > 0 and (i + 1) % 6 != 0) for i in range(layers)]
    if pattern is None:
        spans = attention_spans(reader, layers, period=None, window=local["window"])
    else:
        spans = [SLIDING if flag else FULL for flag in pattern]
    flags = sparse_layers(reader, layers, dense_first=1)
    order = [block_name(*pair) for pair in zip(spans, flags, strict=True)]
    return assemble(reader, name, blocks, order)


def minimax_m3(reader: ConfigReader, name: str) -> Model:
    """MiniMax-M3: small heads choose blocks of keys in most layers; clamped gates."""
    layers = reader.layers()
    sparse = reader.part("sparse_attention_config") or reader
    block = sparse.integer("sparse_block_size", "index_block_size", default=128)
    num_blocks = sparse.integer("sparse_topk_blocks", "index_topk_blocks", default=16)
    indexer = {
        "heads": sparse.integer("sparse_num_index_heads", "index_n_heads", default=4, high=MAX_HEADS),
        "head_dim": sparse.integer("sparse_index_dim", "index_head_dim", default=128),
        "top_k": block * num_blocks,
        "query_norm": "rms",
        "key_norm": "rms",
        "weighted": False,
    }
    full = grouped_attention(reader, qk_norm="head")
    flags = sparse.integers("sparse_attention_freq", layers, high=1)
    listed = reader.words("layer_types", ("full_attention", "minimax_m3_sparse"), layers)
    if flags is None:
        flags = [int(word == "minimax_m3_sparse") for word in listed or ["full_attention"] * layers]
    routed = mixture(
        reader,
        experts=experts(reader),
        top_k=top_k(reader),
        size=reader.integer("moe_intermediate_size", "intermediate_size"),
        activation="swiglu_clamped",
        score="sigmoid",
        correction_bias=True,
        shared_size=reader.integer("shared_intermediate_size") * reader.integer("n_shared_experts", default=1),
    )
    wide = dense(reader, size=reader.integer("dense_intermediate_size"), activation="swiglu_clamped")
    has_experts = sparse_layers(reader, layers)
    indexed = "chosen"
    blocks = paired({FULL: full, indexed: {**full, "indexer": indexer}}, {SPARSE: routed, DENSE_LAYER: wide})
    spans = [indexed if flag else FULL for flag in flags]
    order = [block_name(*pair) for pair in zip(spans, has_experts, strict=True)]
    modules = prediction(reader, order[-1], "num_nextn_predict_layers")
    return assemble(reader, name, blocks, order, multi_token_prediction=modules)


def step3(reader: ConfigReader, name: str) -> Model:
    """Step-3.5 and 3.7 Flash: a gate per head, more heads in sliding layers, one shared expert."""
    layers = reader.layers()
    bias, wide_bias = reader.flag("attention_bias", default=False), reader.flag("mlp_bias", default=False)
    window = reader.optional("sliding_window")
    groups = ("num_key_value_heads", "num_attention_groups")
    kv_heads = reader.integer(*groups, high=MAX_HEADS)
    full = grouped_attention(
        reader, kv_heads=kv_heads, qkv_bias=bias, output_bias=bias, qk_norm="head", output_gate="head"
    )
    other = reader.part("attention_other_setting")
    heads = reader.integer("num_sliding_attention_heads", default=full["heads"])
    heads = other.integer("num_attention_heads", default=heads) if other is not None else heads
    for many, number in (("num_attention_heads", full["heads"]), ("num_sliding_attention_heads", heads)):
        reader.divides(reader.given(*groups), kv_heads, many, number)
    routed = mixture(
        reader,
        experts=experts(reader),
        top_k=top_k(reader, "moe_top_k"),
        size=reader.integer("moe_intermediate_size"),
        score="sigmoid",
        correction_bias=True,
        shared_size=reader.integer("share_expert_dim", "share_expert_dims"),
        shared_bias=wide_bias,
    )
    has_experts = sparse_layers(reader, layers, dense_first=3)
    mixers = {FULL: full}
    if window is not None:
        mixers[SLIDING] = {**full, "heads": heads, "window": window}
    blocks = paired(mixers, {SPARSE: routed, DENSE_LAYER: dense(reader, bias=wide_bias)})
    spans = attention_spans(reader, layers, period=1, window=window)
    order = [block_name(*pair) for pair in zip(spans, has_experts, strict=True)]
    # prediction modules hold a dense half behind sliding attention, whatever the last layer is
    modules = prediction(reader, block_name(FULL if window is None else SLIDING, False), "num_nextn_predict_layers")
    return assemble(reader, name, blocks, order, multi_token_prediction=modules)


#: `model_type` → importer.
MIXED_SPAN: Mapping[str, Importer] = {
    "gemma4_text": gemma4,
    "gpt_oss": gpt_oss,
    "llama4_text": llama4,
    "mimo_v2_flash": mimo,
    "minimax_m3": minimax_m3,
    "minimax_m3_vl_text": minimax_m3,
    "step3p5": step3,
    "step3p7": step3,
}
