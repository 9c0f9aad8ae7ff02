"""A plan as MaxText's YAML: the keys that differ from its base.yml."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod
from typing import Any

from dovetail import frameworks, models
from dovetail.errors import InputError, one_of
from dovetail.evaluation import Task
from dovetail.hardware import Cluster
from dovetail.launch.launch_file import Launch, refuse
from dovetail.launch.maxtext.model import MODELS
from dovetail.launch.yaml_lines import yaml_lines
from dovetail.placement.plan import Plan
from dovetail.placement.runnable import check_runnable

VERSION = "MaxText of August 2026"

#: remat_policy for what a plan computes again; `minimal` keeps what projections write.
_POLICIES = {"selective": "minimal", "full": "full"}
_OPTIMIZERS = ("adamw", "sgd")


def export(task: Task) -> Launch:
    """The keys for a plan; one that MaxText cannot run is refused."""
    check_runnable(task.plan, frameworks.load("maxtext"), task.job.precision)
    _check_job(task)
    for field, what, fix in (*_obstacles(task.plan), *_pipeline_obstacles(task)):
        raise refuse("MaxText", VERSION, field, what, fix)
    text = "\n".join([f"# {VERSION}: over its base.yml", *yaml_lines(_document(task))]) + "\n"
    return Launch("maxtext.yml", text, tuple(_notes(task)))


def _check_job(task: Task) -> None:
    job = task.job
    if job.model.name not in MODELS or models.load(job.model.name) != job.model:
        what = f"is {job.model.name}, for which {VERSION} has no configuration"
        raise InputError("job: model", what, one_of(MODELS, job.model.name))
    if job.optimizer not in _OPTIMIZERS:
        what = f"is {job.optimizer}, which {VERSION} does not have"
        raise InputError("job: optimizer", what, f"it should be one of {', '.join(_OPTIMIZERS)}")


def _obstacles(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """What of degrees, sharding and recompute no keys say."""
    c, e = plan.context_parallel, plan.expert_parallel
    if plan.zero_stage < 3 and c * e > 1:
        # the rules of base.yml cut weights along the context and expert axes, always
        axis = "context" if c > 1 else "expert"
        yield "zero_stage", f"is {plan.zero_stage} beside {axis} parallelism, which shards the weights", "set it to 3"
    if plan.zero_stage == 1 and plan.zero_group < plan.data_parallel:
        yield "zero_group", f"is {plan.zero_group} with zero_stage 1", "leave it out"
    if plan.zero_stage == 3 and plan.zero_group % (c * e):
        what = f"is {plan.zero_group} with {c * e} chips along the context and expert axes"
        yield "zero_group", what, "it should be a multiple of them"
    if plan.expert_tensor_parallel != plan.tensor_parallel:
        yield "expert_tensor_parallel", f"is {plan.expert_tensor_parallel}", "leave it out"
    if plan.recompute_by_block is not None or not isinstance(plan.recompute, str) or plan.recompute not in _POLICIES:
        field = "recompute" if plan.recompute_by_block is None else "recompute_by_block"
        yield field, "names operators, where policies name tensors", f"it should be {' or '.join(_POLICIES)}"


def _pipeline_obstacles(task: Task) -> Iterator[tuple[str, str, str]]:
    p, m = task.plan.pipeline_parallel, task.plan.num_microbatches
    if p > 1 and m % p:
        what = f"makes {m} microbatches for {p} stages"
        yield "micro_batch", what, "choose one whose number of microbatches is a multiple of the stages"


def _document(task: Task) -> dict[str, Any]:
    plan, job = task.plan, task.job
    staged = plan.pipeline_parallel > 1
    steps = 1 if staged else plan.num_microbatches
    batch = job.global_batch / (task.cluster.chips * steps)
    document: dict[str, Any] = {
        "model_name": MODELS[job.model.name],
        "hardware": "tpu" if _is_tpu(task.cluster) else "gpu",
        "max_target_length": job.seq_len,
        "per_device_batch_size": int(batch) if batch.is_integer() else batch,
        "gradient_accumulation_steps": steps,
        "opt_type": job.optimizer,
        "dtype": "float32" if job.precision == "fp32" else "bfloat16",
        "weight_dtype": "float32",
        "attention": _attention(task),
        "remat_policy": _POLICIES[str(plan.recompute)],
    }
    if job.precision == "fp8":
        document["quantization"] = "fp8_full" if _is_tpu(task.cluster) else "fp8"
    if job.model.multi_token_prediction is not None:
        document["mtp_num_layers"] = job.model.multi_token_prediction.modules
    for axis, (inside, outside) in _axes(plan, task.cluster).items():
        document[f"ici_{axis}_parallelism"] = inside
        document[f"dcn_{axis}_parallelism"] = outside
    if plan.context_parallel > 1:
        document["context_parallel_strategy"] = plan.context_kind
    if plan.zero_stage == 1:
        document["shard_optimizer_over_data"] = True
    if staged:
        document["num_layers_per_pipeline_stage"] = plan.layers_per_stage[0]
        document["num_pipeline_repeats"] = 1
        document["num_pipeline_microbatches"] = plan.num_microbatches
        document["scan_layers"] = False
    return document


def _is_tpu(cluster: Cluster) -> bool:
    return cluster.chip.name.startswith("tpu")


def _attention(task: Task) -> str:
    if not task.job.fused_attention:
        return "dot_product"
    return "flash" if _is_tpu(task.cluster) else "cudnn_flash_te"


def _axes(plan: Plan, cluster: Cluster) -> dict[str, tuple[int, int]]:
    """Chips along each axis of the mesh, within a slice or node and across them; inner axes fill a slice first."""
    c, e = plan.context_parallel, plan.expert_parallel
    shards = plan.zero_group // (c * e) if plan.zero_stage == 3 else 1
    degrees = {
        "tensor_sequence" if plan.sequence_parallel else "tensor": plan.tensor_parallel,
        "expert": e,
        "context": c,
        "fsdp": shards,
        "pipeline": plan.pipeline_parallel,
        "data": plan.data_parallel // (shards * e),
    }
    left = min(cluster.tiers[0].size, cluster.chips) if cluster.tiers else cluster.chips
    axes: dict[str, tuple[int, int]] = {}
    for axis, degree in degrees.items():
        inside = gcd(degree, left)
        axes[axis] = inside, degree // inside
        left //= inside
    assert left == 1, "the first tier divides the chips, and the degrees make them up"
    # those base.yml would fill by itself stand there always
    return {axis: sizes for axis, sizes in axes.items() if axis in ("fsdp", "data") or prod(sizes) > 1}


def _notes(task: Task) -> Iterator[str]:
    cluster = task.cluster
    yield f"written for {VERSION}; run_name, base_output_directory, tokenizer and dataset are left to the launch"
    if task.plan.recompute == "selective":
        yield "remat_policy minimal keeps what projections write and computes the rest again, attention too"
    if _is_tpu(cluster):
        yield f"for a compilation ahead of time add compile_topology for {cluster.chips} chips of {cluster.chip.name}"
