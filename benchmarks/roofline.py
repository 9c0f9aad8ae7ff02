"""How far our hottest compiled loops are from what this processor can do at all, beside its measured rates.

`python benchmarks/roofline.py`: each kernel runs on the arguments of a real question, the largest call of it. What it
must do is counted (`operation_counts.py`, or the stated formula where loops are regular) and divided by rates measured
in the same run (`machine_rates.py`): operations per second (vector or single), accesses of the nearest cache per
second, and bytes of all its arrays once at the bandwidth of the cache that holds them. The largest of the three is
what it takes at least; printed is how many times as long it takes. CPU time, medians.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from cpu_time import cpu_seconds
from machine_rates import Rates, measured
from placement import transformer

import dovetail as dt
from dovetail import frameworks, hardware, models
from dovetail.bounds import design_bound
from dovetail.bounds.partition_bound_kernels import BoundRows
from dovetail.hardware.design import design_of
from dovetail.mapping.elimination import cheapest
from dovetail.mapping.layouts.layer_problem import layer_problem
from dovetail.mapping.tiles.skeletons import TileSkeleton
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tiles.tile_layouts import searched_tiles
from dovetail.partition.chain_solver import solve_chain
from dovetail.plans.plan import PlanSpec, resolve_plan

#: Plans of a call that are counted, in runs of neighbours: uncompiled, each takes a millisecond. The call has more.
RUNS, NEIGHBOURS = 16, 16
COUNTER = Path(__file__).with_name("operation_counts.py")


@dataclass(frozen=True)
class Call:
    """A kernel, where it is looked up by who calls it, and the arguments of a real call."""

    name: str
    module: str
    function: str
    arguments: tuple[Any, ...]
    #: operations and accesses by formula, where loops are regular and run in vectors
    work: tuple[int, int] | None = None
    #: arguments that are counted in place of these, and how many times as much these ask for
    sample: tuple[Any, ...] | None = None
    times: float = 1.0

    @property
    def kernel(self) -> Callable[..., Any]:
        return getattr(importlib.import_module(self.module), self.function)


def arrays_of(value: object) -> Iterator[np.ndarray]:
    """All arrays of an argument."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from arrays_of(part)


def size_of(arguments: tuple[Any, ...]) -> int:
    """Bytes of all arrays."""
    return sum(array.nbytes for array in arrays_of(arguments))


@contextmanager
def recorded(place: str, *names: str) -> Iterator[dict[str, tuple[Any, ...]]]:
    """The arguments of the largest call of each function, as this module's callers find it."""
    module, found = importlib.import_module(place), dict[str, tuple[Any, ...]]()

    def recorder(name: str) -> Callable[..., Any]:
        kernel = getattr(module, name)

        def call(*arguments: Any) -> Any:
            if name not in found or size_of(arguments) > size_of(found[name]):
                found[name] = copy.deepcopy(arguments)
            return kernel(*arguments)

        return call

    with patch.multiple(module, **{name: recorder(name) for name in names}):
        yield found


def of_plans(name: str, module: str, function: str, arguments: tuple[Any, ...]) -> Call:
    """A call about plans, counted for some of them: neighbours in runs, since these share their pipelines."""
    plans, total = arguments[0], len(arguments[0].layer)
    starts = np.linspace(0, max(total - NEIGHBOURS, 0), RUNS).astype(np.int64)
    which = np.unique(np.minimum(starts[:, None] + np.arange(NEIGHBOURS), total - 1))
    chosen = type(plans)(*(column[which] for column in plans))

    def taken(each: Any) -> Any:
        if isinstance(each, BoundRows):
            return BoundRows(np.arange(len(which)), each.seconds[which], each.memory[which])
        return np.ascontiguousarray(each[which]) if isinstance(each, np.ndarray) and len(each) == total else each

    others = map(taken, arguments[1:])
    return Call(f"{name}, {total:,} plans", module, function, arguments, None, (chosen, *others), total / len(which))


def plan_by_plan(plans: Any, rows: Any, *others: Any) -> tuple[Any, ...]:
    """The arguments of bounds with a plan for each of them; of plans in runs the numbers stay right."""
    total = len(plans.layer)
    of_plans = (each[rows.plan] if isinstance(each, np.ndarray) and len(each) == total else each for each in others)
    return plans.take(rows.plan), rows._replace(plan=np.arange(len(rows.plan))), *of_plans


def search_calls() -> Iterator[Call]:
    """Plans of Llama 3.1 70B on 1,024 H100s: evaluated, bounded, and their pipelines walked."""
    job = models.Job(models.load("llama-3.1-70b"), seq_len=8192, global_batch=1024)
    cluster = hardware.cluster("h100-sxm", chips=1024)
    paths = "dovetail.pipeline.longest_path_kernels"
    with (
        recorded("dovetail.bounds.batch", "evaluate_plans", "least_seconds") as batches,
        recorded(paths, "longest_path", "one_f_one_b") as pipelines,
    ):
        dt.plan(job, cluster)
    steps, bounds = "dovetail.step.plan_kernels", "dovetail.bounds.partition_bound_kernels"
    yield of_plans("plan evaluation", steps, "evaluate_plans", batches["evaluate_plans"])
    yield of_plans("partition bound", bounds, "least_seconds", plan_by_plan(*batches["least_seconds"]))
    if "longest_path" in pipelines:
        stage, need, *_, duration, _ = walked = pipelines["longest_path"]
        n, second = duration.shape[1], int((need[:, 0] != need[:, 1]).sum())
        # a side is an addition and a maximum of 3 accesses and a store; then an addition, 2 accesses and 2 stores
        work = ((2 * (len(stage) + second) + len(stage)) * n, (4 * (len(stage) + second) + 4 * len(stage)) * n)
        yield Call(f"interleaved longest path, {n} plans", paths, "longest_path", walked, work)
    if "one_f_one_b" in pipelines:
        forward, *_, microbatches = walked = pipelines["one_f_one_b"]
        items = 2 * microbatches * forward.shape[0] * forward.shape[1]
        yield Call(f"1F1B longest path, {forward.shape[1]} plans", paths, "one_f_one_b", walked, (4 * items, 6 * items))


def other_calls() -> Iterator[Call]:
    """A chain placed, a step simulated, a block of operators mapped."""
    with recorded("dovetail.partition.chain_kernels", "best_of_width", "guessed_seconds") as found:
        solve_chain(transformer(64, 1000, 3))
    for name in found:
        yield Call(f"placement, {name.replace('_', ' ')}", "dovetail.partition.chain_kernels", name, found[name])
    whole, part = simulated(64), simulated(8)
    times = len(whole[0].seconds) / len(part[0].seconds)
    name = f"event loop, {len(whole[0].seconds):,} tasks"
    yield Call(name, "dovetail.simulation.event_kernels", "play", whole, None, part, times)
    yield from elimination_calls()


def simulated(sequences: int) -> tuple[Any, ...]:
    """The event loop's arguments for a step of GPT-3 1.3B with so many sequences, on 16 chips."""
    job = models.Job(models.load("gpt3-1.3b"), seq_len=2048, global_batch=sequences)
    spec = PlanSpec(tensor_parallel=2, pipeline_parallel=4, zero_stage=1, sequence_parallel=True)
    plan = resolve_plan(spec, chips=16, global_batch=sequences, num_layers=24)
    place = "dovetail.simulation.task_graph"
    if not hasattr(importlib.import_module(place), "play"):
        place = "dovetail.simulation.event_kernels"  # imported where it is used
    with recorded(place, "play") as found:
        dt.simulate(plan, job, hardware.cluster("hgx-h100", chips=16))
    return found["play"]


def elimination_calls() -> Iterator[Call]:
    """Sums and minima over the shardings of a block of GPT-3 on a tile of 4 × 4 dies."""
    wafer = hardware.wafer("watos-like").cluster()
    job = models.Job(models.load("gpt3-175b"), seq_len=2048, global_batch=336)
    layers = TileLayers(job, wafer, frameworks.load("wafer"), TileSkeleton(4, 4, 2, 1), zero_stage=1)
    layout = next(searched_tiles(layers, 4, 4))
    problem = layer_problem(layers.setting(layers.main_block, layout), layout).problem
    names = ("product", "product_across", "product_along", "sums")
    with recorded("dovetail.mapping.elimination.min_plus", *names) as found:
        cheapest(problem, (1.0, 0.0, 0.0))
    kernels = "dovetail.mapping.elimination.elimination_kernels"
    for name in found:
        arguments = found[name]
        if name == "sums":
            *_, sizes, along, _, _ = arguments
            entries = int(np.prod(sizes))
            work = ((along + 1) * entries, (along + 3) * entries)
        else:
            left, right = arguments[:2]
            entries = left.size * (right.shape[1] if name != "product_along" else right.shape[0])
            # an addition or two and a comparison; what is read, and the minimum that is read and written again
            work = {"product": (2, 3), "product_across": (3, 4), "product_along": (3, 3)}[name]
            work = (work[0] * entries, work[1] * entries)
        yield Call(f"elimination, {name.replace('_', ' ')}", kernels, name, arguments, work)


def design_call() -> Call:
    """The bound of 2¹⁶ designs like TPU v4, by numpy a chunk at a time."""
    job = models.Job(models.load("gpt3-175b"), seq_len=2048, global_batch=1536)
    cluster, draw = hardware.cluster("tpu-v4", chips=1024), np.random.default_rng(0)
    varied = {"tensor_cores": draw.integers(1, 4096, 1 << 16), "hbm_stacks": draw.integers(1, 16, 1 << 16)}
    designs = design_of(cluster.chip).varied({name: values.astype(np.float64) for name, values in varied.items()})
    with recorded("dovetail.bounds.design_bound", "_fill") as found:
        design_bound.DesignBound(job, cluster, (1,)).least_s(designs)
    bounds, _, terms, times = found["_fill"]
    steps, kinds = terms.shape[1] * len(bounds), len(times)
    # a product and a maximum of every demand, and the minimum: of 2, 3 and 3 arrays; and one array is filled
    work = ((2 * kinds + 1) * steps, (5 * kinds + 4) * steps)
    return Call("hardware bound of designs", "dovetail.bounds.design_bound", "_fill", found["_fill"], work)


def counts_of(calls: list[Call]) -> list[tuple[int, int]]:
    """Operations and accesses, by formula or by an uncompiled run in a process of its own."""
    asked = [call for call in calls if call.work is None]
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        file.write(pickle.dumps([(call.module, call.function, call.sample or call.arguments) for call in asked]))
        file.flush()
        environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
        done = subprocess.run(
            [sys.executable, str(COUNTER), file.name], env=environment, check=True, capture_output=True, text=True
        )
    counted = map(json.loads, done.stdout.splitlines())
    found: list[tuple[int, int]] = []
    for call in calls:
        operations, accesses = call.work or (round(call.times * count) for count in next(counted))
        found.append((operations, accesses))
    return found


def seconds_of(call: Call) -> float:
    """CPU seconds of a call; what copying its arguments takes, which it writes to, is taken off."""
    kernel, arguments = call.kernel, call.arguments
    if call.function not in ("play", "sums", "_fill"):
        return cpu_seconds(lambda: kernel(*arguments))
    copied = cpu_seconds(lambda: copy.deepcopy(arguments))
    return cpu_seconds(lambda: kernel(*copy.deepcopy(arguments))) - copied


def print_rates(rates: Rates) -> None:
    """The machine."""
    bandwidth = ", ".join(f"{name} {1e-9 * value:,.0f}" for name, value in rates.bytes_per_s.items())
    print(f"{1e-9 * rates.vector_per_s:.1f} G operations/s in vectors, {1e-9 * rates.scalar_per_s:.1f} G single,")
    print(f"{1e-9 * rates.loads_per_s:.1f} G single loads/s; triad in GB/s: {bandwidth};")
    print(f"an addition and a maximum in a chain {1e9 * rates.dependent_s:.1f} ns,", end=" ")
    print(f"a branch that cannot be foreseen {1e9 * rates.branch_s:.1f} ns\n")


def main() -> None:
    """Prints the machine, then a line per kernel."""
    rates = measured()
    print_rates(rates)
    calls = [*search_calls(), *other_calls(), design_call()]
    print("| kernel | operations | accesses | arrays | time | at least | by | times |")
    print("|---|---|---|---|---|---|---|---|")
    for call, (operations, accesses) in zip(calls, counts_of(calls), strict=True):
        touched = min(size_of(call.arguments), 8 * accesses)
        level = rates.level(touched)
        least = {
            "operations": operations / (rates.vector_per_s if call.work else rates.scalar_per_s),
            "accesses": 8 * accesses / rates.bytes_per_s["L1"] if call.work else accesses / rates.loads_per_s,
            f"{level} bandwidth": touched / rates.bytes_per_s[level],
        }
        limit = max(least, key=lambda name: least[name])
        seconds = seconds_of(call)
        print(
            f"| {call.name} | {operations:,} | {accesses:,} | {touched / 1e3:,.0f} kB | {1e6 * seconds:,.1f} us "
            f"| {1e6 * least[limit]:,.1f} us | {limit} | {seconds / least[limit]:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
