"""MaxText's YAML as parts of a plan file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from dovetail import models
from dovetail.documents import parse_document, validate
from dovetail.errors import InputError, one_of, quoted
from dovetail.launch.catalogue_match import same_model
from dovetail.launch.launch_file import Reading
from dovetail.models import Model
from dovetail.plans.launch_models.maxtext import NAMED, model_keys

_AXES = ("tensor", "tensor_sequence", "expert", "context", "fsdp", "pipeline", "data")
#: What base.yml leaves to the number of chips.
_FILLED = ("ici_fsdp_parallelism", "dcn_data_parallelism")
#: Values of a key that turn nothing on.
_OFF = (False, None, 0, -1, "default", "")
_MAX_DEGREE = 2**24

#: Models MaxText ships with the figures of the catalogue.
SHIPPED: Mapping[str, str] = {
    **{theirs: ours for ours, theirs in NAMED.items()},
    "gpt-oss-120b": "gpt-oss-120b", "gpt-oss-20b": "gpt-oss-20b", "llama2-13b": "llama-2-13b",
    "llama2-70b": "llama-2-70b", "llama2-7b": "llama-2-7b", "llama3-70b": "llama-3-70b", "llama3-8b": "llama-3-8b",
    "llama3.1-405b": "llama-3.1-405b", "llama3.1-70b": "llama-3.1-70b", "llama3.1-8b": "llama-3.1-8b",
    "mixtral-8x7b": "mixtral-8x7b", "qwen2.5-7b": "qwen2.5-7b", "qwen3-0.6b": "qwen3-0.6b", "qwen3-32b": "qwen3-32b",
    "qwen3-8b": "qwen3-8b",
}  # fmt: skip

#: Keys that change nothing a plan has.
_HARMLESS = """
    base_config run_name base_output_directory dataset_path dataset_type dataset_name tokenizer_path tokenizer_type
    steps learning_rate learning_rate_schedule_steps warmup_steps_fraction enable_checkpointing async_checkpointing
    checkpoint_period load_parameters_path profiler profiler_steps skip_first_n_steps_for_profiler log_period
    enable_tensorboard enable_goodput_recording monitor_goodput reuse_example_batch packing max_segments_per_seq
    scan_layers hardware compile_topology compile_topology_num_slices sa_block_q sa_block_kv sa_block_kv_compute
    sa_block_q_dkv sa_block_kv_dkv sa_block_kv_dkv_compute sa_block_q_dq sa_block_kv_dq sa_use_fused_bwd_kernel
    megablox sparse_matmul capacity_factor allow_split_physical_axes use_iota_embed adam_b1 adam_b2 adam_eps
    adam_weight_decay gradient_clipping_threshold data_shuffle_seed init_weights_seed hf_path hf_access_token
    train_split eval_interval eval_steps jax_cache_dir dropout_rate fused_qkv num_pipeline_repeats
    num_layers_per_pipeline_stage logits_dot_in_fp32 cast_logits_to_fp32 float32_logits
"""
_MODEL = """
    model_name base_emb_dim base_num_decoder_layers base_num_query_heads base_num_kv_heads head_dim vocab_size
    logits_via_embedding normalize_embedding_logits normalization_layer_epsilon enable_dropout decoder_block
    base_mlp_dim base_moe_mlp_dim mlp_activations mlp_activations_limit attention_bias use_qk_norm norm_topk_prob
    num_experts num_experts_per_tok attention_sink mlp_bias routed_bias sliding_window_size
    inhomogeneous_layer_cycle_interval trainable_position_size rope_max_timescale rope_type rope_factor beta_fast
    beta_slow original_max_position_embeddings max_position_embeddings rope_interleave rope_truncate
    rope_attention_scaling
"""
_JOB = """
    max_target_length per_device_batch_size gradient_accumulation_steps opt_type dtype weight_dtype attention
    quantization remat_policy context_parallel_strategy shard_optimizer_over_data num_pipeline_microbatches
"""
_READ = {*_MODEL.split(), *_JOB.split(), *(f"{where}_{axis}_parallelism" for where in ("ici", "dcn") for axis in _AXES)}

Document = dict[str, Any]


def read(text: str, where: str, chips: int | None = None, overrides: Mapping[str, str] | None = None) -> Reading:
    """What a YAML says, with overrides of the command line put first; `chips` fill an axis that is left to them."""
    document = {**parse_document(text, where), **{key: _scalar(value) for key, value in (overrides or {}).items()}}
    axes = _axes(document, chips, where)
    t = axes["tensor"] * axes["tensor_sequence"]
    c, e, p = axes["context"], axes["expert"], axes["pipeline"]
    copies, shared = axes["data"] * axes["fsdp"] * e, axes["fsdp"] * c * e
    total, rounds = _batch(document, prod(axes.values()), p, where)
    if total % (copies * rounds):
        what = f"makes a batch of {total} for {copies} copies in {rounds} rounds"
        raise InputError(f"{where}: per_device_batch_size", what, "their product should divide it")
    plan: Document = {
        "tensor_parallel": t, "sequence_parallel": axes["tensor_sequence"] > 1, "context_parallel": c,
        "pipeline_parallel": p, "expert_parallel": e, "data_parallel": copies,
        "micro_batch": total // (copies * rounds), "recompute": str(document.get("remat_policy", "full")),
        "zero_stage": 3 if shared > 1 else 1 if document.get("shard_optimizer_over_data") is True else 0,
    }  # fmt: skip
    if shared > 1:
        plan["zero_group"] = shared
    if e > 1:
        plan["expert_tensor_parallel"] = t
    if c > 1:
        plan["context_kind"] = str(document.get("context_parallel_strategy", "all_gather"))
    if p > 1:
        plan["pipeline_schedule"] = "gpipe"
    harmless = frozenset(_HARMLESS.split())
    unknown = tuple(key for key in document if key not in _READ and key not in harmless)
    passed_over = tuple(key for key in document if key in harmless)
    job = _job(document, total, where)
    return Reading("maxtext", job, {"chips": prod(axes.values())}, plan, passed_over, unknown)


def _scalar(text: str) -> object:
    """A value of the command line, as YAML has it."""
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        return text


def _axes(document: Mapping[str, Any], chips: int | None, where: str) -> dict[str, int]:
    """Chips along each axis; one that is -1, or that base.yml fills, takes the chips that are left."""
    sizes: dict[str, int] = dict.fromkeys(_AXES, 1)
    open_axes: list[str] = []
    for axis in _AXES:
        for place in ("ici", "dcn"):
            key = f"{place}_{axis}_parallelism"
            if document.get(key, -1 if key in _FILLED else 1) == -1:
                open_axes.append(key)
            else:
                sizes[axis] *= _whole(document, key, where, 1)
        if sizes[axis] > _MAX_DEGREE:
            raise InputError(f"{where}: {axis}", f"has {sizes[axis]} chips", f"it should have at most {_MAX_DEGREE}")
    if not open_axes:
        return sizes
    if chips is None or len(open_axes) > 1:
        fix = "write it as a number" if len(open_axes) > 1 else "write it as a number, or give --chips"
        raise InputError(f"{where}: {open_axes[0]}", "is left to the number of chips", fix)
    left, rest = divmod(chips, prod(sizes.values()))
    if rest or not left:
        what = f"is left to {chips} chips, which the other axes do not divide"
        raise InputError(f"{where}: {open_axes[0]}", what, "correct the degrees")
    sizes[open_axes[0].split("_", 1)[1].removesuffix("_parallelism")] *= left
    return sizes


def _batch(document: Mapping[str, Any], chips: int, stages: int, where: str) -> tuple[int, int]:
    """Sequences of a step, and the rounds they come in."""
    steps = _whole(document, "gradient_accumulation_steps", where, 1)
    batch = document.get("per_device_batch_size", 12)
    if not isinstance(batch, int | float) or isinstance(batch, bool) or not 0 < batch <= _MAX_DEGREE:
        raise InputError(f"{where}: per_device_batch_size", f"is {quoted(batch)}", "it should be a number above 0")
    rounds = _whole(document, "num_pipeline_microbatches", where, stages) if stages > 1 else steps
    return round(batch * chips * steps), rounds


def _job(document: Mapping[str, Any], batch: int, where: str) -> Document:
    job: Document = {
        "global_batch": batch, "precision": _precision(document, where),
        "optimizer": str(document.get("opt_type", "adamw")),
        "attention": "unfused" if document.get("attention") == "dot_product" else "fused",
    }  # fmt: skip
    if "max_target_length" in document:
        job["seq_len"] = _whole(document, "max_target_length", where, 1)
    name = document.get("model_name", "default")
    if name == "default":
        job["model"] = _checked(_model(document, where), document, where)
    elif isinstance(name, str) and name in SHIPPED:
        beside = [key for key in _MODEL.split() if key in document and key != "model_name"]
        if beside:
            what = f"stands beside model_name {name}, whose own file goes before it"
            raise InputError(f"{where}: {beside[0]}", what, "drop it, or call the model default and give all keys")
        job["model"] = SHIPPED[name]
    else:
        raise InputError(f"{where}: model_name", f"is {quoted(name)}", one_of((*SHIPPED, "default"), str(name)))
    return job


def _precision(document: Mapping[str, Any], where: str) -> str:
    dtype, narrow = document.get("dtype", "bfloat16"), document.get("quantization") or ""
    if dtype not in ("bfloat16", "float32") or narrow not in ("", "fp8", "fp8_full"):
        key = "dtype" if dtype not in ("bfloat16", "float32") else "quantization"
        what = f"is {quoted(document[key])}, which plans cannot express"
        raise InputError(f"{where}: {key}", what, "use bfloat16, float32 or fp8")
    return "fp8" if narrow else "fp32" if dtype == "float32" else "bf16"


def _checked(model: str | Document, document: Mapping[str, Any], where: str) -> str | Document:
    """Refuses keys that say something else than the model that was read."""
    found = models.from_catalogue(model) if isinstance(model, str) else validate(Model, model, where)
    keys = model_keys(found)
    for key in _MODEL.split():
        value = document.get(key)
        if key == "normalization_layer_epsilon" and isinstance(value, str):
            continue
        if key in document and value != keys.get(key, value if value in _OFF else None):
            what = f"is {quoted(value)}, which is no model of a {keys.get('decoder_block')} block that we know"
            raise InputError(f"{where}: {key}", what, f"it should be {quoted(keys.get(key))}")
    return model


def _whole(document: Mapping[str, Any], key: str, where: str, otherwise: int | None = None) -> int:
    value = document.get(key, otherwise)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**40:
        what = "is missing" if value is None else f"is {quoted(value)}"
        raise InputError(f"{where}: {key}", what, "it should be a whole number, 1 or more")
    return value


def _number(document: Mapping[str, Any], key: str, where: str, otherwise: float) -> float:
    value = document.get(key, otherwise)
    try:
        # YAML takes 1e-6 for text, MaxText for a number
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{where}: {key}", f"is {quoted(value)}", "it should be a number") from None


def _model(document: Mapping[str, Any], where: str) -> str | Document:
    """The model of one's own that keys describe."""

    def size(key: str) -> int:
        return _whole(document, key, where)

    kind = document.get("decoder_block", "llama2")
    kinds = ("llama2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gpt3", "gpt_oss")
    if not isinstance(kind, str) or kind not in kinds:
        raise InputError(f"{where}: decoder_block", f"is {quoted(kind)}", one_of(kinds, str(kind)))
    norm, layers = ("layer" if kind == "gpt3" else "rms"), size("base_num_decoder_layers")
    mixer: Document = {
        "kind": "attention", "heads": size("base_num_query_heads"), "kv_heads": size("base_num_kv_heads"),
        "head_dim": size("head_dim"), "qkv_bias": kind in ("qwen2", "gpt3", "gpt_oss"),
        "output_bias": kind in ("gpt3", "gpt_oss"), "qk_norm": "head" if kind.startswith("qwen3") else "none",
        "sinks": kind == "gpt_oss", "rotary": kind != "gpt3",
    }  # fmt: skip
    half: Document = {"kind": "dense", "size": size("base_mlp_dim")}
    if kind == "gpt3":
        half |= {"activation": "gelu_tanh", "bias": True}
    if kind in ("mixtral", "qwen3_moe", "gpt_oss"):
        half = {
            "kind": "mixture", "experts": size("num_experts"), "top_k": size("num_experts_per_tok"),
            "size": size("base_moe_mlp_dim"), "score": "top_k_softmax",
        }  # fmt: skip
    block = {"mixer": mixer, "feed_forward": half, "norm": norm}
    blocks, order = {"full": block}, ["full"]
    if kind == "gpt_oss":
        half |= {"activation": "swiglu_clamped", "bias": True, "router_bias": True}
        blocks["sliding"] = {**block, "mixer": {**mixer, "window": size("sliding_window_size")}}
        order = ["sliding", "full"]
        if layers % 2:
            raise InputError(f"{where}: base_num_decoder_layers", f"is {layers}", "layers of GPT-OSS come in pairs")
    found: Document = {
        "name": "imported", "hidden": size("base_emb_dim"), "vocab": size("vocab_size"), "blocks": blocks,
        "layers": [{"blocks": order, "repeat": layers // len(order)}],
        "head": {"tied": document.get("logits_via_embedding") is True, "norm": norm},
        "norm_epsilon": _number(document, "normalization_layer_epsilon", where, 1e-5),
        "dropout": document.get("enable_dropout") is True,
        "max_seq_len": _whole(document, "max_target_length", where, 2048),
    }  # fmt: skip
    if kind == "gpt3":
        found["embedding"] = {"positions": size("trainable_position_size")}
    else:
        found["rotary"] = _rotary(document, where)
    return same_model(found, where)


def _rotary(document: Mapping[str, Any], where: str) -> Document:
    rotary: Document = {"base": float(_whole(document, "rope_max_timescale", where, 10_000))}
    kind = document.get("rope_type", "default")
    if kind == "llama3.1":
        rotary["scaling"] = {"kind": "llama3", "factor": 8.0, "original_seq_len": 8192}
    elif kind == "yarn":
        rotary["scaling"] = {
            "kind": "yarn", "factor": float(_whole(document, "rope_factor", where)),
            "beta_fast": float(_whole(document, "beta_fast", where, 32)),
            "beta_slow": float(_whole(document, "beta_slow", where, 1)),
            "original_seq_len": _whole(document, "original_max_position_embeddings", where),
            "truncate": document.get("rope_truncate") is not False,
        }  # fmt: skip
    elif kind != "default":
        fix = one_of(("default", "llama3.1", "yarn"), str(kind))
        raise InputError(f"{where}: rope_type", f"is {quoted(kind)}", fix)
    return rotary
