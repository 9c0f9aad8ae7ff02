"""A plan as MaxText's YAML: the keys that differ from its base.yml."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod
from typing import Any

from dovetail.hardware import Cluster
from dovetail.launch.launch_file import Launch, Start
from dovetail.launch.yaml_lines import yaml_lines
from dovetail.plans.launch_limits import LAUNCHES
from dovetail.plans.launch_models.facts import model_for
from dovetail.plans.launch_models.maxtext import model_keys
from dovetail.plans.plan import Plan
from dovetail.plans.plan_file import Task
from dovetail.plans.runs import check_runs, launched_by

VERSION = LAUNCHES["maxtext"].version
FILE = "maxtext.yml"


def export(task: Task) -> Launch:
    """The keys for a plan; one that MaxText cannot run is refused."""
    check_runs(task.plan, task.job, task.cluster, launched_by("maxtext", task.framework))
    text = "\n".join([f"# {VERSION}: over its base.yml", *yaml_lines(_document(task))]) + "\n"
    program = (
        "-m maxtext.trainers.pre_train.train", FILE, 'run_name="$RUN_NAME"', 'base_output_directory="$OUTPUT"',
        'dataset_path="$DATASET"', 'tokenizer_path="$TOKENIZER"', 'steps="$STEPS"',
    )  # fmt: skip
    fill_in = {
        "RUN_NAME": "what to call the run",
        "OUTPUT": "a folder or bucket for checkpoints and logs",
        "DATASET": "the folder or bucket of the data set",
        "TOKENIZER": "the model's tokenizer",
        "STEPS": "optimizer steps",
    }
    by_hand = ("run_name, base_output_directory, tokenizer and dataset are left to the launch",)
    return Launch(FILE, text, tuple(_notes(task)), by_hand, Start("python", program, {FILE: text}, {}, fill_in))


def _document(task: Task) -> dict[str, Any]:
    plan, job = task.plan, task.job
    staged = plan.pipeline_parallel > 1
    steps = 1 if staged else plan.num_microbatches
    batch = job.global_batch / (task.cluster.chips * steps)
    document: dict[str, Any] = {
        # without it the file would stand alone
        "base_config": "base.yml",
        **model_keys(model_for(job, VERSION)),
        "hardware": "tpu" if _is_tpu(task.cluster) else "gpu",
        "max_target_length": job.seq_len,
        "per_device_batch_size": int(batch) if batch.is_integer() else batch,
        "gradient_accumulation_steps": steps,
        "opt_type": job.optimizer,
        "dtype": "float32" if job.precision == "fp32" else "bfloat16",
        "weight_dtype": "float32",
        "attention": _attention(task),
        "remat_policy": plan.recompute if isinstance(plan.recompute, str) else plan.recompute[0],
    }
    if document["attention"] == "cudnn_flash_te":
        # documents packed into a sequence, which that kernel has to know the number of
        document["max_segments_per_seq"] = 32
    if job.precision == "fp8":
        document["quantization"] = "fp8_full" if _is_tpu(task.cluster) else "fp8"
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
    if _is_tpu(cluster):
        yield f"for a compilation ahead of time add compile_topology for {cluster.chips} chips of {cluster.chip.name}"
