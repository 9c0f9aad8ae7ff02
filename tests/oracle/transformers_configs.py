"""Small configs of transformers' architectures: every kind of layer, no two sizes alike that need not be.

Each is what a config.json holds. Sequences of `SEQ` tokens are longer than any window or chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
)

#: What one step of a test runs.
BATCH, SEQ = 3, 64

VOCAB = 1009

_TOKENS = {
    "vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "dtype": "bfloat16",
    "max_position_embeddings": 160, "initializer_range": 0.02, "tie_word_embeddings": False,
}  # fmt: skip
#: Heads split the stream.
_GROUPED = {
    "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 224,
    "num_hidden_layers": 4, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
#: Heads are wider than their share of the stream.
_WIDE = {**_GROUPED, "head_dim": 20}
_ALL_HEADS = {"hidden_size": 96, "num_attention_heads": 6, "num_hidden_layers": 4}
_QWEN_EXPERTS = {
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 56, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "norm_topk_prob": True, "output_router_logits": False,
}  # fmt: skip
_DEEPSEEK_EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 56, "first_k_dense_replace": 1,
    "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 6, "q_lora_rank": 72, "kv_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 20,
}  # fmt: skip


def _config(model_type: str, architecture: str, *parts: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"architectures": [architecture], "model_type": model_type, **_TOKENS}
    for part in parts:
        config |= part
    return config | fields


#: Name of the case → its config.json.
CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": _config("llama", "LlamaForCausalLM", _GROUPED, attention_bias=False, mlp_bias=False),
        "mistral": _config("mistral", "MistralForCausalLM", _WIDE, sliding_window=24),
        "qwen2": _config("qwen2", "Qwen2ForCausalLM", _GROUPED, use_sliding_window=False, tie_word_embeddings=True),
        "qwen3": _config("qwen3", "Qwen3ForCausalLM", _WIDE, use_sliding_window=False, attention_bias=False),
        "qwen2_moe": _config(
            "qwen2_moe", "Qwen2MoeForCausalLM", _GROUPED, _QWEN_EXPERTS, shared_expert_intermediate_size=120,
            mlp_only_layers=[0], norm_topk_prob=False, use_sliding_window=False, sliding_window=None,
        ),
        "qwen3_moe": _config(
            "qwen3_moe", "Qwen3MoeForCausalLM", _WIDE, _QWEN_EXPERTS, use_sliding_window=False, sliding_window=None
        ),
        "mixtral": _config(
            "mixtral", "MixtralForCausalLM", _WIDE, num_local_experts=8, num_experts_per_tok=2, sliding_window=None
        ),
        "deepseek_v2": _config(
            "deepseek_v2", "DeepseekV2ForCausalLM", _GROUPED, _LATENT, _DEEPSEEK_EXPERTS, n_shared_experts=2,
            topk_method="group_limited_greedy", norm_topk_prob=False,
        ),
        "deepseek_v3": _config(
            "deepseek_v3", "DeepseekV3ForCausalLM", _GROUPED, _LATENT, _DEEPSEEK_EXPERTS, n_shared_experts=1,
            norm_topk_prob=True,
        ),
        "deepseek_v32": _config(
            "deepseek_v32", "DeepseekV32ForCausalLM", _GROUPED, _LATENT, _DEEPSEEK_EXPERTS, n_shared_experts=1,
            norm_topk_prob=True, index_n_heads=10, index_head_dim=28, index_topk=24,
        ),
        "glm4_moe": _config(
            "glm4_moe", "Glm4MoeForCausalLM", _WIDE, _DEEPSEEK_EXPERTS, n_shared_experts=1, norm_topk_prob=True,
            attention_bias=True, use_qk_norm=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        ),
        "minimax_m2": _config(
            "minimax_m2", "MiniMaxM2ForCausalLM", _WIDE, num_local_experts=8, num_experts_per_tok=2, use_qk_norm=True
        ),
        "gpt_oss": _config(
            "gpt_oss", "GptOssForCausalLM", _WIDE, num_local_experts=8, num_experts_per_tok=2, attention_bias=True,
            sliding_window=24, layer_types=["sliding_attention", "full_attention"] * 2,
        ),
        "llama4_text": _config(
            "llama4_text", "Llama4ForCausalLM", _WIDE, intermediate_size=72, intermediate_size_mlp=224,
            num_local_experts=8, num_experts_per_tok=1, interleave_moe_layer_step=2, attention_chunk_size=24,
            no_rope_layer_interval=4, use_qk_norm=True,
        ),
        "gpt2": _config(
            "gpt2", "GPT2LMHeadModel", n_embd=96, n_head=6, n_layer=4, n_positions=160, n_inner=224,
            activation_function="gelu_new", tie_word_embeddings=True, pad_token_id=None,
        ),
        "gpt_neox": _config(
            "gpt_neox", "GPTNeoXForCausalLM", _ALL_HEADS, intermediate_size=224, hidden_act="gelu",
            attention_bias=True, use_parallel_residual=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        ),
        "opt": _config(
            "opt", "OPTForCausalLM", _ALL_HEADS, ffn_dim=224, word_embed_proj_dim=96, do_layer_norm_before=True,
            activation_function="relu", dropout=0.1, tie_word_embeddings=True,
        ),
        "bloom": _config(
            "bloom", "BloomForCausalLM", hidden_size=96, n_head=6, n_layer=4, tie_word_embeddings=True
        ),
        "falcon_7b": _config(
            "falcon", "FalconForCausalLM", _ALL_HEADS, multi_query=True, parallel_attn=True, bias=False, alibi=False,
            new_decoder_architecture=False, tie_word_embeddings=True,
        ),
        "falcon_40b": _config(
            "falcon", "FalconForCausalLM", _ALL_HEADS, num_kv_heads=2, parallel_attn=True, bias=False, alibi=False,
            new_decoder_architecture=True, tie_word_embeddings=True,
        ),
        "gemma2": _config(
            "gemma2", "Gemma2ForCausalLM", _WIDE, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=20,
            sliding_window=24, attn_logit_softcapping=50.0, final_logit_softcapping=30.0, tie_word_embeddings=True,
        ),
        "gemma3_text": _config(
            "gemma3_text", "Gemma3ForCausalLM", _WIDE, num_hidden_layers=6, hidden_activation="gelu_pytorch_tanh",
            query_pre_attn_scalar=20, sliding_window=24, tie_word_embeddings=True,
            layer_types=["sliding_attention"] * 5 + ["full_attention"],
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        ),
        "phi3": _config("phi3", "Phi3ForCausalLM", _GROUPED, sliding_window=24),
        "olmo2": _config("olmo2", "Olmo2ForCausalLM", _GROUPED, attention_bias=False),
        "starcoder2": _config(
            "starcoder2", "Starcoder2ForCausalLM", _GROUPED, hidden_act="gelu_pytorch_tanh", use_bias=True,
            sliding_window=24, norm_epsilon=1e-5, tie_word_embeddings=True,
        ),
        "granite": _config(
            "granite", "GraniteForCausalLM", _GROUPED, embedding_multiplier=12.0, attention_multiplier=0.0625,
            residual_multiplier=0.22, logits_scaling=8.0, tie_word_embeddings=True,
        ),
        "cohere": _config(
            "cohere", "CohereForCausalLM", _GROUPED, layer_norm_eps=1e-5, logit_scale=0.0625, use_qk_norm=True,
            tie_word_embeddings=True,
        ),
        "mamba2": _config(
            "mamba2", "Mamba2ForCausalLM", hidden_size=96, num_hidden_layers=4, expand=2, num_heads=12, head_dim=16,
            state_size=40, n_groups=2, conv_kernel=4, chunk_size=16, use_bias=False, use_conv_bias=True,
        ),
        "nemotron_h": _config(
            "nemotron_h", "NemotronHForCausalLM", _WIDE, _DEEPSEEK_EXPERTS,
            layers_block_type=["mamba", "moe", "mamba", "attention", "moe", "mlp"], num_hidden_layers=6,
            n_group=1, topk_group=1, n_shared_experts=1, moe_shared_expert_intermediate_size=120,
            mlp_hidden_act="relu2", mamba_num_heads=12, mamba_head_dim=16, ssm_state_size=40, n_groups=2,
            conv_kernel=4, chunk_size=16,
        ),
        "qwen3_next": _config(
            "qwen3_next", "Qwen3NextForCausalLM", _WIDE, _QWEN_EXPERTS, head_dim=24,
            shared_expert_intermediate_size=120, linear_conv_kernel_dim=4, linear_key_head_dim=12,
            linear_value_head_dim=14, linear_num_key_heads=2,
            linear_num_value_heads=4, layer_types=["linear_attention"] * 3 + ["full_attention"],
            rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        ),
        "bert": _config(
            "bert", "BertForMaskedLM", _ALL_HEADS, intermediate_size=224, hidden_act="gelu", type_vocab_size=2,
            layer_norm_eps=1e-12, tie_word_embeddings=True,
        ),
        "deepseek_v4": _config(
            "deepseek_v4", "DeepseekV4ForCausalLM", hidden_size=96, num_attention_heads=8, num_key_value_heads=1,
            num_hidden_layers=4, head_dim=20, q_lora_rank=72, o_groups=2, o_lora_rank=36, partial_rotary_factor=0.4,
            moe_intermediate_size=56, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1,
            num_hash_layers=1, hc_mult=2, hc_sinkhorn_iters=3, sliding_window=24, index_n_heads=10, index_head_dim=28,
            index_topk=12, max_position_embeddings=256, compress_rates={
                "compressed_sparse_attention": 4, "heavily_compressed_attention": 8
            },
            layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"] * 2,
        ),
        "t5": _config(
            "t5", "T5ForConditionalGeneration", d_model=96, d_kv=20, d_ff=224, num_heads=6, num_layers=4,
            num_decoder_layers=3, relative_attention_num_buckets=32, feed_forward_proj="gated-gelu",
            is_encoder_decoder=True, decoder_start_token_id=0,
        ),
    }
)  # fmt: skip

#: Cases that no importer of ours reads.
NOT_IMPORTED = frozenset({"deepseek_v4", "t5"})

_BUILDERS: Mapping[str, Any] = {"bert": AutoModelForMaskedLM, "t5": AutoModelForSeq2SeqLM}


def build(name: str, device: str = "meta", *, use_cache: bool = False, **changed: Any) -> nn.Module:
    """The module transformers builds from a config, with some fields changed.

    What is traced keeps no cache, whose first, empty tensors fit no trace. What runs on meta keeps one: without
    it, the values of positions are looked at, for sequences packed into one.
    """
    fields = {**CONFIGS[name], "use_cache": use_cache, **changed}
    del fields["architectures"]
    with torch.device(device):
        if name == "llama4_text":  # the automatic class of this type builds the model of text and images
            return Llama4ForCausalLM._from_config(Llama4TextConfig(**fields))
        builder = _BUILDERS.get(name, AutoModelForCausalLM)
        return builder.from_config(AutoConfig.for_model(**fields))


def inputs(batch: int = BATCH, seq: int = SEQ, device: str = "meta") -> dict[str, torch.Tensor]:
    """Tokens and labels, from which each of these modules returns its loss."""
    tokens = torch.zeros(batch, seq, dtype=torch.int64, device=device)
    return {"input_ids": tokens, "labels": tokens}
