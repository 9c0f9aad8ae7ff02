"""Constants a config.json may have: each is in the launch file, or the framework refuses the model by its name."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import InputError
from dovetail.launch.targets import EXPORTERS
from dovetail.models.catalogue import document_of
from dovetail.models.huggingface import import_config
from dovetail.plans.plan_file import task_of

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 32000, "max_position_embeddings": 131072,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "intermediate_size": 1024, "moe_intermediate_size": 256, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "q_lora_rank": 64, "kv_lora_rank": 64,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "vocab_size": 32000,
    "max_position_embeddings": 4096, "first_k_dense_replace": 1,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 512, "num_local_experts": 8,
    "num_experts_per_tok": 2, "vocab_size": 32000, "max_position_embeddings": 131072, "rope_scaling": {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 4096, "truncate": False,
    },
}  # fmt: skip
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
TARGETS = ("megatron", "torchtitan", "maxtext")
#: A config, and for each target what its file has, or the words it is refused with.
CASES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "base and epsilon": (
        LLAMA | {"rope_theta": 700000.0, "rms_norm_eps": 3e-6},
        {"megatron": "--rotary-base 700000", "torchtitan": '"theta": 700000.0', "maxtext": "timescale: 700000"},
    ),
    "epsilon": (
        LLAMA | {"rms_norm_eps": 3e-6},
        {"megatron": "--norm-epsilon 3e-06", "torchtitan": "NORM_EPSILON = 3e-06", "maxtext": "epsilon: 3.0e-06"},
    ),
    "base inside the scaling": (
        LLAMA | {"rope_scaling": LLAMA3 | {"rope_theta": 500000.0}},
        {"megatron": "--rotary-base 500000", "torchtitan": '"theta": 500000.0', "maxtext": "timescale: 500000"},
    ),
    "an empty scaling beside parameters": (
        LLAMA | {"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
        {"megatron": "--rotary-seq-len-interpolation-factor 4", "torchtitan": "! by linear", "maxtext": "! by linear"},
    ),
    "llama3": (
        LLAMA | {"rope_scaling": LLAMA3},
        {"megatron": "--use-rope-scaling", "torchtitan": '"scaling_factor": 8.0', "maxtext": "rope_type: llama3.1"},
    ),
    "llama3 by another factor": (
        LLAMA | {"rope_scaling": LLAMA3 | {"factor": 32.0}},
        {"megatron": "! with factor 32.0", "torchtitan": '"scaling_factor": 32.0', "maxtext": "! the factor 32"},
    ),
    "a key nobody knows": (
        LLAMA | {"rope_scaling": LLAMA3 | {"llama_4_scaling_beta": 0.1}},
        dict.fromkeys(TARGETS, "! llama_4_scaling_beta 0.1"),
    ),
    "a part of each head": (
        LLAMA | {"partial_rotary_factor": 0.5},
        {"megatron": "--rotary-percent 0.5", "torchtitan": "! turns 0.5 of each", "maxtext": "! a part of each head"},
    ),
    "router": (
        DEEPSEEK | {"routed_scaling_factor": 1.75, "n_group": 4, "topk_group": 2, "rope_scaling": YARN | {
            "mscale": 1.0, "mscale_all_dim": 1.0}},
        {"megatron": "--moe-router-topk-scaling-factor 1.75", "torchtitan": '"router_route_scale": 1.75',
         "maxtext": "! latent_attention"},
    ),
    "yarn": (
        DEEPSEEK | {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 0.7}},
        {"megatron": "--mscale-all-dim 0.7", "torchtitan": '"mscale": 0.7', "maxtext": "! latent_attention"},
    ),
    "yarn without mscale": (
        DEEPSEEK | {"rope_scaling": YARN},
        {"megatron": "! without mscale", "torchtitan": "! without mscale", "maxtext": "! latent_attention"},
    ),
    "plain rotary positions in latent attention": (
        DEEPSEEK,
        {"megatron": "--rope-type rope", "torchtitan": '"scaling": "none"', "maxtext": "! latent_attention"},
    ),
    "one expert a token": (
        DEEPSEEK | {"num_experts_per_tok": 1},
        {"megatron": "! a gate that is always one", "torchtitan": '"router_top_k": 1', "maxtext": "! latent_attention"},
    ),
    "sinks": (
        GPT_OSS | {"tie_word_embeddings": False},
        {"megatron": "--softmax-type learnable", "torchtitan": "WINDOWS = [128,", "maxtext": "attention_sink: true"},
    ),
    "sinks and tied tables": (
        GPT_OSS | {"tie_word_embeddings": True},
        {"megatron": "--softmax-type learnable", "torchtitan": "! tied embeddings", "maxtext": "embedding: true"},
    ),
    "a yarn factor that is no whole number": (
        GPT_OSS | {"rope_scaling": GPT_OSS["rope_scaling"] | {"factor": 32.5}},
        {"megatron": "--rotary-scaling-factor 32.5", "torchtitan": '"rope_factor": 32.5', "maxtext": "! factor 32.5"},
    ),
    "softcap": (
        {**LLAMA, "model_type": "gemma2", "head_dim": 64, "final_logit_softcapping": 30.0},
        dict.fromkeys(TARGETS, "! scales its embeddings by 22.6274"),
    ),
    "a scale of scores": (
        LLAMA | {"model_type": "granite", "attention_multiplier": 0.015},
        dict.fromkeys(TARGETS, "! scales its scores by 0.015"),
    ),
    "norms after the rotary positions": (
        LLAMA | {"model_type": "hunyuan_v1_dense", "head_dim": 64},
        dict.fromkeys(TARGETS, "! after their rotary positions"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_a_constant_is_written_or_refused(case, target):
    config, expected = CASES[case]
    model = document_of(import_config(config, case))
    cluster = {"chip": "h100-sxm", "chips": 8, "framework": target}
    plan = {"zero_stage": 1 if target == "megatron" else 3, "recompute": "full"}
    job = {"model": model, "seq_len": 2048, "global_batch": 8}
    refused, _, words = expected[target].rpartition("! ")
    try:
        text = EXPORTERS[target].export(task_of({"job": job, "cluster": cluster, "plan": plan}, case)).text
    except InputError as error:
        assert refused or expected[target].startswith("! "), error  # noqa: PT017
        assert words in str(error)  # noqa: PT017
        return
    assert not expected[target].startswith("! "), "it should have been refused"
    assert words in text


def test_gpt2_with_other_scores_is_refused(refusal):
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    assert "scale_attn_weights" in refusal(import_config, config | {"scale_attn_weights": False}, "config.json")
