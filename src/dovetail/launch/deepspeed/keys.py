"""The keys of a DeepSpeed 0.19.8 configuration: which there are, and which change what a plan has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TOP = """
    activation_checkpointing aio autotuning bf16 bfloat16 checkpoint comet comms_logger communication_data_type compile
    csv_monitor data_efficiency data_parallel_size data_types dataloader_drop_last datastates_ckpt disable_allgather
    disable_python_gc dump_state expert_parallel flops_profiler fp16 gradient_accumulation_steps gradient_allreduce_op
    gradient_clipping gradient_predivide_factor hybrid_engine log_level managed_gradient_accumulation memory_breakdown
    optimizer pipeline prescale_gradients scheduler seq_parallel_communication_data_type sequence_parallel_size
    steps_per_print tensor_parallel tensorboard timers torch_autocast train_batch_size train_micro_batch_size_per_gpu
    use_data_before_expert_parallelism vocabulary_size wall_clock_breakdown wandb weight_quantization
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_optimization
    """
#: Keys DeepSpeed's parser asks for; it passes over all others in silence.
TOP_LEVEL = frozenset(_TOP.split())

#: Keys that a plan is read from, so they are not passed over.
READ = frozenset(
    (
        *("activation_checkpointing", "bf16", "bfloat16", "data_parallel_size", "expert_parallel", "fp16"),
        *("gradient_accumulation_steps", "optimizer", "pipeline", "sequence_parallel_size", "tensor_parallel"),
        *("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"),
    )
)

_SECTIONS = {
    "zero_optimization": """
        stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce
        allgather_partitions allgather_bucket_size overlap_comm compute_grad_norm load_from_fp32_weights
        elastic_checkpoint offload_param offload_optimizer zenflow sub_group_size cpu_offload_param
        cpu_offload_use_pin_memory cpu_offload prefetch_bucket_size stage3_prefetch_bucket_size
        param_persistence_threshold stage3_param_persistence_threshold model_persistence_threshold
        stage3_model_persistence_threshold max_live_parameters stage3_max_live_parameters max_reuse_distance
        stage3_max_reuse_distance gather_16bit_weights_on_model_save stage3_gather_16bit_weights_on_model_save
        module_granularity_threshold stage3_module_granularity_threshold use_all_reduce_for_fetch_params
        stage3_use_all_reduce_for_fetch_params allgather_sequential stage3_allgather_sequential
        stage3_gather_fp16_weights_on_model_save ignore_unused_parameters legacy_stage1 round_robin_gradients
        parameter_alignment zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights
        zero_quantized_gradients memory_efficient_linear pipeline_loading_checkpoint override_module_apply
        log_trace_cache_warnings enable_sanity_checks save_muon_momentum_buffer_in_memory leaf_module""",
    "tensor_parallel": """
        dtype autotp_size tp_overlap_comm vocab_parallel_lm_head vocab_parallel_ce_backend tp tensor_parallel
        injection_policy_tuple partition_config preset_model keep_module_on_host kernel_inject
        replace_with_kernel_inject""",
    "activation_checkpointing": """
        partition_activations number_checkpoints contiguous_memory_optimization synchronize_checkpoint_boundary profile
        cpu_checkpointing""",
    "bf16": "enabled check_overflow immediate_grad_update bf16_master_weights_and_grads bf16_optimizer_states",
    "fp16": """
        enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis
        min_loss_scale fp16_master_weights_and_grads""",
}
#: The keys of sections that a plan is read from.
SECTIONS: Mapping[str, frozenset[str]] = {name: frozenset(keys.split()) for name, keys in _SECTIONS.items()}

#: Keys of `zero_optimization` that DeepSpeed refuses since it removed what they were for.
REMOVED = frozenset({"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"})

#: Section and key → the values that leave a plan as it is; with others memory or traffic is another than a plan's.
HARMLESS: Mapping[tuple[str, str], tuple[Any, ...]] = {
    ("zero_optimization", "offload_param"): (None, {"device": "none"}),
    ("zero_optimization", "cpu_offload"): (None, False),
    ("zero_optimization", "cpu_offload_param"): (None, False),
    ("zero_optimization", "zenflow"): (None,),
    ("zero_optimization", "zero_hpz_partition_size"): (0, 1),
    ("zero_optimization", "zero_quantized_weights"): (False,),
    ("zero_optimization", "zero_quantized_gradients"): (False,),
    ("bf16", "bf16_master_weights_and_grads"): (False,),
    ("bf16", "bf16_optimizer_states"): (False,),
    ("fp16", "fp16_master_weights_and_grads"): (False,),
    ("torch_autocast", "enabled"): (False,),
    ("hybrid_engine", "enabled"): (False,),
    ("data_types", "grad_accum_dtype"): (None,),
    ("data_types", "param_dtype"): (None,),
}
