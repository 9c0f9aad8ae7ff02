"""A plan as a configuration of Hugging Face accelerate: FSDP2 with its parallelism config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.launch.launch_file import Launch, Start
from dovetail.launch.yaml_lines import yaml_lines
from dovetail.plans.flags import flags_of
from dovetail.plans.launch_limits import ACCELERATE_PRECISIONS, LAUNCHES
from dovetail.plans.plan_file import Task
from dovetail.plans.runs import check_runs, launched_by

VERSION = LAUNCHES["accelerate"].version
FILE = "accelerate.yaml"
#: Options that have just the value of a field.
FLAGS = flags_of("accelerate")

#: How keys and values travel: PyTorch gathers them, or passes them on step by step.
_CONTEXT = {"all_gather": "allgather", "ring": "alltoall"}


def export(task: Task) -> Launch:
    """The configuration for a plan; one that FSDP2 under accelerate cannot run is refused."""
    check_runs(task.plan, task.job, task.cluster, launched_by("accelerate", task.framework))
    text = "\n".join([f"# {VERSION}, FSDP2", *yaml_lines(_document(task))]) + "\n"
    start = Start(
        "accelerate",
        ('"$TRAIN_SCRIPT"',),
        files={FILE: text},
        fill_in={"TRAIN_SCRIPT": f"your program, which builds {task.job.model.name} and calls Accelerator.prepare"},
    )
    by_hand = ("each machine adds its machine_rank and main_process_ip",)
    return Launch(FILE, text, tuple(_notes(task)), by_hand, start)


def _document(task: Task) -> dict[str, Any]:
    plan, cluster = task.plan, task.cluster
    shards = plan.zero_group // plan.context_parallel
    node = min(cluster.tiers[0].size, cluster.chips) if cluster.tiers else cluster.chips
    degrees: dict[str, Any] = {
        "parallelism_config_dp_replicate_size": plan.data_parallel // shards,
        "parallelism_config_dp_shard_size": shards,
        FLAGS["tensor_parallel"]: plan.tensor_parallel,
        FLAGS["context_parallel"]: plan.context_parallel,
    }
    if plan.context_parallel > 1:
        degrees["parallelism_config_cp_comm_strategy"] = _CONTEXT[plan.context_kind]
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": ACCELERATE_PRECISIONS[task.job.precision],
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
    yield (
        f"the model ({job.model.name}, sequences of {job.seq_len}), {job.optimizer}, "
        f"a batch of {plan.micro_batch} per chip and {plan.num_microbatches} gradient accumulation steps are code"
    )
    if plan.tensor_parallel > 1:
        yield "tensor parallelism follows the tp_plan of the model's class"
