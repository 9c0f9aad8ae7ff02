"""A configuration of Hugging Face accelerate as parts of a plan file; model and batch are the user's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from dovetail.documents import parse_document
from dovetail.errors import InputError, one_of, quoted
from dovetail.launch.launch_file import Reading

_CONTEXT = {"allgather": "all_gather", "alltoall": "ring"}
_PRECISIONS = {"bf16": "bf16", "no": "fp32", "fp16": "fp16", "fp8": "fp8"}
_HARMLESS = """
    compute_environment debug downcast_bf16 enable_cpu_affinity machine_rank main_process_ip main_process_port
    main_training_function num_machines rdzv_backend same_network use_cpu tpu_env tpu_use_cluster tpu_use_sudo
    dynamo_config distributed_type
"""
_FSDP = """
    fsdp_version fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap fsdp_reshard_after_forward
    fsdp_activation_checkpointing fsdp_offload_params fsdp_state_dict_type fsdp_cpu_ram_efficient_loading
    fsdp_backward_prefetch fsdp_forward_prefetch fsdp_sync_module_states fsdp_use_orig_params fsdp_min_num_params
"""
_P = "parallelism_config_"
_DEGREES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")
_READ = {"mixed_precision", "num_processes", "fsdp_config", "parallelism_config"}


#: Flags of `accelerate launch` that say again what the configuration says, or where nodes are.
STARTED = frozenset({
    "--config_file", "--num_machines", "--num_processes", "--machine_rank", "--main_process_ip", "--main_process_port",
})  # fmt: skip


def read(text: str, where: str, flags: tuple[str, ...] = ()) -> Reading:
    """What a configuration of FSDP2 says; further flags of its launch are listed as unknown."""
    document = parse_document(text, where)
    fsdp, parallel = _section(document, "fsdp_config", where), _section(document, "parallelism_config", where)
    if not fsdp or fsdp.get("fsdp_version", 1) != 2:
        raise InputError(f"{where}: fsdp_config", "is not of FSDP2", "set distributed_type FSDP and fsdp_version 2")
    if fsdp.get("fsdp_offload_params") not in (None, False):
        raise InputError(f"{where}: fsdp_config.fsdp_offload_params", "is on, which plans cannot express", "drop it")
    chips = _whole(document, "num_processes", where, None)
    replicas, shards, t, c = (_whole(parallel, f"{_P}{name}", where, 0) for name in _DEGREES)
    t, c, replicas = t or 1, c or 1, replicas or 1
    if chips % (replicas * t * c):
        what = f"is {chips} for degrees of {replicas * t * c}"
        raise InputError(f"{where}: num_processes", what, "the degrees should divide it")
    shards = shards or chips // (replicas * t * c)
    plan: dict[str, Any] = {
        "tensor_parallel": t, "context_parallel": c, "data_parallel": replicas * shards, "zero_group": shards * c,
        "zero_stage": 2 if fsdp.get("fsdp_reshard_after_forward") is False else 3,
        "recompute": "full" if fsdp.get("fsdp_activation_checkpointing") is True else "none",
    }  # fmt: skip
    if c > 1:
        plan["context_kind"] = _choice(parallel, f"{_P}cp_comm_strategy", _CONTEXT, "allgather", where)
    job = {"precision": _choice(document, "mixed_precision", _PRECISIONS, "no", where)}
    known = {*_HARMLESS.split(), *_READ}
    unknown = [*flags, *(key for key in document if key not in known)]
    unknown += [f"fsdp_config.{key}" for key in fsdp if key not in _FSDP.split()]
    names = {f"{_P}{name}" for name in (*_DEGREES, "cp_comm_strategy")}
    unknown += [f"parallelism_config.{key}" for key in parallel if key not in names]
    passed_over = tuple(key for key in document if key in _HARMLESS.split())
    # compiled by dynamo, as the other framework of the catalogue is
    compiled = bool(_section(document, "dynamo_config", where))
    return Reading("torchtitan" if compiled else "fsdp", job, {"chips": chips}, plan, passed_over, tuple(unknown))


def _section(document: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    value: object = document.get(name) or {}
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {name}", f"is {quoted(value)}", "it should be a mapping of keys")
    return cast("Mapping[str, Any]", value)


def _whole(fields: Mapping[str, Any], key: str, where: str, otherwise: int | None) -> int:
    value = fields.get(key, otherwise)
    lowest = 1 if otherwise is None else otherwise
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= 2**24:
        what = "is missing" if value is None else f"is {quoted(value)}"
        raise InputError(f"{where}: {key}", what, "it should be a whole number, 1 or more")
    return value


def _choice(fields: Mapping[str, Any], key: str, choices: Mapping[str, str], otherwise: str, where: str) -> str:
    value = fields.get(key, otherwise)
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{where}: {key}", f"is {quoted(value)}", one_of(choices, value))
    return choices[value]
