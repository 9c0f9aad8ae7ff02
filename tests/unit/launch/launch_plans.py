"""Random plans for launch files: parts of plan files that are drawn until enough of them can be run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dovetail.errors import InputError
from dovetail.launch.launch_file import Reading
from dovetail.plans.overlaps import settled
from dovetail.plans.plan import Plan
from dovetail.plans.plan_file import Task, task_of

Document = dict[str, Any]
Random = np.random.Generator


def task(model: str, chips: int, plan: Document, *, framework: str, chip: str = "h100-sxm", **job: Any) -> Task:
    """A task of a model, chips and a plan; the job's other fields have values that suit most."""
    document = {
        "job": {"model": model, "seq_len": 4096, "global_batch": 256} | job,
        "cluster": {"chip": chip, "chips": chips, "framework": framework},
        "plan": plan,
    }
    return task_of(document, "plan.yaml")


def as_run(task: Task) -> Plan:
    """The plan with all that it leaves to the framework."""
    return settled(task.plan, task.framework, task.job)


def random_tasks(framework: str, menu: Document, seed: int) -> Iterator[Task]:
    """Tasks without end, every field drawn by itself; those that cannot be run are passed over."""
    rng = np.random.default_rng(seed)
    while True:
        model = _one(rng, menu["model"])
        chips = int(_one(rng, [1, 2, 4, 8, 16, 24, 32, 48, 64, 128]))
        job = {
            "seq_len": _one(rng, [1024, 2048, 4096, 8192]),
            "global_batch": _one(rng, [16, 32, 48, 64, 128, 192, 256]),
            "precision": _one(rng, menu["precision"]),
        }
        try:
            yield task(model, chips, _plan(rng, menu), framework=framework, **job)
        except InputError:
            continue


def _plan(rng: Random, menu: Document) -> Document:
    stages = _one(rng, menu.get("pipeline_parallel", [1]))
    plan: Document = {
        "tensor_parallel": _one(rng, [1, 1, 2, 4, 8]),
        "pipeline_parallel": stages,
        "context_parallel": _one(rng, menu.get("context_parallel", [1])),
        "expert_parallel": _one(rng, [1, 1, 2, 4, 8, 16]),
        "zero_stage": _one(rng, [0, 1, 2, 3]),
        "micro_batch": _one(rng, [1, 2, 4]),
        "recompute": _one(rng, menu["recompute"]),
    }
    if plan["context_parallel"] > 1:
        plan["context_kind"] = menu.get("context_kind", "all_gather")
    if plan["tensor_parallel"] > 1:
        plan["sequence_parallel"] = bool(rng.random() < menu.get("sequence_parallel", 0.5))
    if rng.random() < 0.5:
        plan["expert_tensor_parallel"] = 1
    if plan["zero_stage"] and rng.random() < menu.get("zero_group", 0.4):
        plan["zero_group"] = _one(rng, [1, 2, 4, 8, 16])
    if stages > 1:
        plan["pipeline_schedule"] = _one(rng, ["gpipe", "1f1b", "interleaved"])
        chunks = _one(rng, [2, 3, 4]) if plan["pipeline_schedule"] == "interleaved" else 1
        plan["virtual_stages"] = chunks
        if rng.random() < 0.5:
            plan["layers_per_stage"] = _cut(rng, stages * chunks, _one(rng, menu["num_layers"]))
    return plan


def _cut(rng: Random, parts: int, layers: int) -> list[int]:
    """Layers cut anywhere, with a layer or more in each part."""
    if parts > layers:
        return [layers]
    ends = sorted(rng.choice(np.arange(1, layers), parts - 1, replace=False).tolist())
    return [high - low for low, high in zip([0, *ends], [*ends, layers], strict=True)]


def _one(rng: Random, values: list[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def completed(reading: Reading, original: Task, missing: set[str]) -> Task:
    """The task of a reading, with what its format lacks from the original; nothing else may be missing."""
    job = {
        "model": original.job.model.name,
        "seq_len": original.job.seq_len,
        "global_batch": original.job.global_batch,
        "precision": original.job.precision,
    }
    cluster = {"chips": original.cluster.chips}
    assert set(job) - set(reading.job) | set(cluster) - set(reading.cluster) == missing
    document = {
        "job": job | dict(reading.job),
        "cluster": cluster | dict(reading.cluster) | {"chip": "h100-sxm", "framework": reading.framework},
        "plan": dict(reading.plan),
    }
    return task_of(document, "import.yaml")
