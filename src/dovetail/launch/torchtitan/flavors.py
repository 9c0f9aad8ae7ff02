"""What torchtitan 0.1 and 0.2 train from TOML: models by name and flavor, and the options they had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail import models
from dovetail.models.catalogue import document_of
from dovetail.plans.launch_models.torchtitan import Value

Document = dict[str, Any]

#: Name and flavor → the catalogue's model with the same figures (torchtitan/models/*/__init__.py of v0.2.2).
_CATALOGUE = {
    ("llama3", "8B"): "llama-3.1-8b",
    ("llama3", "70B"): "llama-3.1-70b",
    ("llama3", "405B"): "llama-3.1-405b",
    ("llama4", "17bx16e_irope"): "llama-4-scout",
    ("llama4", "17bx128e_irope"): "llama-4-maverick",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("qwen3", "0.6B"): "qwen3-0.6b",
    ("qwen3", "8B"): "qwen3-8b",
    ("qwen3", "32B"): "qwen3-32b",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
    ("qwen3", "235B-A22B"): "qwen3-235b-a22b",
    ("gpt_oss", "20b"): "gpt-oss-20b",
    ("gpt_oss", "120b"): "gpt-oss-120b",
}
#: Qwen3 models the catalogue does not have: columns, layers, heads, size of the feed-forward, tied embeddings.
_QWEN3 = {
    "1.7B": (2048, 28, 16, 6144, True),
    "4B": (2560, 36, 32, 9728, True),
    "14B": (5120, 40, 40, 17408, False),
}


def model_of(name: str, flavor: str) -> str | Document | None:
    """A name of the catalogue, or a model document; none for flavors nobody here knows."""
    # how attention masks documents is part of a flavor, and changes no figure
    plain = flavor.removesuffix("_flex").removesuffix("_varlen").removesuffix("_flex_attn")
    name = {"llama4_simple_fsdp": "llama4", "llama3_simple_fsdp": "llama3"}.get(name, name)
    if (name, plain) in _CATALOGUE:
        return _CATALOGUE[name, plain]
    if name == "qwen3" and plain in _QWEN3:
        return _qwen3(plain)
    if (name, plain) == ("deepseek_v3", "671B"):
        document = document_of(models.load("deepseek-v3"))
        document.pop("multi_token_prediction")
        return document | {"name": "deepseek-v3-without-mtp", "note": "As torchtitan trains it."}
    if (name, f"{plain}_irope") in _CATALOGUE:
        return _full_attention(_CATALOGUE[name, f"{plain}_irope"])
    return None


def _qwen3(flavor: str) -> Document:
    hidden, layers, heads, size, tied = _QWEN3[flavor]
    document = document_of(models.load("qwen3-8b"))
    (block,) = document["blocks"].values()
    block["mixer"]["heads"], block["feed_forward"]["size"] = heads, size
    document.pop("published_parameters", None)
    document |= {"name": f"qwen3-{flavor.lower()}", "hidden": hidden, "head": {"tied": tied}}
    document["layers"][0]["repeat"] = layers
    return document


def _full_attention(name: str) -> Document:
    """Llama 4 without chunked layers and with rotary embeddings in all of them."""
    document = document_of(models.load(name))
    for block in document["blocks"].values():
        for key in ("chunk", "qk_norm", "qk_norm_kind", "rotary"):
            block["mixer"].pop(key, None)
    return document | {"name": f"{name}-full-attention", "note": "As torchtitan trains it without iRoPE."}


#: Options that only changed their names.
RENAMED = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "parallelism.enable_async_tensor_parallel": "compile.enable_async_tensor_parallel",
    "experimental.enable_async_tensor_parallel": "compile.enable_async_tensor_parallel",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_microbatch_size": "parallelism.pipeline_parallel_microbatch_size",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
}

#: Options that change nothing a plan has, beside those 0.3 still has.
_PASSED_OVER = """
    activation_checkpoint.early_stop activation_checkpoint.memory_budget
    activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns
    activation_checkpoint.visualize_memory_budget_pareto
    checkpoint.enable_checkpoint checkpoint.enable_ft_dataloader_checkpoints checkpoint.initial_load_model_weights_only
    checkpoint.last_save_model_weights_only checkpoint.interval_type checkpoint.model_weights_only
    fault_tolerance.fragment_sync_delay fault_tolerance.fragment_update_alpha fault_tolerance.group_size
    fault_tolerance.min_replica_size fault_tolerance.process_group fault_tolerance.process_group_timeout_ms
    fault_tolerance.replica_id fault_tolerance.semi_sync_method fault_tolerance.should_quantize
    fault_tolerance.sync_steps
    float8.emulate float8.enable_fsdp_float8_all_gather float8.filter_fqns float8.force_recompute_fp8_weight_in_bwd
    float8.precompute_float8_dynamic_scale_for_fsdp float8.recipe_name
    job.config_file job.description job.dump_folder job.print_args job.print_config job.save_config_file
    job.use_for_integration_test
    lr_scheduler.lr_min memory_estimation.disable_fake_mode
    model.hf_assets_path model.norm_type model.print_after_conversion model.tokenizer_path
    mx.filter_fqns mx.recipe_name mx.use_fp8_dim1_cast_triton_kernel
    optimizer.beta1 optimizer.beta2 optimizer.eps optimizer.lr optimizer.weight_decay
    parallelism.enable_compiled_autograd parallelism.pipeline_parallel_expert_parallel_overlap
    profiling.enable_memory_snapshot profiling.enable_profiling profiling.profile_freq profiling.profiler_active
    profiling.profiler_warmup profiling.save_memory_snapshot_folder profiling.save_traces_folder
    quantize.grouped_mm.float8.fqns quantize.grouped_mm.mx.fqns quantize.grouped_mm.mx.recipe_name
    quantize.linear.float8.emulate quantize.linear.float8.enable_fsdp_float8_all_gather
    quantize.linear.float8.filter_fqns quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp
    quantize.linear.float8.recipe_name
    quantize.linear.mx.filter_fqns quantize.linear.mx.mxfp8_dim1_cast_kernel_choice quantize.linear.mx.recipe_name
    training.dataset training.dataset_path training.debug_moe_force_load_balance training.deterministic training.seed
    training.warmup_steps
    training.dataloader.num_workers training.dataloader.persistent_workers training.dataloader.pin_memory
    training.dataloader.prefetch_factor
    validation.dataloader.num_workers validation.dataloader.persistent_workers validation.dataloader.pin_memory
    validation.dataloader.prefetch_factor
    validation.dataset validation.dataset_path validation.enable validation.freq validation.local_batch_size
    validation.seq_len validation.steps
    """
PASSED_OVER = frozenset(_PASSED_OVER.split())

#: Options whose other values no plan has: the value that is harmless.
ONLY: Mapping[str, Value] = {
    "optimizer.name": "AdamW",
    "optimizer.early_step_in_backward": False,
    "fault_tolerance.enable": False,
    "memory_estimation.enable": False,
    "memory_estimation.enabled": False,
    "parallelism.disable_loss_parallel": False,
    "parallelism.context_parallel_rotate_method": "allgather",
    "parallelism.expert_parallel_comm_backend": "standard",
    "experimental.custom_import": "",
    "experimental.custom_args_module": "",
    "job.custom_config_module": "",
}

#: What `model.converters` lists → the precision of the products.
CONVERTERS = {
    "float8": "fp8",
    "mx": "fp8",
    "quantize.linear.float8": "fp8",
    "quantize.linear.mx": "fp8",
    "quantize.grouped_mm.float8": "fp8",
    "quantize.grouped_mm.mx": "fp8",
}

#: What those versions take where nothing says, for options that a plan is read from.
DEFAULTS: Mapping[str, Value] = {
    "activation_checkpoint.mode": "selective",
    "activation_checkpoint.selective_ac_option": "2",
    "model.converters": (),
    "parallelism.expert_tensor_parallel_degree": 1,
    "parallelism.pipeline_parallel_split_points": None,
}
