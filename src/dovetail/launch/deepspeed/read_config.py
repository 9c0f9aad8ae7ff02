"""A DeepSpeed configuration as parts of a plan file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from dovetail.documents import parse_document
from dovetail.errors import InputError, quoted
from dovetail.launch.deepspeed.keys import HARMLESS, READ, REMOVED, SECTIONS, TOP_LEVEL
from dovetail.launch.launch_file import Reading

_MAX_COUNT = 2**40
_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "lion": "lion"}


def parse_config(text: str, where: str) -> dict[str, Any]:
    """The keys of a configuration."""
    document = parse_document(text, where, json_only=True)
    if not TOP_LEVEL & set(document):
        fix = "it should be a DeepSpeed configuration, with train_micro_batch_size_per_gpu and zero_optimization"
        raise InputError(where, "has no key of DeepSpeed", fix)
    return document


def read_config(document: Mapping[str, Any], where: str) -> Reading:
    """What a configuration says; it does not include the model, its sequences or the number of chips."""
    for key in sorted(REMOVED & set(section_of(document, "zero_optimization", where))):
        where = f"{where}: zero_optimization.{key}"
        raise InputError(where, "was removed from DeepSpeed, which refuses it (0.19.8)", "drop it")
    unknown = [key for key in document if key not in TOP_LEVEL]
    passed_over = [key for key in document if key in TOP_LEVEL - READ]
    for name, keys in SECTIONS.items():
        section = section_of(document, name, where)
        unknown += [f"{name}.{key}" for key in section if key not in keys]
    for (name, key), harmless in HARMLESS.items():
        value = section_of(document, name, where).get(key, harmless[0])
        if value not in harmless and not _is_no_device(value):
            raise InputError(f"{where}: {name}.{key}", f"is {quoted(value)}, which plans cannot express", "drop it")
    if section_of(document, "activation_checkpointing", where).get("partition_activations") is True:
        unknown.append("activation_checkpointing.partition_activations (plans cannot express it)")
    plan = _plan(document, where)
    job = _job(document, where, unknown)
    _batch(document, where, plan, job)
    return Reading("deepspeed", job, {}, plan, tuple(passed_over), tuple(unknown))


def _is_no_device(value: object) -> bool:
    return isinstance(value, Mapping) and cast("Mapping[str, object]", value).get("device") in (None, "none")


def section_of(document: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """A mapping in a configuration; empty where it is missing."""
    value = document.get(name)
    if name == "zero_optimization" and isinstance(value, bool):
        return {"stage": int(value)}  # as the first versions had it
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {name}", f"is {quoted(value)}", "it should be a mapping of keys")
    return cast("Mapping[str, Any]", value)


def _count(fields: Mapping[str, Any], key: str, where: str, low: int = 1, high: int = _MAX_COUNT) -> int | None:
    """A whole number; none where it is missing or left to the program that starts DeepSpeed."""
    value = fields.get(key)
    if value is None or value == "auto":
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        fix = f"it should be a whole number from {low} to {high}"
        raise InputError(f"{where}: {key}", f"is {quoted(value)}", fix)
    return value


def _plan(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    zero = section_of(document, "zero_optimization", where)
    tensor = section_of(document, "tensor_parallel", where)
    experts = section_of(document, "expert_parallel", where)
    plan: dict[str, Any] = {
        "zero_stage": _count(zero, "stage", f"{where}: zero_optimization", 0, 3) or 0,
        "tensor_parallel": _count(tensor, "autotp_size", f"{where}: tensor_parallel", 0, 2**24) or 1,
    }
    context = _count(document, "sequence_parallel_size", where, 1, 2**24) or 1
    if context > 1:
        plan |= {"context_parallel": context, "context_kind": "ulysses"}
    spread = _count(experts, "autoep_size", f"{where}: expert_parallel", 1, 2**24) or 1
    if experts.get("enabled") is True and spread > 1:
        plan |= {"expert_parallel": spread, "expert_tensor_parallel": 1}
    stages = _count(section_of(document, "pipeline", where), "stages", f"{where}: pipeline", 1, 2**24)
    if stages is not None:
        plan["pipeline_parallel"] = stages
    elif "pipeline" in document:
        fix = "add stages there, as many as PipelineModule makes"
        raise InputError(f"{where}: pipeline", "is missing the number of stages, which is code", fix)
    overlapped = zero.get("overlap_comm", plan["zero_stage"] == 3)
    if plan["zero_stage"] and isinstance(overlapped, bool) and plan.get("pipeline_parallel", 1) == 1:
        plan["overlap_gradients"] = overlapped
    if "activation_checkpointing" in document:
        plan["recompute"] = "full"
    offload = _offload(zero, section_of(document, "activation_checkpointing", where), where)
    return plan | ({"offload": offload} if offload else {})


def _offload(zero: Mapping[str, Any], checkpointing: Mapping[str, Any], where: str) -> list[str]:
    """What hosts hold; plans have nothing on disks."""
    where = f"{where}: zero_optimization"
    device = section_of(zero, "offload_optimizer", where).get("device", "none")
    if device not in (None, "none", "cpu"):
        what = f"is {quoted(device)}, which plans cannot express"
        raise InputError(f"{where}.offload_optimizer.device", what, "it should be cpu or none")
    activations = checkpointing.get("cpu_checkpointing") is True
    return [*(["optimizer"] if device == "cpu" else []), *(["activations"] if activations else [])]


def _job(document: Mapping[str, Any], where: str, unknown: list[str]) -> dict[str, Any]:
    enabled: list[str] = []
    for name, precision in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
        value = section_of(document, name, where).get("enabled", False)
        if value not in (True, False, "auto"):
            raise InputError(f"{where}: {name}.enabled", f"is {quoted(value)}", "it should be true or false")
        enabled += [precision] if value is True else ["auto"] if value == "auto" else []
    if set(enabled) >= {"bf16", "fp16"}:
        raise InputError(f"{where}: fp16", "cannot be combined with bf16", "enable one of them")
    job: dict[str, Any] = {}
    if "auto" not in enabled:
        job["precision"] = enabled[0] if enabled else "fp32"
    elif set(enabled) != {"auto"}:
        job["precision"] = next(name for name in enabled if name != "auto")
    optimizer = section_of(document, "optimizer", where)
    if "type" in optimizer:
        name = str(optimizer["type"]).casefold()
        momentum = section_of(optimizer, "params", f"{where}: optimizer").get("momentum")
        if name in _OPTIMIZERS:
            job["optimizer"] = _OPTIMIZERS[name]
        elif name == "sgd":
            job["optimizer"] = "momentum" if momentum else "sgd"
        else:
            unknown.append(f"optimizer.type {quoted(optimizer['type'])}")
    return job


def _batch(document: Mapping[str, Any], where: str, plan: dict[str, Any], job: dict[str, Any]) -> None:
    """Adds the batch's fields; replicas are what is left of the batch after micro-batches and accumulation."""
    train = _count(document, "train_batch_size", where)
    micro = _count(document, "train_micro_batch_size_per_gpu", where, 1, 2**24)
    steps = _count(document, "gradient_accumulation_steps", where)
    replicas = _count(document, "data_parallel_size", where, 1, 2**24)
    if micro is None and train is not None and replicas is not None and train % (replicas * (steps or 1)) == 0:
        micro = train // (replicas * (steps or 1))
    if micro is None:
        fix = "add it: a configuration does not have the number of chips it would follow from"
        raise InputError(f"{where}: train_micro_batch_size_per_gpu", "is missing or auto", fix)
    plan["micro_batch"] = micro
    if replicas is not None:
        plan["data_parallel"] = replicas
    if plan["tensor_parallel"] > 1 or train is None:
        if replicas is not None and steps is not None:
            job["global_batch"] = micro * steps * replicas
        # with AutoTP it may count each sequence once or once per chip of its group
        return
    job["global_batch"] = train
    if steps is None:
        return
    if train % (micro * steps) or (replicas is not None and train != micro * steps * replicas):
        what = f"is {train}, which does not match micro-batches of {micro} in {steps} steps"
        raise InputError(f"{where}: train_batch_size", what, "it should be their product with the number of replicas")
    plan["data_parallel"] = train // (micro * steps)
