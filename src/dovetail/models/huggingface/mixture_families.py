"""Importers of mixture-of-experts decoders with grouped-query attention."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.errors import InputError
from dovetail.models.huggingface.decoder import (
    BlockFields,
    Importer,
    assemble,
    dense,
    grouped_attention,
    mixture,
)
from dovetail.models.huggingface.dense_families import FULL, attention_spans, spanned
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.limits import MAX_EXPERTS, MAX_SMALL
from dovetail.models.model import Model

SPARSE, DENSE_LAYER = "sparse", "dense"


def experts(reader: ConfigReader) -> int:
    """The number of routed experts, whatever the family calls it."""
    names = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    return reader.integer(*names, high=MAX_EXPERTS)


def top_k(reader: ConfigReader, *more: str, default: int | None = None) -> int:
    """Experts a token goes to."""
    names = ("num_experts_per_tok", "num_experts_per_token", *more)
    per_token, available = reader.integer(*names, default=default, high=MAX_EXPERTS), experts(reader)
    if per_token > available:
        raise InputError(
            reader.at(reader.given(*names)),
            f"{per_token} exceeds the {available} experts",
            "it should be at most their number",
        )
    return per_token


def sparse_layers(reader: ConfigReader, layers: int, *, dense_first: int = 0) -> list[bool]:
    """Which layers hold experts: as listed, by frequency, or all after the first dense ones."""
    words = reader.words("mlp_layer_types", (DENSE_LAYER, SPARSE), layers)
    if words is not None:
        return [word == SPARSE for word in words]
    first = reader.integer("first_k_dense_replace", default=dense_first, low=0)
    frequency = reader.fields.get("moe_layer_freq")
    if isinstance(frequency, list):
        flags = reader.integers("moe_layer_freq", layers, high=1)
        assert flags is not None
        return [flag == 1 for flag in flags]
    period = reader.integer("moe_layer_freq", default=1)
    return [i >= first and i % period == 0 for i in range(layers)]


def paired(mixers: Mapping[str, BlockFields], halves: Mapping[str, BlockFields]) -> dict[str, BlockFields]:
    """A block for each mixer with each feed-forward, named after both."""
    return {
        block_name(mixer, half): {"mixer": mixers[mixer], "feed_forward": halves[half]}
        for mixer in mixers
        for half in halves
    }


def block_name(mixer: str, half: str | bool) -> str:
    """The name `paired` gives a block; a flag stands for sparse or dense."""
    if isinstance(half, bool):
        half = SPARSE if half else DENSE_LAYER
    return f"{mixer}_{half}"


def prediction(reader: ConfigReader, block: str, *names: str) -> dict[str, object] | None:
    """The multi-token-prediction modules a config announces."""
    modules = reader.optional(*(names or ("num_nextn_predict_layers",)), low=0, high=MAX_SMALL)
    return {"modules": modules, "block": block} if modules else None


def mixtral(reader: ConfigReader, name: str) -> Model:
    """Mixtral: every layer a mixture of full-width experts."""
    window = reader.optional("sliding_window")
    block = {
        "mixer": grouped_attention(reader),
        "feed_forward": mixture(
            reader,
            experts=experts(reader),
            top_k=top_k(reader),
            size=reader.integer("intermediate_size"),
            score="top_k_softmax",
        ),
    }
    spans = attention_spans(reader, reader.layers(), period=None, window=window)
    return assemble(reader, name, spanned(block, window), spans)


def phimoe(reader: ConfigReader, name: str) -> Model:
    """Phi-3.5-MoE: layer norms, one bias switch for attention, one for the head."""
    bias = reader.flag("attention_bias", default=False)
    size = reader.integer("intermediate_size")
    block = {
        "mixer": grouped_attention(reader, qkv_bias=bias, output_bias=bias),
        "feed_forward": mixture(reader, experts=experts(reader), top_k=top_k(reader), size=size),
        "norm": "layer",
    }
    head = {"bias": reader.flag("lm_head_bias", default=False)}
    return assemble(reader, name, {FULL: block}, [FULL] * reader.layers(), head=head)


def granite(reader: ConfigReader, name: str) -> Model:
    """GraniteMoE with or without a shared expert."""
    bias = reader.flag("attention_bias", default=False)
    block = {
        "mixer": grouped_attention(reader, qkv_bias=bias, output_bias=bias),
        "feed_forward": granite_mixture(reader),
    }
    return assemble(reader, name, {FULL: block}, [FULL] * reader.layers())


def granite_mixture(reader: ConfigReader) -> BlockFields:
    """Granite's experts beside one shared feed-forward; without experts the shared one alone."""
    shared = reader.optional("shared_intermediate_size", low=0)
    if reader.integer("num_local_experts", default=0, low=0) == 0:
        return dense(reader, size=shared or reader.integer("shared_intermediate_size"))
    size = reader.integer("intermediate_size")
    return mixture(
        reader,
        experts=experts(reader),
        top_k=top_k(reader),
        size=size,
        score="top_k_softmax",
        shared_size=shared or None,
    )


def hunyuan(reader: ConfigReader, name: str) -> Model:
    """Hunyuan MoE: normalised queries and keys, one shared expert of the experts' width."""
    fields = ("num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert", "intermediate_size")
    alike = {field: reader.same(field, "experts whose number or width changes from layer to layer") for field in fields}
    reader = ConfigReader({**reader.fields, **alike}, reader.where)
    size = reader.integer("intermediate_size")
    bias = reader.flag("attention_bias", default=False)
    block = {
        "mixer": grouped_attention(reader, qkv_bias=bias, output_bias=bias, qk_norm="head", qk_norm_after_rotary=True),
        "feed_forward": mixture(
            reader,
            experts=experts(reader),
            top_k=top_k(reader, "moe_topk", default=1),
            size=size,
            shared_size=size,
        ),
    }
    return assemble(reader, name, {FULL: block}, [FULL] * reader.layers())


def qwen2_moe(reader: ConfigReader, name: str) -> Model:
    """Qwen1.5-MoE, Qwen2-57B-A14B: small experts beside a gated shared one."""
    mixer = grouped_attention(reader, qkv_bias=reader.flag("qkv_bias", default=True))
    return _qwen_moe(reader, name, mixer, shared=reader.integer("shared_expert_intermediate_size"))


def qwen3_moe(reader: ConfigReader, name: str) -> Model:
    """Qwen3 MoE: normalised queries and keys, no shared expert."""
    bias = reader.flag("attention_bias", default=False)
    mixer = grouped_attention(reader, qkv_bias=bias, output_bias=bias, qk_norm="head")
    return _qwen_moe(reader, name, mixer, shared=None)


def olmoe(reader: ConfigReader, name: str) -> Model:
    """OLMoE: queries and keys normalised over all heads."""
    bias = reader.flag("attention_bias", default=False)
    block = {
        "mixer": grouped_attention(reader, qkv_bias=bias, output_bias=bias, qk_norm="all"),
        "feed_forward": mixture(
            reader, experts=experts(reader), top_k=top_k(reader), size=reader.integer("intermediate_size")
        ),
    }
    return assemble(reader, name, {FULL: block}, [FULL] * reader.layers())


def _qwen_moe(reader: ConfigReader, name: str, mixer: BlockFields, *, shared: int | None) -> Model:
    layers = reader.layers()
    flags = qwen_sparse_layers(reader, layers)
    blocks = {SPARSE: {"mixer": mixer, "feed_forward": qwen_mixture(reader, shared=shared)}} if any(flags) else {}
    if not all(flags):
        blocks[DENSE_LAYER] = {"mixer": mixer, "feed_forward": dense(reader)}
    return assemble(reader, name, blocks, [SPARSE if flag else DENSE_LAYER for flag in flags])


def qwen_sparse_layers(reader: ConfigReader, layers: int) -> list[bool]:
    """Which layers of a Qwen model hold experts."""
    step = reader.integer("decoder_sparse_step", default=1)
    dense_layers = set(reader.integers("mlp_only_layers") or [])
    return [i not in dense_layers and (i + 1) % step == 0 for i in range(layers)]


def qwen_mixture(reader: ConfigReader, *, shared: int | None, renormalise: bool = False) -> BlockFields:
    """Qwen's experts, the shared one behind a gate; `renormalise` holds where the config does not say."""
    return mixture(
        reader,
        experts=experts(reader),
        top_k=top_k(reader),
        size=reader.integer("moe_intermediate_size"),
        renormalise=reader.flag("norm_topk_prob", default=renormalise),
        shared_size=shared,
        shared_gate=shared is not None,
    )


def minimax_m2(reader: ConfigReader, name: str) -> Model:
    """MiniMax-M2: queries and keys normalised over all heads, sigmoid routing."""
    norm = "all" if reader.flag("use_qk_norm", default=True) else "none"
    block = {
        "mixer": grouped_attention(reader, qk_norm=norm),
        "feed_forward": mixture(
            reader,
            experts=experts(reader),
            top_k=top_k(reader),
            size=reader.integer("intermediate_size"),
            score="sigmoid",
            correction_bias=True,
        ),
    }
    modules = prediction(reader, FULL, "num_mtp_modules") if reader.flag("use_mtp", default=False) else None
    return assemble(reader, name, {FULL: block}, [FULL] * reader.layers(), multi_token_prediction=modules)


def ernie_moe(reader: ConfigReader, name: str) -> Model:
    """ERNIE 4.5 MoE: experts in a range of layers; the balancing bias is a stored parameter."""
    layers = reader.layers()
    bias = reader.flag("use_bias", default=False)
    for field in ("moe_num_experts", "moe_intermediate_size"):
        if isinstance(reader.fields.get(field), list):
            raise reader.refuse(field, "experts of several modalities")
    size = reader.integer("moe_intermediate_size")
    shared = reader.integer("moe_num_shared_experts", default=0, low=0) * size
    start = reader.integer("moe_layer_start_index", default=1, low=0)
    end = reader.integer("moe_layer_end_index", default=-1, low=-1)
    end = layers - 1 if end == -1 else end
    interval = reader.integer("moe_layer_interval", default=1)
    mixer = grouped_attention(reader, qkv_bias=bias, output_bias=bias)
    routed = mixture(
        reader, experts=experts(reader), top_k=top_k(reader, "moe_k"), size=size,
        shared_size=shared or None, shared_bias=bias, trained_correction=True,
    )  # fmt: skip
    blocks = {
        SPARSE: {"mixer": mixer, "feed_forward": routed},
        DENSE_LAYER: {"mixer": mixer, "feed_forward": dense(reader, bias=bias)},
    }
    order = [SPARSE if (i + 1) % interval == 0 and start <= i <= end else DENSE_LAYER for i in range(layers)]
    modules = prediction(reader, DENSE_LAYER)
    return assemble(reader, name, blocks, order, tied=True, head={"bias": bias}, multi_token_prediction=modules)


def glm4_moe(reader: ConfigReader, name: str) -> Model:
    """GLM-4.5: dense first layers, shared experts, sigmoid routing with groups."""
    bias = reader.flag("attention_bias", default=False)
    qk_norm = "head" if reader.flag("use_qk_norm", default=False) else "none"
    return deepseek_layers(reader, name, grouped_attention(reader, qkv_bias=bias, qk_norm=qk_norm))


def dots1(reader: ConfigReader, name: str) -> Model:
    """dots.llm1: always normalised queries and keys."""
    bias = reader.flag("attention_bias", default=False)
    return deepseek_layers(reader, name, grouped_attention(reader, qkv_bias=bias, output_bias=bias, qk_norm="head"))


def deepseek_v1(reader: ConfigReader, name: str) -> Model:
    """DeepSeek LLM and DeepSeekMoE: Llama's attention, dense layers or fine-grained experts chosen by softmax."""
    bias = reader.flag("attention_bias", default=False)
    mixer = grouped_attention(reader, qkv_bias=bias, output_bias=bias)
    if reader.has("n_routed_experts"):
        return deepseek_layers(reader, name, mixer, score="softmax")
    block = {"mixer": mixer, "feed_forward": dense(reader)}
    return assemble(reader, name, {DENSE_LAYER: block}, [DENSE_LAYER] * reader.layers())


def deepseek_layers(
    reader: ConfigReader,
    name: str,
    mixer: BlockFields,
    *,
    score: str = "sigmoid",
    dense_first: int = 0,
    bias: bool = False,
) -> Model:
    """Layers as DeepSeek arranges them: some dense first, then experts with shared ones."""
    layers = reader.layers()
    flags = sparse_layers(reader, layers, dense_first=dense_first)
    blocks: dict[str, BlockFields] = {}
    if not all(flags):
        blocks[DENSE_LAYER] = {"mixer": mixer, "feed_forward": dense(reader, bias=bias)}
    if any(flags):
        routed = deepseek_mixture(reader, score=score, shared_bias=bias)
        blocks[SPARSE] = {"mixer": mixer, "feed_forward": routed}
    order = [SPARSE if flag else DENSE_LAYER for flag in flags]
    modules = prediction(reader, order[-1])
    return assemble(reader, name, blocks, order, multi_token_prediction=modules)


def deepseek_mixture(reader: ConfigReader, *, score: str, **options: object) -> BlockFields:
    """Routed experts in groups (nodes) with shared experts beside them."""
    size = reader.integer("moe_intermediate_size")
    shared = reader.integer("n_shared_experts", "num_shared_experts", default=0, low=0) * size
    group_names = ("n_group", "num_expert_group")
    groups = reader.integer(*group_names, default=1)
    reader.divides(reader.given(*group_names), groups, "the number of experts", experts(reader))
    return mixture(
        reader,
        experts=experts(reader),
        top_k=top_k(reader),
        size=size,
        score=score,
        correction_bias=score == "sigmoid",
        renormalise=reader.flag(reader.given("norm_topk_prob", "moe_renormalize"), default=score == "sigmoid"),
        groups=groups,
        top_groups=min(reader.integer("topk_group", default=1), groups),
        **{"shared_size": shared or None, **options},
    )


#: `model_type` → importer.
MIXTURE: Mapping[str, Importer] = {
    "deepseek": deepseek_v1,
    "dots1": dots1,
    "ernie4_5_moe": ernie_moe,
    "glm4_moe": glm4_moe,
    "granitemoe": granite,
    "granitemoeshared": granite,
    "hunyuan_v1_moe": hunyuan,
    "minimax_m2": minimax_m2,
    "mixtral": mixtral,
    "olmoe": olmoe,
    "phimoe": phimoe,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
}
