"""A plan as overrides of a Megatron-Bridge recipe: KEY=VALUE, one a line, said by the arguments of Megatron-LM."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping

from dovetail.errors import InputError
from dovetail.launch.launch_file import Launch, Start
from dovetail.launch.megatron.write import arguments_of, environment_of
from dovetail.plans.launch_models.megatron_lists import list_values
from dovetail.plans.plan_file import Task

VERSION = "Megatron-Bridge 0.6"

#: Arguments that stand elsewhere than in `model` under their own name → keys.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "seq_length": ("model.seq_length", "dataset.seq_length"),
    "micro_batch_size": ("train.micro_batch_size",),
    "global_batch_size": ("train.global_batch_size",),
    "optimizer": ("optimizer.optimizer",),
    "sgd_momentum": ("optimizer.sgd_momentum",),
    "optimizer_cpu_offload": ("optimizer.optimizer_cpu_offload",),
    "optimizer_offload_fraction": ("optimizer.optimizer_offload_fraction",),
    "overlap_cpu_optimizer_d2h_h2d": ("optimizer.overlap_cpu_optimizer_d2h_h2d",),
    "use_precision_aware_optimizer": ("optimizer.use_precision_aware_optimizer",),
    "use_distributed_optimizer": ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
    "num_distributed_optimizer_instances": ("ddp.num_distributed_optimizer_instances",),
    "use_megatron_fsdp": ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"),
    "data_parallel_sharding_strategy": ("ddp.data_parallel_sharding_strategy",),
    "overlap_grad_reduce": ("ddp.overlap_grad_reduce",),
    "overlap_param_gather": ("ddp.overlap_param_gather",),
    "use_tp_pp_dp_mapping": ("dist.use_tp_pp_dp_mapping",),
    "ckpt_format": ("checkpoint.ckpt_format",),
    "norm_epsilon": ("model.layernorm_epsilon",),
    "num_experts": ("model.num_moe_experts",),
    "use_rope_scaling": ("model.rope_scaling",),
    "rotary_seq_len_interpolation_factor": ("model.seq_len_interpolation_factor",),
    "tp_comm_overlap": ("comm_overlap.tp_comm_overlap",),
    "overlap_moe_expert_parallel_comm": ("comm_overlap.overlap_moe_expert_parallel_comm",),
    "reuse_grad_buf_for_mxfp8_param_ag": ("ddp.reuse_grad_buf_for_mxfp8_param_ag",),
    "quick_geglu": ("model.gated_linear_unit",),
    "swiglu": ("model.gated_linear_unit",),
}
#: Arguments that say no.
_OFF = {
    "disable_bias_linear": "model.add_bias_linear",
    "untie_embeddings_and_output_weights": "model.share_embeddings_and_output_weights",
    "no_gradient_accumulation_fusion": "model.gradient_accumulation_fusion",
    "no_bias_gelu_fusion": "model.bias_activation_fusion",
    "no_bias_dropout_fusion": "model.bias_dropout_fusion",
    "grad_reduce_in_bf16": "ddp.grad_reduce_in_fp32",
    "no_yarn_correction_range_round_to_int": "model.yarn_correction_range_round_to_int",
}
#: Where an argument is not given: the key that says so.
_ELSE = (
    ("--untie-embeddings-and-output-weights", "model.share_embeddings_and_output_weights", "true"),
    ("--use-rope-scaling", "model.rope_scaling", "false"),
    ("--qk-layernorm", "model.qk_layernorm", "false"),
    ("--add-qkv-bias", "model.add_qkv_bias", "false"),
    ("--disable-bias-linear", "model.add_bias_linear", "true"),
    ("--mtp-num-layers", "model.mtp_num_layers", "null"),
)
#: Said by others: by `mixed_precision`, by the plan's chunks, by the number of query groups, by the sequence's length.
_SAID = frozenset({
    "bf16", "fp16", "fp8_format", "fp8_recipe", "fp8_param_gather", "fp4_format", "group_query_attention",
    "num_layers_per_virtual_pipeline_stage", "max_position_embeddings", "squared_relu", "attention_backend",
})  # fmt: skip
_PRECISIONS = {"fp32": "fp32", "bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp4": "bf16_with_nvfp4_mixed"}
_FP8 = {
    "delayed": "bf16_with_fp8_delayed_scaling_mixed", "tensorwise": "bf16_with_fp8_current_scaling_mixed",
    "blockwise": "bf16_with_fp8_subchannel_scaling_mixed", "mxfp8": "bf16_with_mxfp8_mixed",
}  # fmt: skip
#: YaRN outside latent attention has keys of its own.
_YARN = ("rotary_scaling_factor", "mscale", "mscale_all_dim")


def export(task: Task) -> Launch:
    """The overrides for a plan; one that Megatron-LM cannot run is refused."""
    lines = list(_overrides(task))
    program = ("scripts/training/run_recipe.py", '--recipe "$RECIPE"', *map(shlex.quote, lines))
    fill_in = {"RECIPE": "a recipe of Megatron-Bridge for a model of this family, such as llama3_8b_pretrain_config"}
    by_hand = ("start it with torchrun ... scripts/training/run_recipe.py --recipe NAME, then these overrides",)
    notes = (
        "take a recipe of the model's family: its activation and layer specification are code, which no override sets",
    )
    text = "".join(f"{line}\n" for line in lines)
    start = Start("torchrun", program, environment=environment_of(task), fill_in=fill_in)
    return Launch("bridge.overrides", text, notes, by_hand, start)


def _overrides(task: Task) -> Iterator[str]:
    plan, job = task.plan, task.job
    if job.optimizer in ("muon", "adamw_bf16"):
        what = f"is {job.optimizer}, whose options are objects of Python in {VERSION}, which no override sets"
        raise InputError("job: optimizer", what, "set it to adamw, or export for megatron")
    arguments = arguments_of(task)
    plain_yarn = ("--position-embedding-type", "yarn") in arguments
    for flag, *values in arguments:
        name = flag[2:].replace("-", "_")
        if name in _SAID:
            continue
        if name in _OFF:
            yield f"{_OFF[name]}=false"
            continue
        prefix = "model.yarn_" if plain_yarn and name in _YARN else "model."
        for key in _KEYS.get(name, (f"{prefix}{name}",)):
            yield f"{key}={_VALUES.get(name, _value)(values)}"
    # a recipe may have turned on what the model does not have
    given = {flag for flag, *_ in arguments}
    for flag, key, value in _ELSE:
        if flag not in given:
            yield f"{key}={value}"
    if plan.virtual_stages > 1:
        yield f"model.virtual_pipeline_model_parallel_size={plan.virtual_stages}"
    recipe = _FP8[plan.fp8_recipe or "tensorwise"] if job.precision == "fp8" else _PRECISIONS[job.precision]
    yield f"mixed_precision={recipe}"


def _value(values: list[str]) -> str:
    if not values:
        return "true"
    return values[0] if len(values) == 1 else f"[{','.join(values)}]"


def _listed(values: list[str]) -> str:
    """A number for each layer, written out."""
    return f"[{','.join(map(str, list_values(values[0]) or ()))}]"


_VALUES: Mapping[str, Callable[[list[str]], str]] = {
    "window_size": lambda values: f"[{values[0]}]",
    "moe_layer_freq": _listed,
    "no_rope_freq": _listed,
    "window_attn_skip_freq": _listed,
    "recompute_modules": lambda values: f"[{','.join(values)}]",
    "cuda_graph_modules": lambda values: f"[{','.join(values)}]",
    # bars and stars would be grammar there
    "pipeline_model_parallel_layout": lambda values: f"'{values[0]}'",
}
