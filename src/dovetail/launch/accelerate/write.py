"""A plan as a configuration of Hugging Face accelerate: FSDP2 with its parallelism config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail import frameworks
from dovetail.errors import InputError
from dovetail.evaluation import Task
from dovetail.launch.launch_file import Launch, refuse
from dovetail.launch.yaml_lines import yaml_lines
from dovetail.placement.plan import Plan
from dovetail.placement.runnable import check_runnable

VERSION = "accelerate 1.15.0"

#: How keys and values travel: PyTorch gathers them, or passes them on step by step.
_CONTEXT = {"all_gather": "allgather", "ring": "alltoall"}
_PRECISIONS = {"bf16": "bf16", "fp32": "no"}


def export(task: Task) -> Launch:
    """The configuration for a plan; one that FSDP2 under accelerate cannot run is refused."""
    plan = task.plan
    if plan.pipeline_parallel > 1:
        raise refuse("FSDP2", VERSION, "pipeline_parallel", f"is {plan.pipeline_parallel}", "set it to 1")
    check_runnable(plan, frameworks.load("fsdp"), task.job.precision)
    if task.job.precision not in _PRECISIONS:
        what = f"is {task.job.precision}, for which {VERSION} needs a backend that no plan names"
        raise InputError("job: precision", what, "it should be bf16 or fp32")
    for field, what, fix in _obstacles(plan):
        raise refuse("FSDP2", VERSION, field, what, fix)
    text = "\n".join([f"# {VERSION}, FSDP2", *yaml_lines(_document(task))]) + "\n"
    return Launch("accelerate.yaml", text, tuple(_notes(task)))


def _obstacles(plan: Plan) -> Iterator[tuple[str, str, str]]:
    t, c = plan.tensor_parallel, plan.context_parallel
    if not plan.zero_stage:
        yield "zero_stage", "is 0", "set it to 2 or 3"
    if plan.zero_group % c:
        yield "zero_group", f"is {plan.zero_group} with {c} context-parallel chips", "it should be a multiple of them"
    if plan.zero_group == 1:
        yield "zero_group", "is 1, which leaves nothing to shard", "shard over 2 chips or more"
    if t * c > 1 and plan.zero_group == c and plan.data_parallel > 1:
        what = f"is {c}, so that copies stand beside tensor or context parallelism"
        yield "zero_group", what, "shard over some of the data-parallel chips"
    if plan.sequence_parallel:
        yield "sequence_parallel", "is true", "set it to false"
    if plan.expert_tensor_parallel != t:
        yield "expert_tensor_parallel", f"is {plan.expert_tensor_parallel}", "leave it out"
    if plan.recompute_by_block is not None or plan.recompute not in ("none", "full"):
        choice = plan.recompute if isinstance(plan.recompute, str) else "a list"
        yield "recompute", f"is {choice}", "it should be none or full"
    if plan.recompute_share < 1:
        yield "recompute_share", f"is {plan.recompute_share:g}", "recompute all blocks or none"


def _document(task: Task) -> dict[str, Any]:
    plan, cluster = task.plan, task.cluster
    shards = plan.zero_group // plan.context_parallel
    node = min(cluster.tiers[0].size, cluster.chips) if cluster.tiers else cluster.chips
    degrees: dict[str, Any] = {
        "parallelism_config_dp_replicate_size": plan.data_parallel // shards,
        "parallelism_config_dp_shard_size": shards,
        "parallelism_config_tp_size": plan.tensor_parallel,
        "parallelism_config_cp_size": plan.context_parallel,
    }
    if plan.context_parallel > 1:
        degrees["parallelism_config_cp_comm_strategy"] = _CONTEXT[plan.context_kind]
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": _PRECISIONS[task.job.precision],
        "num_machines": -(-cluster.chips // node),
        "num_processes": cluster.chips,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": plan.zero_stage == 3,
            "fsdp_activation_checkpointing": plan.recompute == "full",
            "fsdp_offload_params": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
        "parallelism_config": degrees,
    }
    if task.framework.name == "torchtitan":  # compiled, as the plan was made for
        document["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    return document


def _notes(task: Task) -> Iterator[str]:
    plan, job = task.plan, task.job
    yield f"written for {VERSION}; each machine adds its machine_rank and main_process_ip"
    yield (
        f"the model ({job.model.name}, sequences of {job.seq_len}), {job.optimizer}, "
        f"a batch of {plan.micro_batch} per chip and {plan.num_microbatches} gradient accumulation steps are code"
    )
    if plan.tensor_parallel > 1:
        yield "tensor parallelism follows the tp_plan of the model's class"
