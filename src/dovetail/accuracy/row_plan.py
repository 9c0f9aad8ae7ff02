"""The plan of a measured run: degrees from the row, completed like its framework does."""

from __future__ import annotations

import re
from fractions import Fraction

from dovetail.accuracy.row_configuration import configurations_of, plan_fields, tensor_parallel_chips
from dovetail.accuracy.row_framework import context_kind, overlap_fields
from dovetail.accuracy.row_recompute import RecomputeReading, read_recompute
from dovetail.accuracy.table import TableRow
from dovetail.documents import validate
from dovetail.errors import InputError
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.runs import check_runs


def slices(row: TableRow) -> int:
    """Parts of a run that share no sharded state: for TPU pods, the slices connected by the data-centre network."""
    zero, group, data = row.count("zero", smallest=0), row.count("zero_group"), row.count("dp")
    if zero != 3 or group is None or data is None or group >= data or data % group:
        return 1
    return data // group


def read_plan(row: TableRow, job: Job, cluster: Cluster, framework: str) -> tuple[Plan, RecomputeReading]:
    """The resolved plan and how its recompute was read; raises an error if the plan is impossible."""
    t, p, c = tensor_parallel_chips(row), row.count("pp") or 1, row.count("cp") or 1
    v = (row.count("vp") or 1) if p > 1 else 1
    experts = row.count("ep") or 1
    recompute = read_recompute(row, job.graph(), Fraction(job.model.num_layers, p * v))
    # without a pipeline MaxText and torchtitan run a replica's share at once unless told to accumulate
    at_once = p == 1 and framework in ("maxtext", "torchtitan")
    document: dict[str, object] = {
        "data_parallel": row.count("dp"),
        "tensor_parallel": t,
        "pipeline_parallel": p,
        "virtual_stages": v,
        "context_parallel": c,
        "context_kind": context_kind(framework, row),
        "expert_parallel": experts,
        "expert_tensor_parallel": _expert_tensor_parallel(row) if experts > 1 else None,
        # torchtitan keeps weights gathered from the first micro-batch of a pipeline to the last
        "zero_stage": 2 if framework == "torchtitan" and p > 1 and _zero_stage(row) == 3 else _zero_stage(row),
        "zero_group": _zero_group(row, c),
        # frameworks leave it out if there is nothing to shard; MaxText always shards the stream over the tensor axis
        # (activation_embed in configs/base.yml)
        "sequence_parallel": (row.flag("sequence_parallel") or framework == "maxtext") and t > 1,
        "micro_batch": _micro_batch(row, job, cluster.chips // (t * p * c), at_once=at_once),
        "recompute": recompute.choice,
        "recompute_share": recompute.share,
        "layers_per_stage": layers_per_stage(job.model.num_layers, p * v, framework),
        "offload": ["activations"] if any(each.activations == "host" for each in configurations_of(row)) else [],
        **overlap_fields(framework, row),
        **plan_fields(row),
    }
    spec = validate(PlanSpec, document, "plan")
    plan = resolve_plan(spec, chips=cluster.chips, global_batch=job.global_batch, num_layers=job.model.num_layers)
    # no check whether the framework can run it: it did
    check_runs(plan, job, cluster)
    return plan, recompute


def layers_per_stage(layers: int, parts: int, framework: str) -> tuple[int, ...] | None:
    """Uneven stages: Megatron's recipes fill every stage but the last; None leaves the partition to the plan.

    If embedding and head count as a layer each, the plan's default partition is theirs: `account_for_embedding...`
    of Megatron, `type:transformer|embedding` of DeepSpeed. Otherwise Megatron-Bridge's recipes of DeepSeek-V3
    and Kimi K2 give the last stage what is left (recipes/deepseek/h100/deepseek_v3.py).
    """
    if framework != "megatron" or layers % parts == 0 or (layers + 2) % parts == 0:
        return None
    most = -(-layers // parts)
    last = layers - most * (parts - 1)
    return (*[most] * (parts - 1), last) if last >= 0 else None


def _expert_tensor_parallel(row: TableRow) -> int:
    """Chips an expert is sharded over: as the source says, or one (Megatron Core's parallel folding)."""
    said = re.search(r"expert tensor parallel (\d+)", row.text("notes"))
    return int(said.group(1)) if said else 1


def _zero_stage(row: TableRow) -> int:
    stage = row.count("zero", smallest=0) or 0
    if stage > 3:
        raise InputError("zero", f"is {stage}", "it should be 0, 1, 2 or 3")
    return stage


def _zero_group(row: TableRow, context: int) -> int | None:
    """Chips over which the state is sharded.

    Rows count data-parallel ranks. Context-parallel ranks have the same weights, and Megatron's distributed
    optimizer and torchtitan's FSDP shard over them too; measured peaks of runs with both agree.
    """
    group = row.count("zero_group")
    if any(each.zero_group == "whole" for each in configurations_of(row)):
        return group
    return None if group is None or not _zero_stage(row) else group * context


def _micro_batch(row: TableRow, job: Job, data: int, *, at_once: bool) -> int:
    micro_batch = row.count("micro_batch")
    if micro_batch is not None:
        return micro_batch
    if job.global_batch == data or (at_once and job.global_batch % data == 0):
        return job.global_batch // data
    share = f"{job.global_batch} sequences on {data} replicas leave it open"
    raise InputError("micro_batch", f"is empty and {share}", "the source has to state it")
