"""What Megatron-LM makes of files of arguments; run by a Python that has torch: FILE[@WORLD_SIZE]...

PYTHONPATH names the Megatron: the unzipped wheel of 0.17 or later, or a checkout (before 0.17 the wheel has no
parser). Prints one line of JSON last: of each argument what was understood, or the error. Without WORLD_SIZE it is
the smallest that the degrees allow. Nothing of ours is imported.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPrivateUsage=false, reportIndexIssue=false
# pyright: reportPrivateImportUsage=false, reportOptionalMemberAccess=false

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import inspect
import json
import logging
import math
import os
import shlex
import sys
import traceback
import typing
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: This file has the name of the package it asks about: its folder must not be searched first.
HERE = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]

Facts = dict[str, Any]
#: What pretrain_gpt.py wants besides, or cannot have without a GPU.
ADDED = (
    ("--no-rope-fusion",),
    ("--lr", "1e-4"),
    ("--train-iters", "1"),
    ("--mock-data",),
    ("--tokenizer-type", "NullTokenizer"),
)
ARGUMENTS = (
    "rotary_base", "rotary_percent", "use_rope_scaling", "rope_scaling_factor", "rope_type", "position_embedding_type",
    "max_position_embeddings", "seq_length", "vocab_size", "untie_embeddings_and_output_weights", "normalization",
    "rotary_interleaved", "yarn_original_max_position_embeddings", "yarn_beta_fast", "yarn_beta_slow", "swiglu",
    "micro_batch_size", "global_batch_size", "world_size", "data_parallel_size", "tensor_model_parallel_size",
    "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "context_parallel_size",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel", "transformer_impl",
    "use_distributed_optimizer", "use_megatron_fsdp", "data_parallel_sharding_strategy", "mtp_loss_scaling_factor",
    "moe_token_dispatcher_type", "moe_flex_dispatcher_backend",
)  # fmt: skip
CONFIG = (
    "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size",
    "layernorm_epsilon", "layernorm_zero_centered_gamma", "qk_layernorm", "qk_l2_norm", "add_bias_linear",
    "add_qkv_bias", "gated_linear_unit", "window_size", "window_attn_skip_freq", "softmax_type", "softmax_scale",
    "attention_output_gate", "no_rope_freq", "multi_latent_attention", "num_moe_experts", "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size", "moe_shared_expert_gate", "moe_router_topk", "moe_router_score_function",
    "moe_router_topk_scaling_factor", "moe_router_num_groups", "moe_router_group_topk", "moe_router_pre_softmax",
    "moe_router_enable_expert_bias", "moe_router_bias_update_rate", "moe_router_load_balancing_type",
    "moe_aux_loss_coeff", "moe_router_dtype", "moe_layer_freq", "mtp_num_layers", "mtp_loss_scaling_factor",
    "glu_linear_offset", "activation_func_clamp_value", "q_lora_rank", "kv_lora_rank", "qk_head_dim",
    "qk_pos_emb_head_dim", "v_head_dim", "rope_type", "rotary_base", "rotary_percent", "rotary_scaling_factor",
    "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
    "yarn_rotary_scaling_factor", "yarn_original_max_position_embeddings", "yarn_beta_fast", "yarn_beta_slow",
    "yarn_mscale", "yarn_mscale_all_dim", "yarn_correction_range_round_to_int", "recompute_granularity",
    "recompute_method", "recompute_num_layers", "recompute_modules", "fp8", "fp8_recipe", "fp4", "bf16", "fp16",
)  # fmt: skip
#: For the build of the whole model in one process without a GPU: what is not the model is put aside.
ALONE = {
    "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
    "expert_model_parallel_size": 1, "expert_tensor_parallel_size": 1, "virtual_pipeline_model_parallel_size": None,
    "num_layers_per_virtual_pipeline_stage": None, "num_virtual_stages_per_pipeline_rank": None,
    "pipeline_model_parallel_layout": None, "decoder_first_pipeline_num_layers": None,
    "decoder_last_pipeline_num_layers": None, "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False, "sequence_parallel": False, "tp_comm_overlap": False,
    "hierarchical_context_parallel_sizes": None, "world_size": 1, "data_parallel_size": 1,
    "recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None, "recompute_modules": None,
    "fp8": None, "fp4": None, "fp8_param_gather": False, "fp4_param_gather": False, "first_last_layers_bf16": False,
    "overlap_moe_expert_parallel_comm": False, "delay_wgrad_compute": False, "moe_shared_expert_overlap": False,
    "moe_token_dispatcher_type": "allgather", "moe_enable_deepep": False, "moe_permute_fusion": False,
    "moe_router_fusion": False, "moe_grouped_gemm": False, "moe_router_padding_for_fp8": False,
    "moe_router_padding_for_quantization": False, "cuda_graph_impl": "none", "cuda_graph_modules": [],
    "cuda_graph_scope": [], "enable_cuda_graph": False, "external_cuda_graph": False, "transformer_impl": "local",
    "use_cpu_initialization": True, "perform_initialization": False, "init_model_with_meta_device": False,
    "gradient_accumulation_fusion": False, "cross_entropy_loss_fusion": False, "use_megatron_fsdp": False,
    "fine_grained_activation_offloading": False, "cpu_offloading": False, "no_persist_layer_norm": True,
    "masked_softmax_fusion": False, "use_te_rng_tracker": False, "attention_softmax_in_fp32": True,
    "defer_embedding_wgrad_compute": False, "moe_expert_capacity_factor": None, "batch_invariant_mode": False,
}  # fmt: skip


def facts(argument: str) -> Facts:
    """Parsed, validated and made a configuration by Megatron's own functions; then built on the meta device."""
    path, _, size = argument.rpartition("@") if "@" in argument else (argument, "", "")
    words = shlex.split(Path(path).read_text(encoding="utf-8"), comments=True)
    world = int(size) if size else _smallest(words)
    args = _parsed(words, world)
    config = _configured(args)
    found: Facts = {
        "version": importlib.import_module("megatron.core.package_info").__version__,
        **{name: _plain(getattr(args, name, None)) for name in ARGUMENTS},
        **{name: _plain(getattr(config, name)) for name in CONFIG if hasattr(config, name)},
        "padded_vocab_size": _padded(args),
        "expert_layers": _expert_layers(config),
        "layers_per_stage": _layers_per_stage(config),
    }
    try:
        found["build"] = _built(args)
    except Exception as error:
        found["build"] = {"error": f"{type(error).__name__}: {error}", "trace": _trace(error)}
    return found


def _smallest(words: list[str]) -> int:
    """Chips that hold one replica of each kind of weights."""

    def given(flag: str, default: int) -> int:
        return int(words[words.index(flag) + 1]) if flag in words else default

    tensor, pipeline = given("--tensor-model-parallel-size", 1), given("--pipeline-model-parallel-size", 1)
    dense = tensor * pipeline * given("--context-parallel-size", 1)
    experts = given("--expert-model-parallel-size", 1) * given("--expert-tensor-parallel-size", tensor) * pipeline
    return math.lcm(dense, experts) * given("--num-distributed-optimizer-instances", 1)


def shims() -> None:
    """What Megatron asks of a GPU, of Transformer Engine and of a younger Python when it parses."""
    if not hasattr(typing, "override"):
        vars(typing)["override"] = lambda function: function
    import torch

    properties = SimpleNamespace(major=9, minor=0, multi_processor_count=132, total_memory=80 << 30, name="H100")
    torch.cuda.get_device_properties = lambda *_: properties
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    # small tables are made there even when weights are not
    torch.cuda.current_device = lambda: torch.device("cpu")
    utils = importlib.import_module("megatron.core.utils")
    version = importlib.import_module("packaging.version").Version
    vars(utils)["get_te_version"] = lambda: version("2.9.0")
    vars(utils)["is_te_min_version"] = lambda *_, **__: True


def _parsed(words: list[str], world: int) -> Any:
    arguments = importlib.import_module("megatron.training.arguments")
    further = [word for flag, *values in ADDED if flag not in words for word in (flag, *values)]
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(world), "LOCAL_RANK": "0"}
    for name in ("te_version", "is_te_min_version", "get_te_version"):
        if hasattr(arguments, name):
            vars(arguments)[name] = vars(importlib.import_module("megatron.core.utils"))[name]
    sys.argv = ["pretrain_gpt.py", *words, *further]
    # on Hopper and older, TP and CP want one connection and FSDP more: the launcher's affair, not the file's
    sharded = "--use-megatron-fsdp" in words or "--use-torch-fsdp2" in words
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8" if sharded else "1"
    args = arguments.parse_args()
    arguments.validate_args(args)
    return args


def _refuse(_parser: argparse.ArgumentParser, message: str) -> typing.NoReturn:
    """In place of argparse's own, which prints and leaves."""
    raise ValueError(message)


def _configured(args: Any) -> Any:
    arguments = importlib.import_module("megatron.training.arguments")
    return arguments.core_transformer_config_from_args(args)


def _padded(args: Any) -> int | None:
    """As the tokenizer's size would be padded."""
    if args.vocab_size is None:
        return None
    with contextlib.suppress(ImportError):
        padding = importlib.import_module("megatron.training.vocab_utils").calculate_padded_vocab_size
        return int(padding(args.vocab_size, args.make_vocab_size_divisible_by, args.tensor_model_parallel_size))
    multiple = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    return -(-args.vocab_size // multiple) * multiple


def _expert_layers(config: Any) -> list[int]:
    if config.num_moe_experts is None:
        return [0] * config.num_layers
    often = config.moe_layer_freq
    return list(often) if isinstance(often, list) else [int(not n % often) for n in range(config.num_layers)]


def _layers_per_stage(config: Any) -> list[int] | None:
    layout = config.pipeline_model_parallel_layout
    if layout is None:
        return None
    kinds = importlib.import_module("megatron.core.transformer.enums").LayerType
    chunks = range(layout.virtual_pipeline_model_parallel_size)
    return [row[chunk].count(kinds.decoder) for chunk in chunks for row in layout.layout]


def _built(args: Any) -> Facts:
    """The whole model in one process, with layers of Megatron's own; its own builder passes it what it passes."""
    import torch

    _one_process()
    alone = copy.copy(args)
    for name, value in ALONE.items():
        if hasattr(alone, name) or name in ("perform_initialization", "use_cpu_initialization"):
            setattr(alone, name, value)
    # padding belongs to the degree of tensor parallelism, not to the model
    alone.padded_vocab_size = args.vocab_size
    importlib.import_module("megatron.training.global_vars")._GLOBAL_ARGS = alone
    config = _configured(alone)
    with torch.device("meta"), _one_expert_for_all(), _latent_scores():
        model = _builder(alone, config)
    counted = [(name, weight.numel()) for name, weight in model.named_parameters(remove_duplicate=False)]
    rotary = getattr(model, "rotary_pos_emb", None) or getattr(
        model.decoder.layers[0].self_attention, "rotary_pos_emb", None
    )
    return {
        "parameters": sum(count for _, count in counted),
        "by_part": _by_part(counted),
        **_rotary(rotary),
        "softmax_scale": _softmax_scales(model),
        "norm_eps": sorted(
            {module.eps for module in model.modules() if isinstance(getattr(module, "eps", None), float)}
        ),
        "windows": [_window(layer.self_attention) for layer in model.decoder.layers],
        "sinks": sum("softmax_offset" in name for name, _ in counted),
        "correction_biases": sum(name.endswith("expert_bias") for name, _ in model.named_buffers()),
    }


def _builder(args: Any, config: Any) -> Any:
    groups = importlib.import_module("megatron.core.process_groups_config").ProcessGroupCollection
    collection = groups.use_mpu_process_groups()
    with contextlib.suppress(ImportError):
        theirs = importlib.import_module("megatron.training.models.gpt")
        arguments = importlib.import_module("megatron.training.argument_utils")
        return theirs.GPTModelBuilder(arguments.gpt_config_from_args(args, config)).build_model(
            collection, pre_process=True, post_process=True
        )
    builders = importlib.import_module("gpt_builders")
    return builders.gpt_builder(args, pre_process=True, post_process=True, config=config, pg_collection=collection)


def _one_process() -> None:
    import torch.distributed

    state = importlib.import_module("megatron.core.parallel_state")
    if torch.distributed.is_initialized():
        return
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    state.initialize_model_parallel()


@contextlib.contextmanager
def _one_expert_for_all() -> typing.Iterator[None]:
    """Experts of a layer are alike: one is built and put in every place; parameters are counted in each."""
    experts = importlib.import_module("megatron.core.transformer.moe.experts")
    original = experts.MLP
    made: dict[Any, Any] = {}

    def shared(config: Any, *rest: Any, **options: Any) -> Any:
        key = id(config)
        if key not in made:
            made[key] = (config, original(config, *rest, **options))
        return made[key][1]

    experts.MLP = shared
    try:
        yield
    finally:
        experts.MLP = original


@contextlib.contextmanager
def _latent_scores() -> typing.Iterator[None]:
    """Scores of latent attention are Transformer Engine's only; Megatron's own hold the same: no weights, one scale."""
    scores = importlib.import_module("megatron.core.transformer.dot_product_attention").DotProductAttention
    original = scores.__init__

    def without_widths(self: Any, *rest: Any, **options: Any) -> None:
        known = inspect.signature(original).parameters
        original(self, *rest, **{name: value for name, value in options.items() if name in known})

    scores.__init__ = without_widths
    latent = importlib.import_module("megatron.core.transformer.multi_latent_attention")
    for name in ("TELinear", "TEColumnParallelLinear"):
        if not isinstance(vars(latent).get(name, scores), type):
            vars(latent)[name] = type(name, (), {})  # asked whether a layer is one of it
    try:
        yield
    finally:
        scores.__init__ = original


def _by_part(counted: list[tuple[str, int]]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for name, count in counted:
        part = ".".join(word for word in name.split(".") if not word.isdigit())
        parts[part] = parts.get(part, 0) + count
    return parts


def _rotary(rotary: Any) -> Facts:
    """How fast each pair of a head turns, after scaling; what yarn multiplies cosines by."""
    if rotary is None:
        return {"rotary_kind": None}
    import torch

    found: Facts = {"rotary_kind": type(rotary).__name__}
    if hasattr(rotary, "inv_freq_inter"):
        with torch.device("cpu"):
            angles, factor = rotary(2)
        speeds = angles[1].flatten()[: rotary.dim // 2]
        found["cosine_factor"] = float(factor)
    else:
        speeds = rotary.inv_freq
        if rotary.seq_len_interpolation_factor is not None:
            speeds = speeds / rotary.seq_len_interpolation_factor
    return found | {"radians_per_position": [float(f"{speed:.7g}") for speed in speeds.tolist()]}


def _softmax_scales(model: Any) -> list[float]:
    scales = set[float]()
    for module in model.modules():
        core = getattr(module, "core_attention", None)
        scale = getattr(core, "softmax_scale", None)
        if scale is not None:
            # a coefficient divides scores of later layers and multiplies them again in the softmax
            scales.add(float(f"{scale * (getattr(core.scale_mask_softmax, 'scale', None) or 1):.9g}"))
    return sorted(scales)


def _window(attention: Any) -> int | None:
    window = getattr(getattr(attention.core_attention, "scale_mask_softmax", None), "window_size", None)
    return None if window is None else int(window[0]) + 1


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)[-4:])


def main() -> None:
    """Prints what was understood of each file, or why it was refused."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    argparse.ArgumentParser.error = _refuse
    asked, found = sys.argv[1:], dict[str, Facts]()
    line = os.dup(1)
    os.dup2(2, 1)
    shims()
    for argument in asked:
        try:
            found[argument] = facts(argument)
        except (Exception, SystemExit) as error:
            found[argument] = {"error": f"{type(error).__name__}: {error}", "trace": _trace(error)}
    os.write(line, f"{json.dumps(found)}\n".encode())


if __name__ == "__main__":
    main()
