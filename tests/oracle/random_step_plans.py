"""Random plans of real models on real clusters, each one that its framework runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np

from dovetail import frameworks, hardware, models
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job, Model
from dovetail.plans.plan import PlanSpec, resolve_plan
from dovetail.plans.plan_file import Task
from dovetail.plans.runs import check_runs

ItemT = TypeVar("ItemT")

MODELS = ("gpt3-13b", "llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "qwen3-30b-a3b", "bert-large")
CLUSTERS = ("hgx-h100", "dgx-a100-80gb", "gb200-nvl72", "tpu-v5p-pod")
FRAMEWORKS = ("megatron", "megatron", "ideal", "ideal", "fsdp", "deepspeed", "torchtitan", "megatron-2022", "maxtext")


Schedule = Literal["gpipe", "1f1b", "interleaved", "zb_h1", "dualpipe"]
SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "zb_h1", "dualpipe")


@lru_cache(maxsize=64)
def _model(name: str) -> Model:
    return models.load(name)


@lru_cache(maxsize=64)
def _cluster(name: str, chips: int) -> Cluster:
    return hardware.cluster(name, chips=chips)


@lru_cache(maxsize=64)
def _framework(name: str) -> Framework:
    # any model: steps are simulated, not launched
    return replace(frameworks.load(name), launch=None)


def random_tasks(seed: int, count: int) -> Iterator[Task]:
    """So many plans; whether they fit in memory does not matter."""
    rng = np.random.default_rng(seed)
    while count:
        task = _attempt(rng)
        if task is not None:
            count -= 1
            yield task


def _attempt(rng: np.random.Generator) -> Task | None:
    def one(values: Sequence[ItemT]) -> ItemT:
        return values[int(rng.integers(len(values)))]

    name, chips = one(MODELS), one((8, 16, 32, 64, 128, 256))
    cluster, framework = _cluster(one(CLUSTERS), chips), _framework(one(FRAMEWORKS))
    seq_len = {"bert-large": 512, "gpt3-13b": 2048}.get(name) or one((2048, 4096, 8192))
    job = Job(_model(name), seq_len=seq_len, global_batch=chips * one((1, 2, 4)))
    tensor, stages = one((1, 1, 2, 4, 8)), one((1, 1, 2, 4, 8))
    schedules: list[Schedule] = [schedule for schedule in SCHEDULES if schedule in framework.pipeline_schedules]
    schedule = one(schedules) if stages > 1 and schedules else None
    spec = PlanSpec(
        tensor_parallel=tensor,
        pipeline_parallel=stages,
        virtual_stages=one((2, 4)) if schedule == "interleaved" else 1,
        pipeline_schedule=schedule,
        context_parallel=one((1, 1, 1, 2, 4)),
        context_kind=one(("all_gather", "ring", "ulysses")),
        expert_parallel=one((1, 2, 4, 8)),
        expert_tensor_parallel=one((None, 1)),
        zero_stage=one(tuple(framework.zero_stages if stages == 1 else framework.zero_stages_with_pipeline) or (0,)),
        sequence_parallel=tensor > 1 and bool(rng.integers(2)),
        micro_batch=one((1, 1, 2)),
        recompute=one(("none", "selective", "full")),
        axis_order=one(("tp-cp-dp-pp", "tp-cp-dp-pp", "tp-cp-pp-dp")),
    )
    try:
        plan = resolve_plan(spec, chips=chips, global_batch=job.global_batch, num_layers=job.model.num_layers)
        check_runs(plan, job, cluster, framework)
    except InputError:
        return None
    return Task(job, cluster, framework, plan)
