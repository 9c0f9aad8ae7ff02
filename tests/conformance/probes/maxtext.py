"""What MaxText makes of its YAML files; run by a Python 3.12 that has jax, with MaxText on PYTHONPATH: FILE...

Prints one line of JSON last: of each file what was understood, or the error. Two readings: as written, for as many
devices and slices as the degrees multiply to; then, for the count of parameters, the same model for one device. No
weight is made: the model is shaped only. Nothing of ours is imported.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
import enum
import json
import logging
import math
import os
import re
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

#: This file has the name of the package it asks about: its folder must not be searched first.
HERE = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]

Facts = dict[str, Any]
FIELDS = (
    "model_name", "decoder_block", "base_emb_dim", "base_mlp_dim", "base_moe_mlp_dim", "base_num_query_heads",
    "base_num_kv_heads", "base_num_decoder_layers", "emb_dim", "mlp_dim", "moe_mlp_dim", "num_query_heads",
    "num_kv_heads", "num_decoder_layers", "head_dim", "vocab_size", "mlp_activations", "mlp_activations_limit",
    "logits_via_embedding", "normalize_embedding_logits", "normalization_layer_epsilon", "rope_type",
    "rope_max_timescale", "rope_min_timescale", "local_rope_max_timescale", "rope_linear_scaling_factor",
    "rope_use_scale", "max_position_embeddings", "original_max_position_embeddings", "rope_factor", "beta_fast",
    "beta_slow", "mscale", "rope_interleave", "rope_truncate", "rope_attention_scaling", "partial_rotary_factor",
    "num_experts", "num_experts_per_tok", "shared_experts", "first_num_dense_layers", "interleave_moe_layer_step",
    "routed_scaling_factor", "routed_score_func", "routed_bias", "routed_bias_update_rate", "norm_topk_prob",
    "n_routing_groups", "topk_routing_group", "load_balance_loss_weight", "attention_type", "q_lora_rank",
    "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "use_qk_norm", "attention_bias", "mlp_bias",
    "attention_sink", "sliding_window_size", "inhomogeneous_layer_cycle_interval", "attn_logits_soft_cap",
    "final_logits_soft_cap", "use_post_attn_norm", "use_post_ffw_norm", "mtp_num_layers", "mtp_loss_scaling_factor",
    "trainable_position_size", "fused_qkv", "fused_mlp", "scan_layers", "attention", "packing", "remat_policy",
    "max_target_length", "per_device_batch_size", "gradient_accumulation_steps", "global_batch_size_to_train_on",
    "micro_batch_size_to_train_on", "dtype", "weight_dtype", "opt_type", "quantization", "hardware", "num_slices",
    "num_target_devices", "num_layers_per_pipeline_stage", "num_pipeline_repeats", "num_pipeline_microbatches",
    "context_parallel_strategy",
)  # fmt: skip
#: Said on the command line in both readings: where nothing is trained nothing is saved or asked over the network.
QUIET = ("run_name=probe", "enable_checkpointing=false", "skip_jax_distributed_system=true", "log_config=false")
#: For the count: what is not the model is put aside.
ALONE = {
    "override_model_config": True, "hardware": "cpu", "attention": "dot_product", "per_device_batch_size": 1,
    "gradient_accumulation_steps": 1, "quantization": "", "num_layers_per_pipeline_stage": 1,
    "num_pipeline_repeats": -1, "num_pipeline_microbatches": -1, "internal_compile": False, "compile_topology": "",
    "packing": False, "context_parallel_load_balance": False,
}  # fmt: skip


def facts(path: str) -> Facts:
    """Read by MaxText's own loader; shaped as its trainer would."""
    from maxtext.configs import pyconfig

    given = _given(path)
    per_slice = math.prod(value for name, value in given.items() if name.startswith("ici_"))
    slices = math.prod(value for name, value in given.items() if name.startswith("dcn_"))
    chips = ["internal_compile=true", f"internal_compile_num_devices={per_slice * slices}", f"num_slices={slices}"]
    read = pyconfig.initialize_pydantic(["probe", path, *QUIET, *chips])
    found: Facts = {name: _plain(getattr(read, name)) for name in FIELDS if hasattr(read, name)}
    found["degrees"] = {name: getattr(read, name) for name in sorted(type(read).model_fields) if _is_degree(name)}
    try:
        found["build"] = _built(path, read)
    except Exception as error:
        found["build"] = {"error": f"{type(error).__name__}: {_short(error)}", "trace": _trace(error)}
    return found


def _is_degree(name: str) -> bool:
    return name.startswith(("ici_", "dcn_")) and name.endswith("_parallelism") and name.count("_") > 1


def _given(path: str) -> dict[str, int]:
    """Degrees the file and the file under it name; what neither names, or leaves to MaxText, is one."""
    from maxtext.configs import pyconfig

    loaded = pyconfig._load_config(path)
    return {str(name): max(int(value), 1) for name, value in loaded.items() if _is_degree(str(name))}


def _built(path: str, read: Any) -> Facts:
    import jax
    from flax import nnx
    from flax.linen import logical_axis_rules
    from maxtext.configs import pyconfig
    from maxtext.utils import maxtext_utils, model_creation_utils

    ones = {name: 1 for name in type(read).model_fields if _is_degree(name)}
    config = pyconfig.initialize(["probe", path, *QUIET], **ALONE, **ones)
    changed = {name for name in FIELDS if name in MODEL and getattr(config, name, None) != getattr(read, name, None)}
    mesh = maxtext_utils.get_mesh_from_config(config, jax.devices()[:1])
    make = model_creation_utils.get_nnx_create_model_fn(config, mesh)
    with mesh, logical_axis_rules(config.logical_axis_rules):
        model = nnx.eval_shape(make)
    parts: dict[str, int] = {}
    for names, weight in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        shape = getattr(weight, "shape", None)
        part = re.sub(r"layers_\d+", "layers", ".".join(str(name) for name in names))
        parts[part] = parts.get(part, 0) + math.prod(shape if shape is not None else weight.get_value().shape)
    with contextlib.suppress(AttributeError):
        model.decoder.get_remat_policy()
    return {
        "parameters": sum(parts.values()),
        "by_part": parts,
        "not_the_same_model": sorted(changed),
        **_modules(model),
    }


#: Fields of FIELDS that must be the same in both readings.
MODEL = frozenset(FIELDS[: FIELDS.index("scan_layers")])


def _modules(model: Any) -> Facts:
    """Of the shaped modules: how fast each pair of a head turns, how scores are scaled, what norms add."""
    from flax import nnx

    turns, gates = list[Facts](), list[Facts]()
    scales, epsilons = set[float](), set[float]()
    for _, module in nnx.iter_modules(model):
        kind = type(module).__name__
        if kind.endswith("RotaryEmbedding"):
            turn = {"kind": kind, "radians_per_position": _speeds(module)}
            if turn not in turns:
                turns.append(turn)
        if kind == "GateLogit":
            # by the name of the model MaxText decides whether groups and the correction bias choose experts
            named = str(module.model_name).startswith(("deepseek3", "deepseek4", "kimi-k2"))
            gate = {"score_func": module.score_func, "use_bias": module.use_bias, "chooses_as_deepseek3": named}
            if gate not in gates:
                gates.append(gate)
        for name, kept in (("softmax_scale", scales), ("query_pre_attn_scalar", scales), ("epsilon", epsilons)):
            value = getattr(module, name, None)
            if isinstance(value, float):
                kept.add(float(f"{value:.9g}"))
    return {"rotary": turns, "gates": gates, "softmax_scale": sorted(scales), "norm_eps": sorted(epsilons)}


def _speeds(rotary: Any) -> list[float]:
    import jax.numpy as jnp

    if hasattr(rotary, "freqs_cis"):
        length = rotary.max_position_embeddings
        rotary.max_position_embeddings = 2
        speeds = jnp.angle(rotary.freqs_cis[1])
        rotary.max_position_embeddings = length
    else:
        speeds = 1.0 / rotary.timescale.flatten()
        if speeds.shape[0] == rotary.embedding_dims:  # once for each of a pair
            speeds = speeds[::2]
    return [float(f"{speed:.7g}") for speed in speeds.tolist()]


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _short(error: BaseException) -> str:
    return str(error)[:2000]


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)[-4:])


def main() -> None:
    """Prints what was understood of each file, or why it was refused."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    found: dict[str, Facts] = {}
    line = os.dup(1)
    os.dup2(2, 1)
    for path in sys.argv[1:]:
        try:
            found[path] = facts(path)
        except (Exception, SystemExit) as error:
            found[path] = {"error": f"{type(error).__name__}: {_short(error)}", "trace": _trace(error)}
    os.write(line, f"{json.dumps(found)}\n".encode())


if __name__ == "__main__":
    main()
