"""What torchtitan makes of Python recipes; run by a Python that has it: FILE[:FUNCTION]...

Prints one line of JSON last: of each argument what was understood, or the error. A recipe is a module with a function
that returns a Trainer.Config; without FUNCTION the module names it in RECIPE. Nothing of ours is imported.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPrivateUsage=false

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

#: This file has the name of the package it asks about: its folder must not be searched first.
HERE = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]

Facts = dict[str, Any]
ROPE = ("dim", "theta", "scaling")
SCALING = {
    "none": (),
    "llama": ("scaling_factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("rope_factor", "beta_fast", "beta_slow", "original_seq_len", "truncate"),
}
LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "mscale")
ROUTER = (
    "num_experts", "top_k", "score_func", "route_norm", "route_scale", "num_expert_groups", "num_limited_groups",
)  # fmt: skip


def facts(argument: str) -> Facts:
    """Parsed by torchtitan's own manager, checked as its trainer does, built on the meta device."""
    import torch
    from torchtitan.config import ConfigManager

    path, function = _named(argument)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    origin = Path(str(module.__file__)).resolve()
    if origin != path:
        raise ImportError(f"{path.stem} is {origin}: the name of a recipe must be its own")
    converters = _keep_converters()
    config = ConfigManager().parse_args(["--module", path.stem, "--config", function or module.RECIPE])
    model = config.model_spec.model
    positions = model.max_seq_len
    found = {"degrees": _degrees(config), "training": _training(config)}
    model.update_from_config(config=config)
    found |= _model(model)
    _plain_dispatchers(model)
    with torch.device("meta"):
        built = model.build()
    return {
        "name": config.model_spec.name,
        "parameters": sum(parameter.numel() for parameter in built.parameters()),
        "max_position_embeddings": positions,
        **_built(built),
        "converters": converters,
        "loss": _loss(config.loss),
        **found,
    }


def _keep_converters() -> list[Facts]:
    """Converters to narrow numbers ask for torchao and a GPU when built: they are noted, and convert nothing."""
    quantization = importlib.import_module("torchtitan.components.quantization")
    kept: list[Facts] = []

    class Noted:
        def convert(self, model: Any) -> Any:
            return model

    def build(config: Any) -> Noted:
        kept.append({"kind": _kind(config), **dataclasses.asdict(config)})
        return Noted()

    for name in quantization.__all__:
        if name.endswith("Converter"):
            getattr(quantization, name).Config.build = build
    return kept


def _plain_dispatchers(model: Any) -> None:
    """Dispatchers hold no parameters, but those with kernels of their own import them when built."""
    dispatchers = importlib.import_module("torchtitan.models.common.token_dispatcher")
    plain = dispatchers.AllToAllTokenDispatcher.Config
    for _, given, parent, name in model.traverse(dispatchers.LocalTokenDispatcher.Config):
        setattr(parent, name, plain(num_experts=given.num_experts, top_k=given.top_k))


def _named(argument: str) -> tuple[Path, str]:
    path, _, function = argument.rpartition(":")
    if path.endswith(".py"):
        return Path(path).resolve(), function
    return Path(argument).resolve(), ""


def _degrees(config: Any) -> Facts:
    """Of a world of just the chips the recipe names: torchtitan checks that they fit together."""
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.pipeline_parallel import _get_pp_rank_to_stage_indices_mapping

    given = config.parallelism
    world = given.data_parallel_replicate_degree * given.tensor_parallel_degree
    world *= given.context_parallel_degree * given.pipeline_parallel_degree * max(given.data_parallel_shard_degree, 1)
    dims = ParallelDims.from_config(given, world)
    degrees: Facts = {
        "world_size": world,
        **{name: getattr(dims, name) for name in ("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep")},
        **dataclasses.asdict(given),
    }
    if dims.pp > 1 and given.module_fqns_per_model_part:
        parts = given.module_fqns_per_model_part
        held = _get_pp_rank_to_stage_indices_mapping(0, dims.pp, given.pipeline_parallel_schedule, len(parts))
        degrees["virtual_stages"] = len(held)
        degrees["layers_per_stage"] = [sum(name.startswith("layers.") for name in part) for part in parts]
    return degrees


def _training(config: Any) -> Facts:
    kept = config.activation_checkpoint
    return {
        **dataclasses.asdict(config.training),
        "activation_checkpoint": None if kept is None else type(kept).__qualname__.partition(".")[0],
        "memory_budget": getattr(kept, "memory_budget", None),
        "compile": dataclasses.asdict(config.compile),
        "checkpoint": {"enable": config.checkpoint.enable, "interval": config.checkpoint.interval},
        "optimizer": [
            {"name": group.optimizer_name, **_plain(group.optimizer_kwargs)} for group in config.optimizer.param_groups
        ],
        "optimizer_implementation": config.optimizer.implementation,
    }


def _loss(loss: Any) -> Facts:
    inner = getattr(loss, "loss_fn", loss)
    found = {"kind": type(inner).__qualname__.partition(".")[0], "chunks": getattr(loss, "num_chunks", None)}
    return found | {name: getattr(inner, name, None) for name in ("global_vocab_size", "mtp_scale")}


def _model(model: Any) -> Facts:
    """Of the configuration of the model: what is the same in all layers is told once."""
    from torchtitan.models.common import RMSNorm, RoPE
    from torchtitan.models.common.linear import Linear

    layers = [*model.layers, *getattr(model, "mtp_layers", ())]
    return {
        "dim": model.dim,
        "vocab_size": model.vocab_size,
        "embedding_rows": model.tok_embeddings.num_embeddings,
        "head_rows": model.lm_head.out_features,
        "tied": model.enable_weight_tying,
        "num_layers": len(model.layers),
        "mtp_layers": len(getattr(model, "mtp_layers", ())),
        "norm_eps": sorted({norm.eps for _, norm, _, _ in model.traverse(RMSNorm.Config)}),
        "rope": _distinct(_rope(rope) for _, rope, _, _ in model.traverse(RoPE.Config)),
        "attention": _distinct(_attention(layer.attention) for layer in layers),
        "windows": [_window(layer.attention) for layer in model.layers],
        "feed_forward": _distinct(_dense(layer.feed_forward) for layer in layers if layer.feed_forward is not None),
        "experts": _distinct(_experts(layer.moe) for layer in layers if layer.moe is not None),
        "expert_layers": [int(layer.moe is not None) for layer in model.layers],
        "biases": sorted(
            {
                ".".join(part for part in name.split(".") if not part.isdigit())
                for name, linear, _, _ in model.traverse(Linear.Config)
                if linear.bias
            }
        ),
        "linear_kinds": sorted({_kind(linear) for _, linear, _, _ in model.traverse(Linear.Config)}),
    }


def _rope(rope: Any) -> Facts:
    return {"kind": _kind(rope), **{name: getattr(rope, name) for name in (*ROPE, *SCALING[rope.scaling])}}


def _attention(attention: Any) -> Facts:
    heads = attention.n_heads
    found = {"n_heads": heads, "inner": _kind(attention.inner_attention)}
    if hasattr(attention, "kv_lora_rank"):
        return found | {name: getattr(attention, name) for name in LATENT}
    norm = getattr(attention, "qk_norm", None)
    return found | {
        "n_kv_heads": attention.n_kv_heads or heads,
        "head_dim": attention.head_dim or attention.dim // heads,
        "qk_norm": None if norm is None else {"width": norm.normalized_shape, "eps": norm.eps},
        "qkv": _kind(attention.qkv_linear),
    }


def _window(attention: Any) -> int | None:
    """Tokens a query sees with its own."""
    if getattr(attention, "sliding_window_size", None) is not None:
        return int(attention.sliding_window_size)
    left = getattr(attention.inner_attention, "window_size", (-1, 0))[0]
    return None if left < 0 else int(left) + 1


def _dense(feed_forward: Any) -> Facts:
    return {"kind": _kind(feed_forward), "hidden_dim": feed_forward.w1.out_features}


def _experts(moe: Any) -> Facts:
    experts, shared = moe.routed_experts, moe.shared_experts
    return {
        **{name: getattr(moe.router, name) for name in ROUTER},
        "gate_bias": moe.router.gate.bias,
        "correction_bias_rate": moe.load_balance_coeff,
        "kind": _kind(experts.inner_experts),
        "hidden_dim": experts.inner_experts.hidden_dim,
        "swiglu_limit": getattr(experts.inner_experts, "swiglu_limit", None),
        "shared_hidden_dim": None if shared is None else shared.w1.out_features,
        "shared_kind": None if shared is None else _kind(shared),
        "dispatcher": _kind(experts.token_dispatcher),
        "capacity_factor": getattr(experts.token_dispatcher, "non_blocking_capacity_factor", None),
    }


def _built(built: Any) -> Facts:
    """Of the built modules: how scores are scaled, how fast each pair of a head turns."""
    scales, turns = set[float](), list[list[float]]()
    for module in built.modules():
        if hasattr(module, "rope") and hasattr(module, "inner_attention"):
            scale = getattr(module, "softmax_scale", None) or getattr(module, "scaling", None)
            scales.add(scale if scale is not None else module.head_dim**-0.5)
            speeds = _speeds(module.rope.config)
            if speeds not in turns:
                turns.append(speeds)
    return {"softmax_scale": sorted(scales), "radians_per_position": turns}


def _speeds(config: Any) -> list[float]:
    import torch

    with torch.device("cpu"):
        rope = dataclasses.replace(config, max_seq_len=2).build()
    second = rope.cache[1]
    if second.is_complex():
        angles = torch.angle(second)
    else:
        half = second.shape[-1] // 2
        angles = torch.atan2(second[half:], second[:half])[: half // 2]
    return [float(f"{angle:.7g}") for angle in angles.tolist()]


def _kind(config: Any) -> str:
    return type(config).__qualname__.rpartition(".")[0].rpartition(".")[2] or type(config).__qualname__


def _distinct(found: Any) -> list[Facts]:
    kinds: list[Facts] = []
    for one in found:
        if one not in kinds:
            kinds.append(one)
    return kinds


def _plain(given: dict[str, Any]) -> Facts:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def main() -> None:
    """Prints what was understood of each recipe, or why it was refused."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    found: dict[str, Facts] = {}
    line = os.dup(1)
    os.dup2(2, 1)
    for argument in sys.argv[1:]:
        try:
            found[argument] = facts(argument)
        except (Exception, SystemExit) as error:
            lines = traceback.format_exception(error)
            found[argument] = {"error": f"{type(error).__name__}: {error}", "trace": "".join(lines[-4:])}
    os.write(line, f"{json.dumps(found)}\n".encode())


if __name__ == "__main__":
    main()
