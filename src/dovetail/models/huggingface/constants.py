"""Constants of a config.json that change no size but what is trained: rotary base and scaling, epsilons, scales."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

from dovetail.errors import InputError
from dovetail.models.huggingface.reader import ConfigReader
from dovetail.models.limits import MAX_TOKENS

#: Families whose configs mean another value than the usual one where they leave a field out (transformers 5).
_EPSILONS = {
    1e-6: "deepseek deepseek_v2 deepseek_v3 deepseek_v32 dots1 gemma gemma2 gemma3_text gemma4_text granite granitemoe "
    "granitemoehybrid granitemoeshared kimi_k2 llama minimax_m2 minimax_m3 minimax_m3_vl_text ministral mistral qwen2 "
    "qwen2_moe qwen3 qwen3_moe qwen3_next qwen3_5_text qwen3_5_moe_text seed_oss smollm3",
    1.5625e-07: "glm glm4",
    1e-12: "bert camembert distilbert roberta xlm-roberta",
}
_BASES = {
    5e5: "cohere ernie4_5 ernie4_5_moe llama4_text olmo3",
    1e6: "gemma3_text gemma4_text minimax ministral3 mixtral phimoe",
    2e6: "smollm3",
    5e6: "mimo_v2_flash minimax_m2 minimax_m3 minimax_m3_vl_text",
    1.5e5: "gpt_oss",
}
_SHARES = {
    0.25: "gpt_neox qwen3_next qwen3_5_text qwen3_5_moe_text stablelm gemma4_text",
    0.5: "bamba glm glm4 glm4_moe nemotron persimmon phi",
    0.334: "mimo_v2_flash",
}
_ROUTED_SCALES = {
    2.5: "deepseek_v3 deepseek_v32 glm_moe_dsa kimi_k2",
    1.8: "glm4_moe_lite",
    2.446: "kimi_linear",
    2.0: "minimax_m3 minimax_m3_vl_text",
}
#: Families whose windowed layers have a base of their own.
_LOCAL_BASES = {1e4: "gemma3_text gemma4_text mimo_v2_flash"}

_EPSILON_NAMES = (
    "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon", "norm_eps",
)  # fmt: skip
_BASE_NAMES = ("rope_theta", "rotary_emb_base", "default_theta")

_SCALINGS = {
    "linear": "linear", "dynamic": "dynamic", "llama3": "llama3", "yarn": "yarn", "longrope": "longrope",
    "su": "longrope", "proportional": "proportional",
}  # fmt: skip
#: Rules that leave angles as they are: other sections of a head for pictures, which a text model does not see.
_UNSCALED = ("default", "mrope")
_FACTORS = {
    "factor": "factor", "low_freq_factor": "low_frequency", "high_freq_factor": "high_frequency",
    "beta_fast": "beta_fast", "beta_slow": "beta_slow", "attention_factor": "attention_factor",
}  # fmt: skip
#: All keys a rule may have; sections of a head for pictures say nothing of text, and the longest sequence stands
#: elsewhere too.
_KNOWN = frozenset({
    *_FACTORS, "rope_type", "type", "rope_theta", "partial_rotary_factor", "mscale", "mscale_all_dim", "truncate",
    "original_max_position_embeddings", "max_position_embeddings", "short_factor", "long_factor", "mrope_section",
    "mrope_interleaved", "finetuned", "full_attention", "sliding_attention",
})  # fmt: skip


def _usual(table: Mapping[float, str], family: object, otherwise: float) -> float:
    return next((value for value, families in table.items() if family in families.split()), otherwise)


def routed_scale(reader: ConfigReader) -> float:
    """What a router's gates are multiplied by."""
    usual = _usual(_ROUTED_SCALES, reader.fields.get("model_type"), 1.0)
    return reader.number("routed_scaling_factor", "moe_router_scaling_factor", default=usual)


def constants(reader: ConfigReader, head_dim: int | None) -> dict[str, Any]:
    """The fields of a model file that hold constants of the whole model."""
    family = reader.fields.get("model_type")
    return {
        "norm_epsilon": reader.number(*_EPSILON_NAMES, default=_usual(_EPSILONS, family, 1e-5)),
        "residual_scale": reader.number("residual_multiplier", default=1.0),
        "rotary": _rotary(reader, head_dim),
    }


def embedding_scale(reader: ConfigReader, hidden: int) -> float:
    """What embedded tokens are multiplied by."""
    family = str(reader.fields.get("model_type"))
    if family.startswith("gemma"):
        return sqrt(hidden)
    if family == "xglm" and reader.flag("scale_embedding", default=True):
        return sqrt(hidden)
    return reader.number("embedding_multiplier", default=1.0)


def logit_constants(reader: ConfigReader) -> dict[str, float]:
    """What becomes of logits: a scale, and a bound they are squashed to."""
    found: dict[str, float] = {}
    if reader.has("final_logit_softcapping"):
        found["softcap"] = reader.number("final_logit_softcapping")
    if str(reader.fields.get("model_type")).startswith("cohere"):
        found["scale"] = reader.number("logit_scale", default=0.0625)
    elif reader.has("logits_scaling"):
        found["scale"] = 1 / reader.number("logits_scaling")
    return found


def attention_constants(reader: ConfigReader, mixer: Mapping[str, Any]) -> dict[str, float]:
    """What becomes of scores and values in one mixer."""
    found: dict[str, float] = {}
    if reader.has("attn_logit_softcapping"):
        found["softcap"] = reader.number("attn_logit_softcapping")
    if reader.has("query_pre_attn_scalar"):
        root = reader.number("query_pre_attn_scalar")
        if root != mixer["head_dim"]:
            found["scale"] = root**-0.5
    if str(reader.fields.get("model_type")).startswith("granite"):
        found["scale"] = reader.number("attention_multiplier", default=1.0)
    if reader.has("attention_value_scale"):
        found["value_scale"] = reader.number("attention_value_scale")
    if mixer.get("window") is not None and (base := _local_base(reader)) is not None:
        found["rotary_base"] = base
    return found


def _parameters(reader: ConfigReader, span: str = "full_attention") -> ConfigReader:
    """What transformers 5 has in one place; per kind of layer in some families."""
    part = reader.part("rope_parameters")
    if part is None:
        return ConfigReader({}, reader.at("rope_parameters"))
    return part.part(span) or (part if "sliding_attention" not in part.fields else ConfigReader({}, part.where))


def _local_base(reader: ConfigReader) -> float | None:
    """The rotary base of windowed layers where it is their own."""
    usual = _usual(_LOCAL_BASES, reader.fields.get("model_type"), 0.0)
    nested = reader.part("rope_parameters")
    if nested is not None and nested.has("sliding_attention"):
        return _parameters(reader, "sliding_attention").number("rope_theta", default=usual or 1e4)
    if usual or reader.has("rope_local_base_freq", "swa_rope_theta"):
        return reader.number("rope_local_base_freq", "swa_rope_theta", default=usual)
    return None


def _rotary(reader: ConfigReader, head_dim: int | None) -> dict[str, Any]:
    family = reader.fields.get("model_type")
    given = reader.part("rope_scaling")
    rule = given if given is not None and given.fields else _parameters(reader)
    base = rule.number("rope_theta", default=reader.number(*_BASE_NAMES, default=_usual(_BASES, family, 1e4)))
    base = _parameters(reader).number("rope_theta", default=base)
    share = _usual(_SHARES, family, 1.0)
    share = reader.number("partial_rotary_factor", "rotary_pct", "rope_pct", default=share)
    share = rule.number("partial_rotary_factor", default=share)
    dims = reader.optional("rotary_dim")
    if dims is not None and head_dim is not None:
        share = min(dims / head_dim, 1.0)
    rotary: dict[str, Any] = {"base": base, "share": share}
    further = [f"{name} {rule.fields[name]}"[:200] for name in rule.fields if name not in _KNOWN and rule.has(name)]
    if further:
        rotary["further"] = further
    scaling = _scaling(rule, reader)
    return rotary if scaling is None else {**rotary, "scaling": scaling}


def _scaling(rule: ConfigReader, reader: ConfigReader) -> dict[str, Any] | None:
    kind = rule.text(rule.given("rope_type", "type"), (*_SCALINGS, *_UNSCALED), default="default")
    if kind in _UNSCALED:
        return None
    scaling: dict[str, Any] = {"kind": _SCALINGS[kind]}
    scaling |= {ours: rule.number(theirs) for theirs, ours in _FACTORS.items() if rule.has(theirs)}
    for name in ("mscale", "mscale_all_dim"):
        # nought counts as absent
        if rule.has(name) and (value := rule.number(name, low=0.0)):
            scaling[name] = value
    original = rule.optional("original_max_position_embeddings", high=MAX_TOKENS)
    longest = reader.optional("max_position_embeddings", high=MAX_TOKENS)
    if original is None and kind not in ("linear", "proportional"):
        original = reader.optional("original_max_position_embeddings", high=MAX_TOKENS) or longest
    if original is not None:
        scaling["original_seq_len"] = original
    if "factor" not in scaling and kind not in ("proportional", "longrope", "su"):
        if original is None or longest is None:
            raise InputError(rule.at("factor"), "is missing", "add how many times longer sequences become")
        scaling["factor"] = longest / original
    if rule.has("truncate"):
        scaling["truncate"] = rule.flag("truncate", default=True)
    for theirs, ours in (("short_factor", "short_factors"), ("long_factor", "long_factors")):
        if rule.has(theirs):
            scaling[ours] = rule.numbers(theirs)
    return scaling
