"""A plan as DeepSpeed's JSON configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dovetail.launch.launch_file import Launch, Start, launched_overlaps
from dovetail.plans.launch_limits import LAUNCHES
from dovetail.plans.plan_file import Task
from dovetail.plans.runs import check_runs, launched_by

VERSION = LAUNCHES["deepspeed"].version
FILE = "ds_config.json"


def export(task: Task) -> Launch:
    """The configuration for a plan; one that DeepSpeed cannot be configured for is refused."""
    check_runs(task.plan, task.job, task.cluster, launched_by("deepspeed", task.framework))
    text = json.dumps(_document(task), indent=2) + "\n"
    start = Start(
        "deepspeed",
        ('"$TRAIN_SCRIPT"', "--deepspeed", f"--deepspeed_config {FILE}"),
        files={FILE: text},
        fill_in={"TRAIN_SCRIPT": f"your program, which builds {task.job.model.name} and calls deepspeed.initialize"},
    )
    by_hand = (f"start it on {task.cluster.chips} chips: deepspeed train.py --deepspeed --deepspeed_config {FILE}",)
    return Launch(FILE, text, tuple(_notes(task)), by_hand, start)


def _document(task: Task) -> dict[str, Any]:
    plan, job, overlapped = task.plan, task.job, launched_overlaps(task, "deepspeed").gradients
    document: dict[str, Any] = {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_microbatches,
        "bf16": {"enabled": job.precision == "bf16"},
        "fp16": {"enabled": job.precision == "fp16"},
        "zero_optimization": {"stage": plan.zero_stage}
        | ({"overlap_comm": overlapped, "contiguous_gradients": True} if plan.zero_stage else {})
        | ({"offload_optimizer": {"device": "cpu", "pin_memory": True}} if "optimizer" in plan.offload else {}),
    }
    if plan.tensor_parallel > 1:
        # DeepSpeed counts all chips of a tensor-parallel group in it, or one, by how the engine is started
        del document["train_batch_size"]
        document["tensor_parallel"] = {"autotp_size": plan.tensor_parallel}
    if plan.context_parallel > 1:
        document["sequence_parallel_size"] = plan.context_parallel
        document["data_parallel_size"] = plan.data_parallel
    if plan.expert_parallel > 1:
        document["expert_parallel"] = {"enabled": True, "autoep_size": plan.expert_parallel}
    if plan.recompute == "full":
        document["activation_checkpointing"] = {"number_checkpoints": job.model.num_layers}
    if "activations" in plan.offload:
        document["activation_checkpointing"]["cpu_checkpointing"] = True
    return document


def _notes(task: Task) -> Iterator[str]:
    plan, job = task.plan, task.job
    yield f"the model ({job.model.name}, sequences of {job.seq_len}), {job.optimizer} and its learning rate are code"
    if plan.tensor_parallel > 1:
        yield f"train_batch_size is left out: DeepSpeed takes {plan.tensor_parallel} times {job.global_batch} for it"
    if plan.context_parallel > 1:
        yield "attention has to be wrapped for Ulysses in code (UlyssesSPAttentionHF or DistributedAttention)"
    if plan.expert_parallel > 1:
        yield "AutoEP knows Mixtral, Qwen3, DeepSeek and MiniMax; for other models add moe_layer_pattern and its kin"
    if plan.recompute == "full":
        yield "activation_checkpointing says how; that layers are checkpointed is code (gradient_checkpointing_enable)"
