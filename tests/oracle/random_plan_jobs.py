"""Random small jobs with spaces of plans so narrow that every plan can be tried; most are short of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from math import prod
from typing import Any, TypeVar, get_args

import numpy as np
from plan_brute_force import every_plan

from dovetail import frameworks, hardware, models
from dovetail.documents import validate
from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job, Model
from dovetail.models.adapters import Adapters
from dovetail.models.job import Precision
from dovetail.plans.declaration import FieldScope
from dovetail.plans.plan import Plan
from dovetail.plans.runs import check_job
from dovetail.plans.space import Partition, Space, listed
from dovetail.step.evaluate import evaluate

Document = dict[str, Any]
Random = np.random.Generator
ItemT = TypeVar("ItemT")

CHIPS = ("h100-sxm", "a100-80gb", "a100-40gb", "h200-sxm", "b200", "gb200", "mi300x", "tpu-v5p", "trainium2")
COUNTS = (1, 2, 3, 4, 6, 8, 8, 12, 16, 16, 24, 24, 32, 48, 64, 64)
#: Those that run most kinds of plans come more often.
FRAMEWORKS = (
    *("megatron", "megatron", "megatron", "ideal", "ideal", "ideal"),
    *("megatron-2022", "deepspeed", "torchtitan", "fsdp", "maxtext"),
)
#: Launch formats that train models of their own alone.
OWN_MODELS = {
    "torchtitan": ("qwen3-0.6b", "llama-3.1-8b", "deepseek-v2-lite"),
    "maxtext": ("qwen3-0.6b", "llama-3.1-8b", "mixtral-8x7b"),
}
#: Chips that multiply in eight bits.
NARROW = ("h100-sxm", "h200-sxm", "b200", "gb200", "mi300x")

#: Random models have no more; of deeper ones not every cut is tried.
MOST_LAYERS = 10

#: Every combination is asked whether it suits the job, so there may not be many more of them than plans.
COMBINATIONS_PER_PLAN = 1000
SAMPLED_PLANS = 8
TRIES = 10


@dataclass(frozen=True, slots=True)
class PlanJob:
    """A question to the search."""

    job: Job
    cluster: Cluster
    framework: Framework
    space: Space


def random_plan_job(seed: int, most_plans: int) -> PlanJob:
    """A job whose space holds between one and so many plans, each cut counted."""
    rng = np.random.default_rng(seed)
    # as many small spaces as large ones: in small ones every rule of the space stands out
    most = int(np.exp(rng.uniform(np.log(most_plans / 6), np.log(most_plans))))
    while True:
        framework = _framework(rng, FRAMEWORKS[seed % len(FRAMEWORKS)])
        cluster = hardware.cluster(_one(rng, CHIPS), chips=_one(rng, COUNTS))
        job = _job(rng, framework, cluster)
        framework = _trained_by(job, framework)
        offered = _offered(rng, job, cluster, framework)
        # fields narrowed without regard to each other often leave nothing
        for _ in range(TRIES):
            space, plans = _narrowed(rng, offered, job, cluster, framework, most)
            if plans:
                return PlanJob(job, _with_less_memory(rng, plans, job, cluster, framework), framework, space)


def with_said(asked: PlanJob, seed: int) -> PlanJob:
    """The question, with one value of some overlaps and options that all plans have to say."""
    rng = np.random.default_rng([seed, 1])
    scope = FieldScope(asked.job, asked.cluster, asked.framework)
    offered = {name: each.about.fixed_to(scope) for name, each in listed().items() if each.about.fixed_to is not None}
    named = [name for name, values in offered.items() if values and name != "offload"]
    said = {name: (_one(rng, offered[name]),) for name in _some(rng, named, 3)}
    return replace(asked, space=replace(asked.space, **said))


def with_adapters(asked: PlanJob, seed: int) -> PlanJob:
    """The question for LoRA or QLoRA of the same model, on chips that are short of memory for it."""
    rng = np.random.default_rng([seed, 2])
    targets = "all" if _chance(rng, 0.5) else ("q", "v")
    adapters = Adapters(rank=_one(rng, (4, 16, 256)), targets=targets, base=_one(rng, ("bf16", "nf4")))
    job, cluster, framework = replace(asked.job, precision="bf16", adapters=adapters), asked.cluster, asked.framework
    chip = hardware.chip(cluster.chip.name)
    cluster = replace(cluster, chip=chip)
    plans = list(every_plan(job, cluster, framework, asked.space))
    return PlanJob(job, _with_less_memory(rng, plans, job, cluster, framework), framework, asked.space)


def _one(rng: Random, values: Sequence[ItemT]) -> ItemT:
    return values[int(rng.integers(len(values)))]


def _some(rng: Random, values: Sequence[ItemT], most: int) -> tuple[ItemT, ...]:
    """One to `most` of the values, in any order: a space is a set."""
    number = int(rng.integers(1, most + 1))
    return tuple(values[int(i)] for i in rng.permutation(len(values))[:number])


def _chance(rng: Random, share: float) -> bool:
    return bool(rng.random() < share)


def _framework(rng: Random, name: str) -> Framework:
    framework = frameworks.load(name)
    if framework.uneven_stages == "any" and _chance(rng, 0.2):
        # no framework of the catalogue is like this, though those of a user may be
        return replace(framework, uneven_stages="ends")
    return framework


def _trained_by(job: Job, framework: Framework) -> Framework:
    """The framework; where it has no launch for the job, with what it runs in general."""
    try:
        check_job(job, framework)
    except InputError:
        return replace(framework, launch=None)
    return framework


# Jobs.


def _job(rng: Random, framework: Framework, cluster: Cluster) -> Job:
    states = dict(framework.states)
    tried: tuple[Precision, ...] = ("fp16", "fp32", "fp8") if cluster.chip.name in NARROW else ("fp16", "fp32")
    model = validate(Model, _model(rng), "random")
    if framework.launch in OWN_MODELS and _chance(rng, 0.6):
        model = models.load(_one(rng, OWN_MODELS[framework.launch]))
        return Job(model, seq_len=_one(rng, (512, 1024, 4096)), global_batch=_one(rng, (8, 16, 24, 32)))
    return Job(
        model,
        seq_len=_one(rng, (512, 1024, 1536, 2048, 4096)),
        global_batch=_one(rng, (4, 6, 8, 12, 16, 24, 32, 48, 64)),
        precision="bf16" if _chance(rng, 0.8) else _one(rng, [name for name in tried if name in states]),
        optimizer="adamw" if _chance(rng, 0.8) else _one(rng, ("sgd", "momentum", "lion")),
        fused_attention=_chance(rng, 0.8),
    )


def _model(rng: Random) -> Document:
    layers = int(rng.integers(2, MOST_LAYERS + 1))
    heads, head_dim = _one(rng, (4, 6, 8, 12, 16, 32)), _one(rng, (64, 128))
    kinds = {"first": _block(rng, heads, head_dim)}
    order: list[Document] = [{"blocks": ["first"], "repeat": layers}]
    if _chance(rng, 0.4):
        kinds["second"] = _block(rng, heads, head_dim)
        ahead = int(rng.integers(1, layers))
        order = [{"blocks": ["first"], "repeat": ahead}, {"blocks": ["second"], "repeat": layers - ahead}]
        if layers % 2 == 0 and _chance(rng, 0.4):
            order = [{"blocks": ["first", "second"], "repeat": layers // 2}]
    model: Document = {
        "name": "random", "hidden": heads * head_dim, "vocab": _one(rng, (8000, 32000, 128256, 256000)),
        "blocks": kinds, "layers": order, "head": {"tied": _chance(rng, 0.3)},
    }  # fmt: skip
    if _chance(rng, 0.1):
        model["multi_token_prediction"] = {"modules": 1, "block": "first"}
    return model


def _block(rng: Random, heads: int, head_dim: int) -> Document:
    kv_heads = _one(rng, [n for n in range(1, heads + 1) if heads % n == 0])
    mixer = {"kind": "attention", "heads": heads, "head_dim": head_dim, "kv_heads": kv_heads}
    if _chance(rng, 0.4):
        mixer["kv_heads"] = heads
    return {"mixer": mixer, "feed_forward": _feed_forward(rng, heads * head_dim)}


def _feed_forward(rng: Random, hidden: int) -> Document:
    if _chance(rng, 0.5):
        return {"kind": "dense", "size": _one(rng, (2, 3, 4)) * hidden}
    experts = _one(rng, (4, 6, 8, 16))
    mixture: Document = {
        "kind": "mixture", "experts": experts, "top_k": _one(rng, (1, 2, 4)), "size": _one(rng, (1, 2)) * hidden // 2,
    }  # fmt: skip
    if _chance(rng, 0.4):
        mixture["shared_size"] = hidden
    return mixture


# Spaces.


def _narrowed(
    rng: Random, space: Space, job: Job, cluster: Cluster, framework: Framework, most: int
) -> tuple[Space, list[Plan]]:
    """Fields are narrowed one by one until few enough plans are left, or none."""
    # the more cuts a plan has, the fewer plans there is room for: some spaces are for the one, some for the other
    keeps_cuts = _chance(rng, 0.7)
    while True:
        whole = space.resolve(job, cluster, framework)
        if _combinations(whole) <= COMBINATIONS_PER_PLAN * most:
            plans = list(islice(every_plan(job, cluster, framework, space), most + 1))
            if len(plans) <= most:
                return space, plans
        space = _narrower(rng, whole, space, keeps_cuts=keeps_cuts)


def _offered(rng: Random, job: Job, cluster: Cluster, framework: Framework) -> Space:
    """The whole space, with a menu where blocks would be free to choose for themselves."""
    space, whole = Space(), Space().resolve(job, cluster, framework)
    if "operators" in framework.recompute:
        space = replace(space, recompute=("none", "full"))
    kinds: tuple[str, ...] = get_args(Partition)
    if job.model.num_layers > MOST_LAYERS and whole.partition == "any":
        # too many cuts to try
        space = replace(space, partition=_one(rng, kinds[:2]))
    elif _chance(rng, 0.15):
        space = replace(space, partition=_one(rng, kinds[: kinds.index(whole.partition) + 1]))
    if framework.pipeline_schedules and _chance(rng, 0.7):
        space = _with_pipelines(rng, space, whole)
    return space


def _with_pipelines(rng: Random, space: Space, whole: Space) -> Space:
    """Pipelines alone, often of one schedule: they are few among all plans, and hardest to search."""
    stages = tuple(p for p in whole.pipeline_parallel or () if p > 1)
    space = replace(space, pipeline_parallel=stages or None)
    if _chance(rng, 0.5):
        return space
    schedule = _one(rng, whole.pipeline_schedule or ())
    chunks = tuple(v for v in whole.virtual_stages or () if v > 1) if schedule == "interleaved" else ()
    return replace(space, pipeline_schedule=(schedule,), virtual_stages=chunks or None)


def _combinations(space: Space) -> int:
    values = (getattr(space, field.name) for field in fields(space))
    return prod(len(v) for v in values if isinstance(v, tuple))


def _narrower(rng: Random, whole: Space, space: Space, *, keeps_cuts: bool) -> Space:
    """The space with fewer values for one field."""
    wide = [f.name for f in fields(whole) if isinstance(v := getattr(whole, f.name), tuple) and len(v) > 1]
    if whole.partition != "even" and (not wide or (not keeps_cuts and _chance(rng, 0.1))):
        return replace(space, partition="ends" if whole.partition == "any" else "even")
    name = _one(rng, wide)
    values = getattr(whole, name)
    return replace(space, **{name: _some(rng, values, len(values) - 1)})


# Memory.


def _with_less_memory(rng: Random, plans: list[Plan], job: Job, cluster: Cluster, framework: Framework) -> Cluster:
    """Chips whose memory is near what some plan needs, or less than all of a sample need; some are left as they are."""
    way = rng.random()
    if way < 0.15:
        return cluster
    sample = _some(rng, plans, SAMPLED_PLANS)
    peaks = [evaluate(plan, job, cluster, framework, energy=False).peak_bytes for plan in sample]
    if way < 0.3:
        size = min(peaks) * rng.uniform(0.3, 0.95)
    else:
        # not to the byte: whether the last one is counted is no matter of the search
        size = float(np.quantile(peaks, rng.random())) * rng.uniform(1.001, 1.1)
    return replace(cluster, chip=replace(cluster.chip, hbm_bytes=size))
