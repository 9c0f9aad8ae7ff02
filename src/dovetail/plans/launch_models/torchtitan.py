"""The models torchtitan 0.3.0 trains from flags: its recipes, and what they set where no flag does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from dovetail.frozen import frozen

#: An option's value as the command line has it.
Value = str | int | bool | tuple[str, ...] | None

#: What torchtitan takes where neither a flag nor the recipe says (torchtitan/config/configs.py).
DEFAULTS: Mapping[str, Value] = {
    "parallelism.data_parallel_replicate_degree": 1,
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.fsdp_reshard_after_forward": "default",
    "parallelism.tensor_parallel_degree": 1,
    "parallelism.enable_sequence_parallel": True,
    "parallelism.pipeline_parallel_degree": 1,
    "parallelism.module_fqns_per_model_part": None,
    "parallelism.pipeline_parallel_first_stage_less_layers": 1,
    "parallelism.pipeline_parallel_last_stage_less_layers": 1,
    "parallelism.pipeline_parallel_layers_per_stage": None,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.pipeline_parallel_microbatch_size": 1,
    "parallelism.context_parallel_degree": 1,
    "parallelism.expert_parallel_degree": 1,
    "training.local_batch_size": 8,
    "training.global_batch_size": -1,
    "training.seq_len": 2048,
    "training.mixed_precision_param": "bfloat16",
    "compile.enable": False,
    "compile.components": ("model", "loss"),
    "compile.enable_async_tensor_parallel": False,
    "activation_checkpoint": "selective",
}


@frozen
class Recipe:
    """A function of a `config_registry`: `--module` and `--config` name it."""

    module: str
    config: str
    #: of the catalogue
    model: str
    #: longest sequence its rotary embedding has
    max_seq_len: int
    #: whether its attention can be cut along the sequence: FlexAttention can, variable-length attention cannot
    context: bool = True
    #: some multiply in fp8, and no flag turns that off
    precision: str = "bf16"
    #: where it differs from DEFAULTS
    sets: Mapping[str, Value] = field(default_factory=dict[str, Value])


RECIPES = (
    Recipe(
        "llama3", "llama3_8b", "llama-3.1-8b", 131072,
        sets={"training.local_batch_size": 1, "training.seq_len": 8192},
    ),
    Recipe(
        "llama3", "llama3_70b", "llama-3.1-70b", 131072,
        sets={
            "parallelism.tensor_parallel_degree": 8, "training.seq_len": 8192, "activation_checkpoint": "full",
        },
    ),
    Recipe(
        "llama3", "llama3_405b", "llama-3.1-405b", 131072, precision="fp8",
        sets={
            "parallelism.tensor_parallel_degree": 8, "training.local_batch_size": 2, "training.seq_len": 8192,
            "compile.enable": True, "activation_checkpoint": "full",
        },
    ),
    Recipe(
        "qwen3", "qwen3_0_6b", "qwen3-0.6b", 40960,
        sets={"training.local_batch_size": 4, "training.seq_len": 4096},
    ),
    Recipe(
        "qwen3", "qwen3_32b", "qwen3-32b", 40960,
        sets={"training.local_batch_size": 2, "training.seq_len": 4096, "activation_checkpoint": "full"},
    ),
    Recipe(
        "qwen3", "qwen3_30b_a3b", "qwen3-30b-a3b", 40960,
        sets={"training.local_batch_size": 2, "training.seq_len": 4096, "activation_checkpoint": "full"},
    ),
    Recipe(
        "deepseek_v3", "deepseek_v3_16b", "deepseek-v2-lite", 16384,
        sets={
            "parallelism.pipeline_parallel_schedule": "Interleaved1F1B", "parallelism.expert_parallel_degree": 8,
            "training.local_batch_size": 4, "training.seq_len": 4096,
            "compile.enable": True, "compile.components": ("loss",),
        },
    ),
    Recipe(
        "gpt_oss", "gpt_oss_20b", "gpt-oss-20b", 131072, context=False,
        sets={"training.local_batch_size": 1, "training.seq_len": 8192, "activation_checkpoint": "full"},
    ),
    Recipe(
        "gpt_oss", "gpt_oss_120b", "gpt-oss-120b", 131072, context=False,
        sets={"training.local_batch_size": 1, "training.seq_len": 8192, "activation_checkpoint": "full"},
    ),
)  # fmt: skip

#: Options that change nothing a plan has. `no_` stands before the last part of those that are switches.
_PASSED_OVER = """
    hf_assets_path dump_folder
    checkpoint.async_mode checkpoint.create_seed_checkpoint checkpoint.enable checkpoint.enable_first_step_checkpoint
    checkpoint.exclude_from_loading checkpoint.export_dtype checkpoint.folder checkpoint.initial_load_in_hf
    checkpoint.initial_load_in_hf_quantized checkpoint.initial_load_model_only checkpoint.initial_load_path
    checkpoint.interval checkpoint.keep_latest_k checkpoint.last_save_in_hf checkpoint.last_save_model_only
    checkpoint.load_only checkpoint.load_step
    comm.init_timeout_seconds comm.mode comm.save_traces_file_prefix comm.save_traces_folder comm.trace_buf_size
    comm.train_timeout_seconds
    compile.backend
    dataloader.dataset dataloader.dataset_path dataloader.infinite dataloader.num_workers
    dataloader.persistent_workers dataloader.pin_memory dataloader.prefetch_factor
    debug.batch_invariant debug.detect_anomaly debug.deterministic debug.deterministic_warn_only
    debug.enable_structured_logging debug.moe_force_load_balance debug.print_config debug.save_config_file debug.seed
    debug.spmd_typechecking
    loss.loss_fn.global_vocab_size loss.num_chunks
    lr_scheduler.decay_ratio lr_scheduler.decay_type lr_scheduler.min_lr_factor lr_scheduler.total_steps
    lr_scheduler.warmup_steps
    metrics.disable_color_printing metrics.enable_tensorboard metrics.enable_wandb metrics.log_freq
    metrics.save_for_all_ranks metrics.save_tb_folder
    optimizer.param_groups.0.optimizer_kwargs.betas optimizer.param_groups.0.optimizer_kwargs.eps
    optimizer.param_groups.0.optimizer_kwargs.lr optimizer.param_groups.0.optimizer_kwargs.weight_decay
    optimizer.param_groups.0.pattern
    parallelism.context_parallel_load_balancer parallelism.context_parallel_ptrr_mask_key
    parallelism.enable_fsdp_symm_mem parallelism.spmd_backend
    profiler.enable_memory_snapshot profiler.enable_profiling profiler.memory_snapshot_freq
    profiler.memory_snapshot_max_entries profiler.profile_freq profiler.profiler_active profiler.profiler_repeat
    profiler.profiler_skip_first profiler.profiler_skip_first_wait profiler.profiler_warmup
    profiler.save_memory_snapshot_folder profiler.save_traces_folder
    training.disable_cuda_graphs training.gc_debug training.gc_freq training.max_norm training.mixed_precision_reduce
    training.steps
    validator.dataloader.dataset validator.dataloader.dataset_path validator.dataloader.infinite
    validator.dataloader.num_workers validator.dataloader.persistent_workers validator.dataloader.pin_memory
    validator.dataloader.prefetch_factor validator.enable validator.freq validator.steps
    activation_checkpoint.preserve_rng_state activation_checkpoint.determinism_check activation_checkpoint.debug
    activation_checkpoint.force_recompute_mm_shapes_by_fqns
    """
PASSED_OVER = frozenset(_PASSED_OVER.split())

#: Options whose other values no plan has: the value that is harmless.
ONLY: Mapping[str, Value] = {
    "training.enable_cpu_offload": False,
    "training.dtype": "float32",
    "parallelism.pipeline_parallel_schedule_csv": "",
    "optimizer.param_groups.0.optimizer_name": "AdamW",
}

#: Ways to write optimizer state that keep it as wide as the catalogue says.
IMPLEMENTATIONS = frozenset({"for-loop", "foreach", "fused"})


def recipe_named(module: str | None, config: str | None) -> Recipe | None:
    """The recipe that two flags name."""
    return next((r for r in RECIPES if (r.module, r.config) == (module, config)), None)


def stage_layers(num_layers: int, parts: int, first_less: int, last_less: int) -> tuple[int, ...] | None:
    """Layers of each part where no flag lists them; none where torchtitan refuses to cut so.

    torchtitan/distributed/pipeline_parallel.py, _generate_llm_fqn_per_model_part: embedding and head count as layers.
    """
    if parts == 1:
        return (num_layers,)
    each, more = divmod(num_layers + first_less + last_less, parts)
    if each == 0 or max(first_less, last_less) > each:
        return None
    sizes = [each + (part < more) for part in range(parts)]
    sizes[0] -= first_less
    sizes[-1] -= last_less
    return tuple(sizes)
