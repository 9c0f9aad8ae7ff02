"""Small valid configs of every model type: its default switches, then random sizes and switches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from huggingface_reference import config_class
from transformers import PreTrainedConfig

Fields = dict[str, Any]

#: Names of the same size, the way different families spell them.
NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token", "top_k_experts"),
}

#: Sizes that need agree with no other.
SIZES: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            "intermediate_size", "intermediate_size_mlp", "dense_intermediate_size", "n_inner", "ffn_dim",
            "hidden_dim", "ffn_hidden_size", "moe_intermediate_size", "shared_intermediate_size",
            "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim",
        ),
        (24, 40, 96, 136),
    ),
    **dict.fromkeys(("n_shared_experts", "moe_num_shared_experts", "num_shared_experts"), (1, 2)),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), (8, 16, 24)),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), (8, 16)),
    **dict.fromkeys(("sliding_window", "window_size", "attention_chunk_size"), (8, 12)),
    **dict.fromkeys(("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim"), (3, 4)),
    **dict.fromkeys(("ssm_state_size", "state_size", "mamba_d_state"), (8, 12)),
    **dict.fromkeys(("n_groups", "mamba_n_groups"), (1, 2)),
    "head_dim": (8, 16, 24),
    "q_lora_rank": (20, 28),
    "kv_lora_rank": (12, 20),
    "linear_num_key_heads": (2,),
    "linear_num_value_heads": (2, 4),
    "linear_num_heads": (2, 4),
    "mamba_num_heads": (2, 4),
    "mamba_n_heads": (2, 4),
    "mamba_head_dim": (8, 16),
    "first_k_dense_replace": (0, 1, 2),
    "index_n_heads": (2, 4),
    "index_head_dim": (32,),
    "index_topk": (8,),
    "n_group": (1, 2),
    "topk_group": (1,),
    "type_vocab_size": (1, 2, 3),
    "word_embed_proj_dim": (20, 48),
    "num_ln_in_parallel_attn": (1, 2),
    "moe_latent_size": (12, 20),
}  # fmt: skip

SWITCHES = (
    "alibi", "attention_bias", "attention_out_bias", "bias", "do_layer_norm_before", "enable_bias",
    "enable_moe_block", "is_decoder", "layer_norm_elementwise_affine", "lm_head_bias", "mamba_conv_bias",
    "mamba_proj_bias", "mlp_bias", "multi_query", "new_decoder_architecture", "parallel_attn", "qk_layernorm",
    "qkv_bias", "tie_word_embeddings", "use_bias", "use_conv_bias", "use_parallel_residual", "use_qk_norm",
    "use_qkv_bias", "use_sliding_window",
)  # fmt: skip

#: Choices of one family beside or instead of the common ones; an empty tuple keeps the default.
CHOICES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    # an untied head keeps a second bias that nothing reads
    **{key: {"tie_word_embeddings": ()} for key in ("bert", "roberta", "camembert", "xlm-roberta")},
    "bamba": {"attn_layer_indices": ([0], [1], [0, 1])},
    "ernie4_5_moe": {"moe_layer_start_index": (0, 1), "moe_layer_interval": (1, 2)},
    "gemma4_text": {"attention_k_eq_v": (False, True), "hidden_size_per_layer_input": (0,)},
    "granitemoeshared": {"shared_intermediate_size": (0, 24)},
    "llama4_text": {"interleave_moe_layer_step": (1, 2)},
    "nemotron_h": {
        # biases are refused beside a latent width
        "mlp_bias": (),
        "layers_block_type": (
            ["linear_attention", "moe", "full_attention", "mlp"],
            ["mlp", "linear_attention", "linear_attention", "full_attention", "moe"],
        ),
    },
    "qwen2_moe": {"decoder_sparse_step": (1, 2), "mlp_only_layers": ([], [0])},
    "qwen3_moe": {"decoder_sparse_step": (1, 2), "mlp_only_layers": ([], [0])},
    "qwen3_next": {"decoder_sparse_step": (1, 2), "mlp_only_layers": ([], [0])},
}

#: Fields that may be absent from a config as far as its class says, but not from a model.
NEEDED: Mapping[str, tuple[str, ...]] = {
    "deepseek_v2": ("num_experts_per_tok",),
    "dots1": ("n_routed_experts", "num_experts_per_tok", "n_shared_experts", "n_group", "topk_group"),
    "gemma4_text": ("num_experts", "top_k_experts", "moe_intermediate_size"),
    "hunyuan_v1_dense": ("head_dim",),
    "hunyuan_v1_moe": ("head_dim",),
    "ministral": ("head_dim",),
    "nemotron": ("num_key_value_heads",),
    "nemotron_h": ("layers_block_type",),
}


def _falcon(fields: Fields) -> None:
    if fields.get("new_decoder_architecture"):
        fields["parallel_attn"] = True
    else:
        fields.pop("num_ln_in_parallel_attn", None)


def _gpt_neo(fields: Fields) -> None:
    fields["attention_types"] = [[["global"], 1], [["local"], fields["num_layers"] - 1]]


def _granite_hybrid(fields: Fields) -> None:
    fields["layer_types"] = ["linear_attention", "full_attention"] + ["linear_attention"] * (
        fields["num_hidden_layers"] - 2
    )


def _mamba2(fields: Fields) -> None:
    fields["head_dim"] = 2 * fields["hidden_size"] // fields["num_heads"]


def _opt(fields: Fields) -> None:
    if not fields.get("tie_word_embeddings", True):
        fields.pop("word_embed_proj_dim", None)


def _mimo(fields: Fields) -> None:
    # sliding layers have twice the key heads, which must divide the heads too
    fields["num_key_value_heads"] = fields["num_attention_heads"] // 2


#: What the sizes and switches of a family must agree on.
REPAIRS: Mapping[str, Callable[[Fields], None]] = {
    "falcon": _falcon,
    "gpt_neo": _gpt_neo,
    "granitemoehybrid": _granite_hybrid,
    "mamba2": _mamba2,
    "mimo_v2_flash": _mimo,
    "opt": _opt,
}


def variations(model_type: str, count: int) -> Iterator[tuple[Fields, PreTrainedConfig]]:
    """The small default config, then `count` random ones, each with the fields it was made from."""
    for number in range(count + 1):
        # seeded by a text: the same in every run and whatever other types there are
        random = Random(f"{model_type} {number}")  # noqa: S311
        yield _variation(model_type, random, switches=number > 0)


def _variation(model_type: str, random: Random, *, switches: bool) -> tuple[Fields, PreTrainedConfig]:
    kind = config_class(model_type)
    assert kind is not None, f"transformers does not know {model_type}: name the type it equals in SAME_AS"
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    optional = {name for name, value in defaults.items() if value is None} - set(NEEDED.get(model_type, ()))
    choices = _shape(random) | dict(SIZES)
    if switches:
        choices |= dict.fromkeys(SWITCHES, (False, True))
    choices |= CHOICES.get(model_type, {})
    share = 0.7 if switches else 0.0
    fields = {
        name: random.choice(values)
        for name, values in choices.items()
        if values and name in defaults and (name not in optional or random.random() < share)
    }
    if isinstance(pad := defaults.get("pad_token_id"), int) and pad >= fields["vocab_size"]:
        fields["pad_token_id"] = 0
    if model_type in REPAIRS:
        REPAIRS[model_type](fields)
    return fields, kind(**fields)


def _shape(random: Random) -> dict[str, tuple[Any, ...]]:
    heads = random.choice((2, 4, 6))
    drawn = {
        "hidden": heads * random.choice((8, 16)),
        "layers": random.choice((2, 3, 4, 5)),
        "heads": heads,
        "kv_heads": random.choice([n for n in (1, 2, 3, 6) if heads % n == 0]),
        "vocab": random.choice((97, 128)),
        "positions": random.choice((24, 32)),
        "experts": random.choice((4, 8)),
        "top_k": random.choice((1, 2)),
    }
    return {name: (value,) for size, value in drawn.items() for name in NAMES[size]}
