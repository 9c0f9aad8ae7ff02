"""Figures of a tiny job by every part of the program, with each formula of the step as it is and changed.

Run without compilation, so that a function that is exchanged is exchanged for all its callers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from dovetail import frameworks, hardware
from dovetail.bounds.degree_bounds import DegreeBounds
from dovetail.bounds.end_of_step_bounds import EndOfStepBounds
from dovetail.cost.calibration import calibration
from dovetail.frameworks import Framework
from dovetail.mapping.tiles.skeletons import TileSkeleton
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tiles.work_bounds import SkeletonBounds
from dovetail.partition.layer_chain import stage_bytes
from dovetail.partition.partition_layers import partition_layers
from dovetail.partition.partition_plan import ChainBuilder
from dovetail.plans.plan_file import Task, task_of
from dovetail.plans.space import Space
from dovetail.simulation import simulate
from dovetail.step.evaluate import evaluate, profiled_job, step_from
from dovetail.step.facts import plan_facts
from dovetail.step.formulas import FORMULAS
from random_plans import random_plans_of
from valid_plans import Document, model, with_changes

#: A network so slow that what ends a step cannot be hidden, and a chip so small that memory matters.
TIERS = [
    {"name": "inside", "size": 2, "topology": "switch", "bytes_per_s": "5 GB/s", "latency_s": "1 us"},
    {"name": "outside", "size": 8, "topology": "switch", "bytes_per_s": "1 GB/s", "latency_s": "5 us"},
]
TINY: Document = {
    "job": {"model": model(6) | {"head": {"tied": True}}, "seq_len": 256, "global_batch": 16},
    "cluster": {"chip": "h100-sxm", "chips": 8, "tiers": TIERS, "framework": "ideal"},
    "plan": {"pipeline_parallel": 2, "data_parallel": 4, "zero_stage": 1},
}
PLANS: tuple[Document, ...] = (
    {},
    {"pipeline_schedule": "gpipe"},
    {"pipeline_parallel": 2, "virtual_stages": 2, "layers_per_stage": [1, 2, 2, 1]},
    {"pipeline_parallel": 2, "tensor_parallel": 2, "data_parallel": 2, "zero_stage": 3},
    {"pipeline_parallel": 1, "data_parallel": 8, "zero_stage": 2},
)


Figures = dict[str, list[float]]


def with_overheads(framework: Framework, step_copy: float) -> Framework:
    """The framework with an allocator that rounds up, micro-batches that wait, and so many bytes in the optimizer."""
    states = tuple((precision, replace(state, step_copy=step_copy)) for precision, state in framework.states)
    overhead = replace(framework.allocator_overhead, value=0.05)
    context = replace(framework.context_bytes, value=0.0)
    between = replace(framework.microbatch_s, value=1e-4)
    framework = replace(framework, allocator_overhead=overhead, context_bytes=context, microbatch_s=between)
    return replace(framework, states=states)


def tasks() -> list[Task]:
    """Plans whose memory is fullest in the backward, then plans whose memory is fullest in the optimizer's step."""
    plain = [task_of(with_changes(TINY, plan=plan), "tiny") for plan in PLANS]
    return [replace(task, framework=with_overheads(task.framework, copy)) for copy in (0.0, 100.0) for task in plain]


def numbers(*values: Any) -> list[float]:
    """All numbers of arrays, mappings, sequences and dataclasses, in order."""
    flat: list[float] = []
    for value in values:
        if isinstance(value, dict):
            flat += numbers(*value.values())
        elif isinstance(value, list | tuple):
            flat += numbers(*value)
        elif is_dataclass(value):
            flat += numbers(*(getattr(value, field.name) for field in fields(value)))
        elif isinstance(value, int | float | np.ndarray | np.generic):
            flat += [float(number) for number in np.ravel(value)]
    return flat


def of_evaluate() -> list[float]:
    results = [evaluate(task.plan, task.job, task.cluster, task.framework) for task in tasks()]
    return numbers([(r.step_time_s, r.memory_by_stage) for r in results])


def of_search() -> list[float]:
    flat: list[float] = []
    for task in (tasks()[0], tasks()[-1]):
        evaluated = random_plans_of(task.job, task.cluster, task.framework, 20, seed=1).evaluated()
        flat += numbers(evaluated.pipeline_s, evaluated.rest_s, evaluated.peak_bytes)
    return flat


def of_bounds() -> list[float]:
    task = tasks()[0]
    plans = random_plans_of(replace(task.job, seq_len=4096), task.cluster, task.framework, 25, seed=2)
    tables, space = plans.batch.tables, Space().resolve(plans.job, task.cluster, task.framework)
    degrees = DegreeBounds(tables.setting, space, tables.degrees, tables)
    # ZeRO 3 leaves nothing but the optimizer for the end of step
    whole_weights = Space(zero_stage=(0, 1)).resolve(plans.job, task.cluster, task.framework)
    ends = EndOfStepBounds(tables, whole_weights, plans.batch.skeletons)
    degrees.refine()
    flat = numbers(degrees.seconds, degrees.state_bytes(plans.batch.skeletons), ends.seconds(0.001, np.array([1e-9])))
    for memory in np.geomspace(0.4e9, 8e9, 20).tolist():
        chip = replace(task.cluster.chip, hbm_bytes=memory)
        tables.setting = replace(tables.setting, cluster=replace(task.cluster, chip=chip))
        flat += numbers(plans.batch.bound(plans.candidates, None, float("inf")))
    return flat


def of_partition() -> list[float]:
    flat: list[float] = []
    for task in tasks():
        plan, job, cluster = task.plan, task.job, task.cluster
        facts = plan_facts(plan, task.framework, job)
        efficiencies = calibration(cluster.chip, job.precision).efficiencies
        profiled, limit = profiled_job(plan, job, cluster, facts, efficiencies), cluster.chip.usable_bytes
        chain = ChainBuilder(plan, profiled, limit, by_block=False).chain(relaxed=False)
        solution = partition_layers(chain)
        assert solution.placement is not None
        chunks, stages = solution.placement.chunks, plan.pipeline_parallel
        memory = [stage_bytes(chain, i, chunks[i::stages], solution.placement.policies) for i in range(stages)]
        flat += numbers(chain.classes, chain.device_bytes, chain.transfer_s, solution.seconds, memory)
    return flat


def of_mapping() -> list[float]:
    job, framework = tasks()[0].job, frameworks.load("wafer")
    cluster = replace(hardware.wafer("watos-like"), rows=2, cols=2).cluster()
    # links so slow that messages are not all hidden
    slow = tuple(replace(tier, bytes_per_s=tier.bytes_per_s / 50_000) for tier in cluster.tiers)
    layers = TileLayers(job, cluster, framework, TileSkeleton(1, 2, 2, 4), zero_stage=1)
    document = with_changes(TINY, plan={"data_parallel": 2})
    plan = task_of(with_changes(document, cluster={"chips": 4, "tiers": None}), "tiny").plan
    facts = plan_facts(plan, framework, job)
    known = calibration(cluster.chip, job.precision).efficiencies
    profiled = profiled_job(plan, job, replace(cluster, tiers=slow), facts, known)
    return numbers(
        layers.capacity_bytes,
        layers.in_flight,
        SkeletonBounds(job, cluster, framework, {2}).pipeline(layers.skeleton, 1),
        step_from(plan, profiled).seconds,
    )


def of_simulation() -> list[float]:
    steps = [simulate(task.plan, task.job, task.cluster, task.framework) for task in tasks()]
    return numbers([(step.step_time_s, [each.peak_bytes for each in step.memory]) for step in steps])


CONSUMERS: dict[str, Callable[[], list[float]]] = {
    "evaluate": of_evaluate,
    "search": of_search,
    "partition": of_partition,
    "bounds": of_bounds,
    "mapping": of_mapping,
    "simulation": of_simulation,
}


def changed(value: Any) -> Any:
    """A count one larger; any other result a tenth larger, in all its parts."""
    if isinstance(value, bool | str | type(None)):
        return value
    if isinstance(value, int | np.integer):
        return value + 1
    if isinstance(value, tuple | list):
        parts = [changed(part) for part in value]
        make: Any = getattr(type(value), "_make", type(value))
        return make(parts)
    if isinstance(value, dict):
        return {name: changed(part) for name, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: changed(getattr(value, field.name)) for field in fields(value)})
    return cast("Any", value) * 1.1


@contextmanager
def exchanged(where: str) -> Iterator[None]:
    """The formula gives changed results to every caller, in whatever module."""
    module, _, name = where.partition(":")
    original = getattr(import_module(module), name)

    def instead(*args: Any, **options: Any) -> Any:
        return changed(original(*args, **options))

    holders = [
        (holder, key)
        for holder_name, holder in list(sys.modules.items())
        if holder_name.startswith("dovetail")
        for key, value in list(vars(holder).items())
        if value is original
    ]
    for holder, key in holders:
        setattr(holder, key, instead)
    try:
        yield
    finally:
        for holder, key in holders:
            setattr(holder, key, original)


def main() -> None:
    """Prints, for every formula, which consumers' figures move."""
    figures = {name: consumer() for name, consumer in CONSUMERS.items()}
    moved: dict[str, list[str]] = {}
    for formula in FORMULAS:
        with exchanged(formula.where):
            moved[formula.where] = [name for name in CONSUMERS if CONSUMERS[name]() != figures[name]]
    unchanged = [name for name in CONSUMERS if CONSUMERS[name]() != figures[name]]
    sys.stdout.write(json.dumps({"moved": moved, "differ without a change": unchanged}))


if __name__ == "__main__":
    main()
