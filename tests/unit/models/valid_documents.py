"""Valid model files of every kind, and Hugging Face configs with every field their importer reads."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

_ATTENTION = {"kind": "attention", "heads": 8, "kv_heads": 2, "head_dim": 16}
_DENSE = {"kind": "dense", "size": 256}
_MIXTURE = {"kind": "mixture", "experts": 16, "top_k": 2, "size": 64}


def _model(blocks: Document, layers: list[Document], **fields: Any) -> Document:
    return {"name": "small", "hidden": 128, "vocab": 1000, "blocks": blocks, "layers": layers, **fields}


#: What they leave out has a default.
MODEL_FILES: dict[str, Document] = {
    "dense": _model(
        {
            "full": {
                "mixer": {**_ATTENTION, "rotary": True, "qkv_bias": True, "qk_norm": "head", "output_gate": "channel"},
                "feed_forward": {**_DENSE, "activation": "swiglu", "bias": False},
                "norm": "rms",
                "norm_position": "around",
            },
            "local": {"mixer": {**_ATTENTION, "window": 512}, "feed_forward": _DENSE, "parallel": True},
        },
        [{"blocks": ["local", "full"], "repeat": 6}],
        source="a report",
        note="rounded",
        published_parameters=8.0e9,
        max_seq_len=8192,
        head={"tied": True, "norm": "rms", "softcap": 30.0},
    ),
    "mixture": _model(
        {
            "first": {"mixer": _ATTENTION, "feed_forward": _DENSE},
            "sparse": {
                "mixer": {**_ATTENTION, "chunk": 512},
                "feed_forward": {
                    **_MIXTURE, "shared_size": 64, "shared_gate": True, "score": "sigmoid", "groups": 4,
                    "top_groups": 2, "imbalance": 1.5, "correction_bias": True,
                },
            },
        },
        [{"blocks": ["first"]}, {"blocks": ["sparse"], "repeat": 11}],
    ),
    "latent": _model(
        {
            "layer": {
                "mixer": {
                    "kind": "latent_attention", "heads": 8, "query_rank": 96, "kv_rank": 64, "nope_dim": 16,
                    "rope_dim": 8, "value_dim": 16,
                    "indexer": {"heads": 4, "head_dim": 16, "top_k": 128, "query_from": "latent"},
                },
                "feed_forward": _MIXTURE,
            },
        },
        [{"blocks": ["layer"], "repeat": 4}],
        multi_token_prediction={"modules": 1, "block": "layer"},
    ),
    "gated_delta": _model(
        {
            "linear": {
                "mixer": {
                    "kind": "gated_delta", "key_heads": 4, "value_heads": 8, "key_dim": 16, "value_dim": 16,
                    "conv_kernel": 4,
                },
                "feed_forward": _MIXTURE,
            },
            "full": {"mixer": _ATTENTION, "feed_forward": _MIXTURE},
        },
        [{"blocks": ["linear", "linear", "linear", "full"], "repeat": 3}],
    ),
    "kimi_delta": _model(
        {
            "linear": {"mixer": {"kind": "kimi_delta", "heads": 8, "head_dim": 16}, "feed_forward": _DENSE},
            "lightning": {"mixer": {"kind": "lightning", "heads": 8, "head_dim": 16}, "feed_forward": _DENSE},
        },
        [{"blocks": ["linear", "lightning"], "repeat": 2}],
    ),
    "state_space": _model(
        {
            "mamba": {
                "mixer": {
                    "kind": "state_space", "heads": 8, "head_dim": 16, "state": 32, "groups": 4, "conv_bias": True,
                    "chunk": 128,
                },
            },
            "attention": {"mixer": {**_ATTENTION, "rotary": False}},
            "wide": {"feed_forward": {**_DENSE, "activation": "relu2"}},
        },
        [{"blocks": ["mamba", "wide"], "repeat": 5}, {"blocks": ["attention", "wide"]}],
    ),
    "beside": _model(
        {
            "layer": {
                "mixer": {**_ATTENTION, "value_norm": True, "key_is_value": True},
                "feed_forward": {"kind": "dense_beside_mixture", "dense": _DENSE, "mixture": _MIXTURE},
            },
        },
        [{"blocks": ["layer"], "repeat": 2}],
    ),
    "encoder": _model(
        {
            "layer": {
                "mixer": {**_ATTENTION, "causal": False},
                "feed_forward": {**_DENSE, "activation": "gelu"},
                "norm": "layer",
                "norm_position": "residual",
            },
        },
        [{"blocks": ["layer"], "repeat": 2}],
        max_seq_len=512,
        embedding={"positions": 512, "token_types": 2, "width": 64, "norm": "layer"},
        head={"transform": True, "transform_activation": "gelu", "bias": True},
        dropout=True,
    ),
}  # fmt: skip

#: Fields without which a model file says too little, wherever they stand.
REQUIRED_IN_FILES = {
    "name", "hidden", "vocab", "blocks", "layers", "kind", "heads", "kv_heads", "head_dim", "kv_rank", "nope_dim",
    "rope_dim", "value_dim", "key_heads", "value_heads", "key_dim", "state", "size", "experts", "top_k", "modules",
    "block", "dense", "mixture",
}  # fmt: skip


def _without(config: Document, *names: str) -> Document:
    return {name: value for name, value in config.items() if name not in names}


_SIZES = {"hidden_size": 128, "vocab_size": 1000, "max_position_embeddings": 4096, "num_hidden_layers": 4}
_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16}
_USUAL = {**_SIZES, **_HEADS, "tie_word_embeddings": False}
_GATED = {"intermediate_size": 256, "hidden_act": "silu"}
_LATENT = {
    "num_attention_heads": 8, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "attention_bias": False,
}  # fmt: skip
_DEEPSEEK = {
    **_SIZES, **_LATENT, **_GATED, "tie_word_embeddings": False, "moe_intermediate_size": 64, "n_routed_experts": 16,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
    "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
}  # fmt: skip
_QWEN_MOE = {
    "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True,
    "decoder_sparse_step": 2, "mlp_only_layers": [0],
}  # fmt: skip

CONFIGS: dict[str, Document] = {
    "llama": {**_USUAL, **_GATED, "attention_bias": False, "mlp_bias": True},
    "qwen3": {
        **_USUAL, **_GATED, "attention_bias": False, "use_sliding_window": True, "sliding_window": 512,
        "max_window_layers": 2,
    },
    "mixtral": {**_USUAL, **_GATED, "sliding_window": 512, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": {**_USUAL, **_GATED, **_QWEN_MOE, "attention_bias": False},
    "ernie4_5_moe": {
        **_USUAL, **_GATED, "use_bias": False, "moe_num_experts": 16, "moe_k": 2, "moe_intermediate_size": 64,
        "moe_num_shared_experts": 1, "moe_layer_start_index": 1, "moe_layer_end_index": 3, "moe_layer_interval": 1,
    },
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": {**_DEEPSEEK, "index_n_heads": 4, "index_head_dim": 16, "index_topk": 128},
    "gpt_oss": {
        **_USUAL, "attention_bias": True, "sliding_window": 128, "num_local_experts": 16, "experts_per_token": 2,
        "intermediate_size": 64,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    },
    "llama4_text": {
        **_USUAL, **_GATED, "intermediate_size_mlp": 512, "attention_bias": False, "interleave_moe_layer_step": 2,
        "no_rope_layers": [1, 1, 1, 0], "num_local_experts": 16, "num_experts_per_tok": 1, "use_qk_norm": True,
        "attention_chunk_size": 1024,
    },
    "step3p5": {
        **_SIZES, "num_attention_heads": 8, "num_attention_groups": 2, "head_dim": 16, "tie_word_embeddings": False,
        **_GATED, "attention_bias": False, "sliding_window": 512, "num_sliding_attention_heads": 12,
        "n_routed_experts": 16, "moe_top_k": 2, "moe_intermediate_size": 64, "share_expert_dim": 64,
        "first_k_dense_replace": 1,
    },
    "gemma3": {
        "model_type": "gemma3",
        "text_config": {
            **_USUAL, "model_type": "gemma3_text", "intermediate_size": 256,
            "sliding_window": 512, "sliding_window_pattern": 2, "attention_bias": False,
        },
    },
    "qwen3_next": {
        **_USUAL, **_GATED, **_QWEN_MOE, "attention_bias": False, "linear_num_key_heads": 4,
        "linear_num_value_heads": 8, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4, "shared_expert_intermediate_size": 64, "full_attention_interval": 4,
    },
    "kimi_linear": {
        **_without(_DEEPSEEK, "max_position_embeddings", "num_nextn_predict_layers"), "model_max_length": 4096,
        "linear_attn_config": {
            "num_heads": 8, "head_dim": 16, "short_conv_kernel_size": 4, "full_attn_layers": [4],
        },
    },
    "nemotron_h": {
        **_without(_USUAL, "num_hidden_layers"), "mlp_hidden_act": "relu2",
        "mlp_bias": False, "intermediate_size": 256,
        "hybrid_override_pattern": "M-M*E", "mamba_num_heads": 8, "n_groups": 4, "mamba_head_dim": 16,
        "ssm_state_size": 32, "conv_kernel": 4, "use_conv_bias": True, "use_bias": False, "chunk_size": 128,
        "n_routed_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 64, "moe_latent_size": 32,
    },
    "granitemoehybrid": {
        **_USUAL, **_GATED, "attention_bias": False, "num_local_experts": 16, "num_experts_per_tok": 2,
        "shared_intermediate_size": 64, "mamba_n_heads": 16, "mamba_n_groups": 1, "mamba_expand": 2,
        "mamba_d_head": 16, "mamba_d_state": 32, "mamba_d_conv": 4, "mamba_conv_bias": True,
        "mamba_proj_bias": False, "mamba_chunk_size": 256, "layer_types": ["mamba", "mamba", "mamba", "attention"],
    },
    "minimax": {
        **_USUAL, **_GATED, "num_local_experts": 16, "num_experts_per_tok": 2, "attn_type_list": [0, 0, 0, 1],
    },
    "gpt2": {
        "n_embd": 128, "n_head": 8, "n_layer": 4, "n_positions": 1024, "n_inner": 512, "vocab_size": 1000,
        "activation_function": "gelu_new", "resid_pdrop": 0.1, "tie_word_embeddings": True,
        "add_cross_attention": False,
    },
    "falcon": {
        **_without(_SIZES, "max_position_embeddings"), "num_attention_heads": 8, "num_kv_heads": 2, "bias": False,
        "ffn_hidden_size": 512, "alibi": False, "activation": "gelu", "new_decoder_architecture": True,
        "parallel_attn": True, "num_ln_in_parallel_attn": 2, "hidden_dropout": 0.0, "tie_word_embeddings": True,
    },
    "bert": {
        **_SIZES, "num_attention_heads": 8, "intermediate_size": 512, "hidden_act": "gelu", "type_vocab_size": 2,
        "is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute",
        "hidden_dropout_prob": 0.1, "tie_word_embeddings": True,
    },
    "mamba2": {
        **_SIZES, "tie_word_embeddings": True, "num_heads": 8, "n_groups": 4, "head_dim": 16, "state_size": 32,
        "conv_kernel": 4, "use_conv_bias": True, "use_bias": False, "chunk_size": 256,
    },
}  # fmt: skip

for _model_type, _config in CONFIGS.items():
    _config.setdefault("model_type", _model_type)

#: Sizes that may be 0 in a config: none of the kind.
ZERO_IN_CONFIGS = {
    "first_k_dense_replace", "max_window_layers", "moe_layer_start_index", "moe_layer_end_index",
    "moe_num_shared_experts", "n_shared_experts", "num_nextn_predict_layers", "shared_expert_intermediate_size",
    "shared_intermediate_size", "num_local_experts", "type_vocab_size",
}  # fmt: skip

#: Fields without which no config of the type is complete.
REQUIRED_IN_CONFIGS: dict[str, set[str]] = {
    name: {"model_type", "hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"} & config.keys()
    for name, config in CONFIGS.items()
}
_FURTHER = {
    "llama": {"intermediate_size"},
    "mixtral": {"num_local_experts", "num_experts_per_tok"},
    "qwen3_moe": {"num_experts", "num_experts_per_tok", "moe_intermediate_size"},
    "ernie4_5_moe": {"moe_num_experts", "moe_k", "moe_intermediate_size"},
    "deepseek_v3": {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_routed_experts"},
    "deepseek_v32": {"index_n_heads", "index_head_dim", "index_topk"},
    "gpt_oss": {"num_local_experts", "experts_per_token"},
    "step3p5": {"num_attention_groups", "moe_top_k", "share_expert_dim"},
    "qwen3_next": {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim"},
    "nemotron_h": {"hybrid_override_pattern", "mamba_num_heads", "mamba_head_dim", "ssm_state_size"},
    "granitemoehybrid": {"mamba_n_heads", "num_experts_per_tok"},
    "mamba2": {"num_heads", "head_dim", "state_size"},
    "gpt2": {"n_embd", "n_head", "n_layer"},
    "bert": {"intermediate_size"},
}
for _name, _fields in _FURTHER.items():
    REQUIRED_IN_CONFIGS[_name] |= _fields
