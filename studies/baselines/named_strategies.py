"""Published strategies in our cost model: tuned over all their degrees, and as published.

Megatron: Narayanan et al. 2021 (full recompute), Korthikanti et al. 2022 (selective recompute, sequence parallelism).
DeepSpeed: ZeRO-3 over all dies (Rajbhandari et al. 2020). AccPar (Song et al. 2020) has its own search, `accpar`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from dovetail.errors import InputError
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.runs import check_runs
from dovetail.plans.space import Space, divisors

#: Chips per node of the published machines: no tensor-parallel group was larger.
NODE = 8

_MEGATRON = Space(
    context_parallel=(1,), zero_stage=(0, 1), recompute_share=(1.0,), pipeline_schedule=("1f1b", "interleaved")
)

#: The plans each of them can run; none chooses recompute by block.
BASELINES: Mapping[str, Space] = MappingProxyType(
    {
        "Megatron, full recompute": replace(_MEGATRON, recompute=("full",)),
        "Megatron, selective recompute": replace(_MEGATRON, recompute=("selective",)),
        "DeepSpeed ZeRO-3": Space(
            tensor_parallel=(1,), context_parallel=(1,), pipeline_parallel=(1,), zero_stage=(3,),
            recompute=("none", "full"), recompute_share=(1.0,),
        ),
    }
)  # fmt: skip


def as_published(name: str, job: Job, cluster: Cluster) -> Plan:
    """The plan a user would have taken from the paper, whether it fits or not.

    Megatron: as many tensor-parallel chips as a node had and heads allow, the rest a pipeline with micro-batches of one
    sequence; DeepSpeed: one sequence per chip, and full recompute.
    """
    if name not in BASELINES:
        raise InputError("baseline", f"is {name}", f"it should be one of {', '.join(BASELINES)}")
    layers = job.model.num_layers
    shared: dict[str, object] = {"recompute": "selective" if "selective" in name else "full"}
    if name.startswith("DeepSpeed"):
        return _first_suitable([{"zero_stage": 3}], shared, job, cluster)
    tensor = [t for t in reversed(divisors(cluster.chips)) if t <= NODE]
    tries: list[dict[str, object]] = []
    for t in tensor:
        along = {"tensor_parallel": t, "sequence_parallel": "selective" in name and t > 1}
        stages = max(p for p in divisors(cluster.chips // t) if p <= layers)
        tries.append({**along, "pipeline_parallel": stages})
    return _first_suitable(tries, shared, job, cluster)


def _first_suitable(tries: list[dict[str, object]], shared: dict[str, object], job: Job, cluster: Cluster) -> Plan:
    """The first of these that the model's heads and layers allow."""
    refusals: list[InputError] = []
    for fields in tries:
        try:
            plan = resolve_plan(
                PlanSpec.model_validate({**fields, **shared}),
                chips=cluster.chips,
                global_batch=job.global_batch,
                num_layers=job.model.num_layers,
            )
            check_runs(plan, job, cluster)
        except InputError as refusal:
            refusals.append(refusal)
        else:
            return plan
    raise refusals[-1]
