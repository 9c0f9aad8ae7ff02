"""Models as torchtitan 0.3.0 builds them: a family of blocks, and the constants a Python recipe states at its top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NoReturn

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.models import Model
from dovetail.models.attention import Attention
from dovetail.models.block import Block
from dovetail.models.feed_forward import Dense, Mixture
from dovetail.models.latent_attention import LatentAttention
from dovetail.models.positions import RotaryScaling
from dovetail.plans.launch_models.unusual import unusual_attention, unusual_frame

VERSION = "torchtitan 0.3.0"


@frozen
class TitanModel:
    """A model in torchtitan's words."""

    #: whose blocks it is made of: llama3, qwen3, deepseek_v3 or gpt_oss
    family: str
    #: names at the top of the recipe, as literals
    constants: Mapping[str, Any]


def varies_in_length(model: Model) -> bool:
    """Whether its attention is the one over variable lengths, which cannot be split along the sequence."""
    mixers = (block.mixer for block in model.blocks.values())
    return any(isinstance(mixer, Attention) and (mixer.sinks or mixer.window is not None) for mixer in mixers)


def shape_of(model: Model, seq_len: int) -> TitanModel:
    """The shape of a model; one whose parts torchtitan does not have is refused."""
    for what in unusual_frame(model):
        _refuse(what)
    order = [name for part in model.layers for name in part.blocks * part.repeat]
    blocks = [model.blocks[name] for name in order]
    if model.embedding.positions is not None or model.dropout:
        _refuse("has learned positions" if model.embedding.positions is not None else "has dropout")
    if any(block.norm != "rms" for block in blocks) or model.head.norm != "rms":
        _refuse("has other norms than RMS norms")
    if not all(isinstance(block.mixer, Attention | LatentAttention) for block in blocks):
        _refuse("has mixers other than attention")
    if not all(getattr(block.mixer, "rotary", False) for block in blocks):
        _refuse("has layers without rotary positions")
    longest = max(model.max_seq_len, seq_len)
    frame = {
        "VOCAB_SIZE": model.vocab,
        "DIM": model.hidden,
        "NORM_EPSILON": model.norm_epsilon,
        "TIED": model.head.tied,
    }
    first = blocks[0].mixer
    if isinstance(first, LatentAttention):
        return TitanModel("deepseek_v3", {**frame, **_latent(model, blocks, longest)})
    if model.multi_token_prediction is not None:
        _refuse("predicts further tokens outside DeepSeek's blocks")
    if any(isinstance(block.mixer, Attention) and block.mixer.sinks for block in blocks):
        return TitanModel("gpt_oss", {**frame, **_gpt_oss(model, blocks, longest)})
    grouped = [_grouped(block) for block in blocks]
    rope = _rope(model, longest, grouped[0]["head_dim"])
    if rope["scaling"] == "yarn":
        _refuse("has YaRN outside latent attention")
    if _is_llama(model, grouped):
        plain = grouped[0]
        layers = {
            "n_layers": len(blocks), "n_heads": plain["n_heads"], "n_kv_heads": plain["n_kv_heads"],
            "hidden_dim": plain["hidden_dim"],
        }  # fmt: skip
        return TitanModel("llama3", {**frame, "ROPE": rope, "LAYERS": layers})
    used = {name: grouped[order.index(name)] for name in dict.fromkeys(order)}
    layers = [(name, len(list(run))) for name, run in groupby(order)]
    return TitanModel("qwen3", {**frame, "ROPE": rope, "BLOCKS": used, "LAYERS": layers})


def _refuse(what: str) -> NoReturn:
    fix = "use a framework that has it, or change the model"
    raise InputError("job: model", f"{what}, which {VERSION} does not have", fix)


def _is_llama(model: Model, blocks: Sequence[Mapping[str, Any]]) -> bool:
    plain = blocks[0]
    return (
        all(block == plain for block in blocks)
        and plain["hidden_dim"] is not None
        and not (plain["window"] or plain["qkv_bias"] or plain["qk_norm"])
        and plain["n_heads"] * plain["head_dim"] == model.hidden
    )


def _grouped(block: Block) -> dict[str, Any]:
    """A block with grouped-query attention."""
    mixer, half = block.mixer, block.feed_forward
    if not isinstance(mixer, Attention):
        _refuse("has mixers other than attention")
    for what in unusual_attention(mixer, block.norm):
        _refuse(what)
    if mixer.output_bias or mixer.output_gate != "none":
        _refuse("has a bias or a gate on the output of attention")
    fields: dict[str, Any] = {
        "n_heads": mixer.heads, "n_kv_heads": mixer.kv_heads, "head_dim": mixer.head_dim,
        "qkv_bias": mixer.qkv_bias, "qk_norm": mixer.qk_norm == "head", "window": mixer.window,
    }  # fmt: skip
    if isinstance(half, Dense):
        _check_activation(half.activation, bias=half.bias)
        return {**fields, "hidden_dim": half.size, "moe": None}
    return {**fields, "hidden_dim": None, "moe": _mixture(half)}


def _check_activation(name: str, *, bias: bool) -> None:
    if name != "swiglu":
        _refuse(f"has the activation {name}")
    if bias:
        _refuse("has biases in its feed-forwards")


def _mixture(half: object) -> dict[str, Any]:
    if not isinstance(half, Mixture):
        _refuse("has dense feed-forwards in parallel to mixtures")
    _check_activation(half.activation, bias=half.bias or half.shared_bias or half.router_bias)
    for present, what in (
        (half.router_scale, "scales what its router reads"),
        (half.trained_correction, "trains the bias that balances its experts"),
        (half.latent is not None, "has experts of another width than the stream"),
        (half.shared_gate, "has a gate on its shared experts"),
        (half.groups > 1 and half.score != "sigmoid", "chooses groups of experts by their best one"),
    ):
        if present:
            _refuse(what)
    return {
        "num_experts": half.experts, "top_k": half.top_k, "hidden_dim": half.size, "shared_dim": half.shared_size,
        # a softmax over the chosen is one over all whose chosen gates are made to add up to one
        "score_func": "sigmoid" if half.score == "sigmoid" else "softmax",
        "route_norm": half.renormalise or half.score == "top_k_softmax", "route_scale": half.routed_scale,
        "num_expert_groups": half.groups if half.groups > 1 else None,
        "num_limited_groups": half.top_groups if half.groups > 1 else None,
        "correction_bias": half.correction_bias,
    }  # fmt: skip


def _rope(model: Model, longest: int, dim: int) -> dict[str, Any]:
    rotary = model.rotary
    if rotary.share != 1:
        _refuse(f"turns {rotary.share:g} of each head")
    rope: dict[str, Any] = {"dim": dim, "max_seq_len": longest, "theta": rotary.base}
    match rotary.scaling:
        case None:
            return {**rope, "scaling": "none"}
        case RotaryScaling(kind="llama3") as scaling:
            return {
                **rope, "scaling": "llama", "scaling_factor": scaling.factor, "low_freq_factor": scaling.low_frequency,
                "high_freq_factor": scaling.high_frequency,
                "original_max_position_embeddings": scaling.original_seq_len,
            }  # fmt: skip
        case RotaryScaling(kind="yarn", attention_factor=None) as scaling:
            return {
                **rope, "scaling": "yarn", "rope_factor": scaling.factor, "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow, "original_seq_len": scaling.original_seq_len,
                "truncate": scaling.truncate,
            }  # fmt: skip
        case RotaryScaling(kind=kind):
            _refuse(f"scales its rotary positions by {kind}")


def _latent(model: Model, blocks: Sequence[Block], longest: int) -> dict[str, Any]:
    mixer = blocks[0].mixer
    assert isinstance(mixer, LatentAttention)
    if any(block.mixer != mixer for block in blocks):
        _refuse("has layers with different attention")
    if mixer.bias or mixer.indexer is not None or mixer.norm != "rms" or model.head.tied:
        _refuse("has latent attention with biases or an indexer, or tied embeddings")
    dense = [block.feed_forward for block in blocks if isinstance(block.feed_forward, Dense)]
    mixtures = [block.feed_forward for block in blocks if not isinstance(block.feed_forward, Dense)]
    first = len(dense)
    if not mixtures or any(isinstance(block.feed_forward, Dense) for block in blocks[first:]):
        _refuse("has dense layers after the first ones, or no others")
    if any(each != mixtures[0] for each in mixtures) or any(each != dense[0] for each in dense):
        _refuse("has layers with different feed-forwards")
    if dense:
        _check_activation(dense[0].activation, bias=dense[0].bias)
    moe = _mixture(mixtures[0])
    if moe["shared_dim"] is None or moe["shared_dim"] % moe["hidden_dim"]:
        _refuse("has no shared experts of the width of routed ones")
    scaling = model.rotary.scaling
    mscale = 0.0 if scaling is None or scaling.mscale_all_dim is None else scaling.mscale_all_dim
    if scaling is not None and (not mscale or scaling.mscale != mscale):
        _refuse("has YaRN without mscale and mscale_all_dim, or with different ones")
    further = model.multi_token_prediction
    if further is not None and model.blocks[further.block] != blocks[-1]:
        _refuse("predicts further tokens with another block than its last")
    return {
        "ROPE": _rope(model, longest, mixer.rope_dim),
        "LAYERS": {
            "n_layers": len(blocks), "n_dense_layers": first, "n_heads": mixer.heads,
            "q_lora_rank": mixer.query_rank or 0, "kv_lora_rank": mixer.kv_rank, "qk_nope_head_dim": mixer.nope_dim,
            "qk_rope_head_dim": mixer.rope_dim, "v_head_dim": mixer.value_dim, "mscale": mscale,
            # a width the builder asks for also where no layer is dense
            "dense_hidden_dim": dense[0].size if dense else moe["hidden_dim"], "moe_hidden_dim": moe["hidden_dim"],
            "num_experts": moe["num_experts"], "num_shared_experts": moe["shared_dim"] // moe["hidden_dim"],
            "router_top_k": moe["top_k"], "router_score_func": moe["score_func"],
            "router_num_expert_groups": moe["num_expert_groups"],
            "router_num_limited_groups": moe["num_limited_groups"],
            "router_route_scale": moe["route_scale"], "router_route_norm": moe["route_norm"],
        },
        "CORRECTION_BIAS": moe["correction_bias"],
        "MTP_LAYERS": 0 if further is None else further.modules,
    }  # fmt: skip


def _gpt_oss(model: Model, blocks: Sequence[Block], longest: int) -> dict[str, Any]:
    """GPT-OSS: what its blocks have fixed must be as they have it."""
    mixers = [block.mixer for block in blocks if isinstance(block.mixer, Attention)]
    first, half = mixers[0], blocks[0].feed_forward
    if any(block.feed_forward != half for block in blocks) or not isinstance(half, Mixture):
        _refuse("has sinks beside layers with different feed-forwards")
    alike = [mixer.model_copy(update={"window": None}) for mixer in mixers]
    biased = first.qkv_bias and first.output_bias and half.bias and half.router_bias
    clamped = half.activation == "swiglu_clamped" and half.shared_size is None and not half.correction_bias
    chosen = half.score == "top_k_softmax" and half.routed_scale == 1 and half.groups == 1
    yarn = model.rotary.scaling is not None and model.rotary.scaling.kind == "yarn"
    windows = {mixer.window for mixer in mixers} - {None}
    if any(mixer != alike[0] for mixer in alike) or len(windows) > 1:
        _refuse("has layers with different attention")
    if model.head.tied:
        _refuse("has attention sinks and tied embeddings")
    if not (biased and clamped and chosen and yarn) or first.qk_norm != "none" or len(mixers) < len(blocks):
        _refuse("has attention sinks in other blocks than GPT-OSS has")
    for what in unusual_attention(first, blocks[0].norm):
        _refuse(what)
    return {
        "ROPE": _rope(model, longest, first.head_dim),
        "ATTENTION": {"n_heads": first.heads, "n_kv_heads": first.kv_heads, "head_dim": first.head_dim},
        "EXPERTS": {"num_experts": half.experts, "top_k": half.top_k, "hidden_dim": half.size},
        "WINDOWS": [mixer.window for mixer in mixers],
    }
