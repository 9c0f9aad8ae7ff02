"""Models as MaxText 0.2.5 describes them: keys of its YAML, or a shipped model whose figures are all the same.

A shipped model's file goes before the YAML that names it, so a model of one's own is called `default`, with all keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from dovetail import models
from dovetail.errors import InputError
from dovetail.models import Model
from dovetail.models.attention import Attention
from dovetail.models.block import Block
from dovetail.models.feed_forward import Dense, Mixture
from dovetail.models.positions import RotaryScaling
from dovetail.plans.launch_models.unusual import unusual_attention, unusual_frame

VERSION = "MaxText 0.2.5"

#: Models of the catalogue that only a name of src/maxtext/configs/models describes, and describes as published.
NAMED: Mapping[str, str] = {"deepseek-v2-lite": "deepseek2-16b"}

#: Models of the catalogue that MaxText ships with some constant, vocabulary or choice of groups other than published:
#: their plans are right, since no time or memory depends on those, and their launch files are refused.
OTHER_CONSTANTS = frozenset({
    "deepseek-v2", "deepseek-v3", "deepseek-v3.2", "gemma-2-27b", "gemma-2-9b", "gemma-3-12b", "gemma-3-27b",
    "gemma-4-26b-a4b", "gemma-4-31b", "kimi-k2", "llama-4-maverick", "llama-4-scout", "mistral-7b",
})  # fmt: skip


def check_structure(model: Model) -> None:
    """Refuses a model that MaxText does not train, constants aside."""
    if model.name not in OTHER_CONSTANTS or models.from_catalogue(model.name) != model:
        model_keys(model)


def model_keys(model: Model) -> dict[str, Any]:
    """The keys that describe a model; one they cannot describe is refused."""
    if model.name in NAMED and models.from_catalogue(model.name) == model:
        return {"model_name": NAMED[model.name]}
    for what in unusual_frame(model):
        _refuse(what)
    blocks = [model.blocks[name] for part in model.layers for name in part.blocks * part.repeat]
    mixers = [block.mixer for block in blocks]
    first = mixers[0]
    if not isinstance(first, Attention):
        _refuse(f"has the mixer {first.kind if first is not None else 'none'}")
    if model.multi_token_prediction is not None:
        _refuse("predicts further tokens")
    plain = [m.model_copy(update={"window": None}) for m in mixers if isinstance(m, Attention)]
    if len(plain) < len(mixers) or any(mixer != plain[0] for mixer in plain):
        _refuse("has layers with different attention")
    for what in unusual_attention(first, blocks[0].norm):
        _refuse(what)
    half = blocks[0].feed_forward
    if any(block.feed_forward != half for block in blocks):
        _refuse("has layers with different feed-forwards")
    keys: dict[str, Any] = {
        "model_name": "default",
        "base_emb_dim": model.hidden, "base_num_decoder_layers": model.num_layers,
        "base_num_query_heads": first.heads, "base_num_kv_heads": first.kv_heads, "head_dim": first.head_dim,
        "vocab_size": model.vocab, "logits_via_embedding": model.head.tied, "normalize_embedding_logits": False,
        "normalization_layer_epsilon": model.norm_epsilon, "enable_dropout": model.dropout,
        **({"dropout_rate": 0.1} if model.dropout else {}),
    }  # fmt: skip
    if blocks[0].norm == "layer":
        return keys | _gpt3(model, blocks[0])
    if any(block.norm != "rms" for block in blocks) or not first.rotary:
        _refuse("has other norms than RMS norms, or no rotary positions")
    return keys | _block(blocks, first, half) | _rotary(model, gpt_oss=first.sinks)


def _refuse(what: str) -> NoReturn:
    fix = "use a framework that has it, or change the model"
    raise InputError("job: model", f"{what}, which {VERSION} has no keys for", fix)


def _block(blocks: Sequence[Block], mixer: Attention, half: object) -> dict[str, Any]:
    """The decoder block whose parts these are."""
    windows = [block.mixer.window for block in blocks if isinstance(block.mixer, Attention)]
    if mixer.sinks:
        return _gpt_oss(mixer, half, windows)
    if any(windows):
        _refuse("has windows outside GPT-OSS and Gemma")
    if mixer.output_bias or mixer.output_gate != "none":
        _refuse("has a bias or a gate on the output of attention")
    keys: dict[str, Any] = {"mlp_activations": ["silu", "linear"]}
    biased, normed = mixer.qkv_bias, mixer.qk_norm == "head"
    if isinstance(half, Dense):
        if half.activation != "swiglu" or half.bias or (biased and normed):
            _refuse("has a feed-forward other than SwiGLU without biases")
        kind = "qwen2" if biased else "qwen3" if normed else "llama2"
        switches = {"qwen2": {"attention_bias": True}, "qwen3": {"use_qk_norm": True}, "llama2": {}}
        return keys | {"decoder_block": kind, "base_mlp_dim": half.size} | switches[kind]
    if not isinstance(half, Mixture) or biased:
        _refuse("has dense feed-forwards in parallel to mixtures, or experts beside biased attention")
    usual = Mixture(kind="mixture", experts=half.experts, top_k=half.top_k, size=half.size, score="top_k_softmax")
    if half.model_copy(update={"score": "top_k_softmax", "imbalance": None}) != usual or half.score == "sigmoid":
        _refuse("has experts with shared ones, groups, biases, scaled or sigmoid gates")
    if not half.renormalise:
        _refuse("has gates that do not add up to one")
    keys |= {
        "base_mlp_dim": half.size, "base_moe_mlp_dim": half.size, "num_experts": half.experts,
        "num_experts_per_tok": half.top_k,
    }  # fmt: skip
    if normed:
        return keys | {"decoder_block": "qwen3_moe", "use_qk_norm": True, "norm_topk_prob": True}
    return keys | {"decoder_block": "mixtral"}


def _gpt_oss(mixer: Attention, half: object, windows: Sequence[int | None]) -> dict[str, Any]:
    if not isinstance(half, Mixture):
        _refuse("has attention sinks beside dense feed-forwards")
    clamped = half.activation == "swiglu_clamped" and half.bias and half.router_bias
    biased = mixer.qkv_bias and mixer.output_bias
    if not clamped or not biased or list(windows) != [windows[0], None] * (len(windows) // 2):
        _refuse("has attention sinks in other blocks than GPT-OSS has")
    return {
        "decoder_block": "gpt_oss", "mlp_activations": ["sigmoid", "linear"], "mlp_activations_limit": 7.0,
        "base_mlp_dim": half.size, "base_moe_mlp_dim": half.size, "num_experts": half.experts,
        "num_experts_per_tok": half.top_k, "attention_bias": True, "attention_sink": True, "mlp_bias": True,
        "routed_bias": True, "sliding_window_size": windows[0], "inhomogeneous_layer_cycle_interval": 2,
    }  # fmt: skip


def _gpt3(model: Model, block: Block) -> dict[str, Any]:
    mixer, half, rows = block.mixer, block.feed_forward, model.embedding.positions
    biased = isinstance(mixer, Attention) and mixer.qkv_bias and mixer.output_bias and mixer.heads == mixer.kv_heads
    plain = isinstance(half, Dense) and half.activation == "gelu_tanh" and half.bias
    if not biased or not plain or rows is None or model.head.norm != "layer" or not model.head.tied:
        _refuse("has layer norms in other blocks than GPT-3 has")
    assert isinstance(half, Dense)
    return {
        "decoder_block": "gpt3", "mlp_activations": ["gelu"], "base_mlp_dim": half.size, "fused_qkv": True,
        "trainable_position_size": rows, "use_iota_embed": True,
    }  # fmt: skip


def _rotary(model: Model, *, gpt_oss: bool) -> dict[str, Any]:
    rotary = model.rotary
    if rotary.share != 1 or not rotary.base.is_integer():
        _refuse("turns a part of each head, or has a rotary base that is no whole number")
    keys: dict[str, Any] = {"rope_max_timescale": int(rotary.base)}
    match rotary.scaling:
        case None:
            return keys
        case RotaryScaling(kind="llama3", factor=8.0, low_frequency=1.0, high_frequency=4.0, original_seq_len=8192) if (
            not gpt_oss
        ):
            return keys | {"rope_type": "llama3.1"}
        case RotaryScaling(kind="yarn", mscale=None, mscale_all_dim=None, attention_factor=None) as yarn if (
            gpt_oss and all(each.is_integer() for each in (yarn.factor, yarn.beta_fast, yarn.beta_slow))
        ):
            assert yarn.original_seq_len is not None
            return keys | {
                "rope_type": "yarn", "rope_factor": int(yarn.factor), "beta_fast": int(yarn.beta_fast),
                "beta_slow": int(yarn.beta_slow), "original_max_position_embeddings": yarn.original_seq_len,
                "max_position_embeddings": int(yarn.factor) * yarn.original_seq_len, "rope_interleave": False,
                "rope_truncate": yarn.truncate, "rope_attention_scaling": True,
            }  # fmt: skip
        case RotaryScaling(kind=kind, factor=factor):
            _refuse(f"scales its rotary positions by {kind} with the factor {factor:g}")
