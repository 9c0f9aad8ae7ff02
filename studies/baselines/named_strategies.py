"""Published strategies in our cost model: tuned over all their degrees, and as published.

Megatron: Narayanan et al. 2021 (full recompute), Korthikanti et al. 2022 (selective recompute, sequence parallelism).
DeepSpeed: ZeRO-3 over all dies (Rajbhandari et al. 2020). AccPar (Song et al. 2020) has its own search, `accpar`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import Any

from baselines.stored import best_of, fitting, with_store
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.plan import Plan, PlanSpec, resolve_plan
from dovetail.plans.runs import check_runs
from dovetail.plans.space import Space, divisors
from dovetail.plans.wafer_tiles import die_tiles
from dovetail.search.plan import plan as named_plan
from dovetail.step.evaluate import Evaluation

#: Chips per node of the published machines: no tensor-parallel group was larger.
NODE = 8

_MEGATRON = Space(
    context_parallel=(1,), zero_stage=(0, 1), recompute_share=(1.0,), pipeline_schedule=("1f1b", "interleaved")
)

#: What they recompute, in all blocks alike.
_ALIKE = ("none", "selective", "full")

#: The plans each of them can run.
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


def tuned(
    name: str, job: Job, cluster: Cluster, framework: Framework, cpu_s: float
) -> tuple[Evaluation | None, float | None]:
    """The fastest plan of a strategy that fits, and a lower bound of all of them, infinite where none fits.

    The search of named strategies knows no store: on wafers that have one, all degrees are tried with the largest
    micro-batch that fits, without interleaving; that nothing fits is then all that is proven.
    """
    if cluster.store is None:
        answer = named_plan(
            job, cluster, replace(framework, recompute=_ALIKE), space=BASELINES[name], time_limit_s=cpu_s
        )
        proven = answer.certificate
        return answer.evaluation, float("inf") if proven.status == "infeasible" else proven.lower_bound_s
    end = time.process_time() + cpu_s
    plans: list[Evaluation] = []
    for fields in _degrees(name, job, cluster, framework):
        if time.process_time() >= end:
            break
        inside = fields["tensor_parallel"] * fields["pipeline_parallel"]
        replicas = cluster.chips // inside

        def of_batch(batch: int, fields: dict[str, Any] = fields) -> list[Evaluation]:
            return with_store(_resolved({**fields, "micro_batch": batch}, job, cluster), job, cluster, framework)

        plans += fitting(divisors(job.global_batch // replicas) if job.global_batch % replicas == 0 else (), of_batch)
    # micro-batches of one were tried, too
    return best_of(plans), None if plans or time.process_time() >= end else float("inf")


def _degrees(name: str, job: Job, cluster: Cluster, framework: Framework) -> Iterator[dict[str, Any]]:
    """Fields of a strategy's plans without the micro-batch, those first that leave least of a layer on a chip."""
    space = BASELINES[name].resolve(job, cluster, replace(framework, recompute=_ALIKE))
    degrees = product(space.tensor_parallel, space.pipeline_parallel, space.expert_parallel)
    for tensor, stages, experts in sorted(degrees, reverse=True):
        if cluster.chips % (tensor * stages) == 0 and stages <= job.model.num_layers:
            for recompute in BASELINES[name].recompute:
                yield {
                    "tensor_parallel": tensor,
                    "pipeline_parallel": stages,
                    "expert_parallel": experts,
                    "sequence_parallel": tensor > 1,
                    "recompute": recompute,
                    "zero_stage": max(BASELINES[name].zero_stage),
                }


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
            return _resolved({**fields, **shared}, job, cluster)
        except InputError as refusal:
            refusals.append(refusal)
    raise refusals[-1]


def _resolved(fields: Mapping[str, Any], job: Job, cluster: Cluster) -> Plan:
    """The plan that fields mean; refused where heads and layers do not allow it."""
    spec = PlanSpec.model_validate(dict(fields))
    sizes = {"chips": cluster.chips, "global_batch": job.global_batch, "num_layers": job.model.num_layers}
    plan = resolve_plan(spec, **sizes)
    check_runs(plan, job, cluster)
    # groups have to nest in the grid, too
    die_tiles(plan, arrange(plan, job.graph(), cluster), cluster)
    return plan
