"""Arguments of Megatron-LM put into the configuration classes of megatron-core, which check them; needs no dovetail."""

from __future__ import annotations

import dataclasses
import importlib
import shlex
import warnings
from typing import Any

#: Options of pretrain_gpt.py that are called otherwise in the classes, or are values there.
RENAMED = {
    "num_experts": "num_moe_experts", "fp8_format": "fp8", "fp4_format": "fp4", "fp8_param_gather": "fp8_param",
    "norm_epsilon": "layernorm_epsilon",
}  # fmt: skip
VALUES = {
    "disable_bias_linear": {"add_bias_linear": False},
    "swiglu": {"gated_linear_unit": True, "activation_func": "silu"},
    "squared_relu": {"activation_func": "squared_relu"},
    "quick_geglu": {"gated_linear_unit": True, "activation_func": "quick_gelu"},
}
#: Options the classes of megatron-core know nothing of: batch, tokens, data-parallel state, files.
_ELSEWHERE = """
    seq_length micro_batch_size global_batch_size max_position_embeddings position_embedding_type vocab_size
    untie_embeddings_and_output_weights group_query_attention optimizer sgd_momentum use_tp_pp_dp_mapping
    ckpt_format num_layers_per_virtual_pipeline_stage no_gradient_accumulation_fusion no_bias_gelu_fusion
    no_bias_dropout_fusion grad_reduce_in_bf16 attention_backend window_size rotary_base
    rotary_percent use_rope_scaling rotary_seq_len_interpolation_factor
"""
ELSEWHERE = frozenset(_ELSEWHERE.split())
STATE = (
    "use_distributed_optimizer", "num_distributed_optimizer_instances", "use_megatron_fsdp",
    "data_parallel_sharding_strategy", "overlap_grad_reduce", "overlap_param_gather",
)  # fmt: skip
LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
DEGREES = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
    "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "ffn_hidden_size", "num_moe_experts",
    "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules", "bf16", "fp16", "fp8",
    "cp_comm_type", "mtp_num_layers",
)  # fmt: skip


def parse(text: str, world_size: int) -> dict[str, object]:
    """What megatron-core makes of the arguments: degrees, stages and sharding; wrong ones raise its own errors."""
    given = _given(text)
    core = importlib.import_module("megatron.core.utils")
    version = importlib.import_module("packaging.version").Version
    # no Transformer Engine without a GPU: its version is only asked for
    vars(core)["get_te_version"] = lambda: version("2.9.0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = _config(given)
        state = _state(given)
    degrees: dict[str, object] = {name: getattr(config, name) for name in DEGREES}
    model = config.tensor_model_parallel_size * config.pipeline_model_parallel_size * config.context_parallel_size
    if world_size % model:
        raise ValueError(f"{model} chips of a replica do not divide {world_size}")
    data = world_size // model
    if int(given["global_batch_size"][0]) % (int(given["micro_batch_size"][0]) * data):
        raise ValueError("the global batch is no multiple of a microbatch on every replica")
    layout = config.pipeline_model_parallel_layout
    return {
        **degrees,
        "data_parallel_size": data,
        "micro_batch_size": int(given["micro_batch_size"][0]),
        "global_batch_size": int(given["global_batch_size"][0]),
        "use_tp_pp_dp_mapping": "use_tp_pp_dp_mapping" in given,
        "layers_per_stage": None if layout is None else _layers(layout),
        **{name: getattr(state, name) for name in STATE},
    }


def _given(text: str) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    name = ""
    for word in shlex.split(text):
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            given[name] = []
        else:
            given[name].append(word)
    return given


def _config(given: dict[str, list[str]]) -> Any:
    classes = importlib.import_module("megatron.core.transformer.transformer_config")
    config = classes.MLATransformerConfig if "multi_latent_attention" in given else classes.TransformerConfig
    kinds = {field.name: field for field in dataclasses.fields(config)}
    fields: dict[str, Any] = {"apply_rope_fusion": False}
    for flag, words in given.items():
        name = RENAMED.get(flag, flag)
        if flag in VALUES:
            fields |= VALUES[flag]
        elif name in kinds:
            fields[name] = _value(str(kinds[name].type), words)
        elif flag not in ELSEWHERE and flag not in STATE:
            raise ValueError(f"megatron-core has no {flag}")
    if "num_layers_per_virtual_pipeline_stage" in given:
        stages = fields["num_layers"] // fields["pipeline_model_parallel_size"]
        fields["virtual_pipeline_model_parallel_size"] = stages // int(
            given["num_layers_per_virtual_pipeline_stage"][0]
        )
    if "activation_func" in fields:
        fields["activation_func"] = _activation(fields["activation_func"])
    fields.setdefault("expert_tensor_parallel_size", fields["tensor_model_parallel_size"])
    if "pipeline_model_parallel_size" in fields and fields["pipeline_model_parallel_size"] > 1:
        fields["pipeline_dtype"] = importlib.import_module("torch").bfloat16
    return config(**fields)


def _value(kind: str, words: list[str]) -> object:
    """The words as the field's type reads them."""
    if not words:
        return True
    if "List" in kind and "int" in kind and "[" in words[0]:
        return [int(number) for part in _expanded(words[0]) for number in part]
    if "List[str]" in kind and "Union" not in kind:
        return words
    text = words[0]
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _expanded(text: str) -> list[list[int]]:
    """[0]*3+[1]*58 and ([1]*5+[0])*8: as exporters write them."""
    if text.startswith("("):
        inner, _, times = text[1:].rpartition(")*")
        return _expanded(inner) * int(times)
    parts: list[list[int]] = []
    for run in text.split("+"):
        value, _, times = run.partition("*")
        parts.append([int(value.strip("[]"))] * int(times or 1))
    return parts


def _activation(name: str) -> Any:
    if name == "silu":
        return importlib.import_module("torch.nn.functional").silu
    if name == "quick_gelu":
        return importlib.import_module("megatron.core.fusions.fused_bias_geglu").quick_gelu
    return importlib.import_module("megatron.core.activations").squared_relu


def _state(given: dict[str, list[str]]) -> Any:
    config = importlib.import_module("megatron.core.distributed").DistributedDataParallelConfig
    fields: dict[str, Any] = {name: _value("", given[name]) for name in STATE if name in given}
    return config(**fields)


def _layers(layout: Any) -> list[int]:
    """Blocks of each stage, chunk by chunk."""
    kinds = importlib.import_module("megatron.core.transformer.enums").LayerType
    return [
        row[chunk].count(kinds.decoder)
        for chunk in range(layout.virtual_pipeline_model_parallel_size)
        for row in layout.layout
    ]
