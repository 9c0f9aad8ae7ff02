"""Schedules of real layers on random designs: how many close by bounds and list schedules alone, and what each takes.

Six models × forward and backward × tensor parallel 1, 2, 4, 8 × 50 designs of the space `phaze-grid`. With --exact 0.3
those that do not close within 1 % go to the exact solver, for so many of its steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np

import dovetail as dt
from dovetail.cost.operators import ChipUnits, PlacedWork
from dovetail.cost.units import chip_units
from dovetail.models import Job
from dovetail.schedule.layer import LayerProblems, layer_problems
from dovetail.schedule.model_layer import Direction, commonest_layer, model_layer_work
from dovetail.schedule.quick import TRIES, quick_many

MODELS = ("gpt3-175b", "llama-2-7b", "bert-large", "llama-3.1-70b", "mixtral-8x7b", "deepseek-v3")
TENSOR_PARALLEL = (1, 2, 4, 8)
DESIGNS, SEED = 50, 1
CLOSED = 0.01


def random_chips() -> list[ChipUnits]:
    space = dt.hardware.space("phaze-grid")
    return [chip_units(space.chip(int(index)), "bf16") for index in space.sample(DESIGNS, SEED).index]


def layer_works(model: str, tensor_parallel: int) -> dict[Direction, PlacedWork]:
    """A layer's forward and backward, one sequence of 2,048 tokens (BERT: 512)."""
    job = Job(dt.models.load(model), 512 if model.startswith("bert") else 2048, 64)
    directions: tuple[Direction, ...] = ("forward", "backward")
    layer = commonest_layer(job)
    return {way: model_layer_work(job, layer, way, tensor_parallel, micro_batch=1) for way in directions}


def instances() -> Iterator[tuple[str, str, int, LayerProblems, float]]:
    """Every model, direction and degree: its problems on all designs, and CPU seconds it took to make them."""
    chips = random_chips()
    for model in MODELS:
        for degree in TENSOR_PARALLEL:
            for direction, work in layer_works(model, degree).items():
                start = time.process_time()
                problems = layer_problems(work, chips)
                yield model, direction, degree, problems, time.process_time() - start


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--exact", type=float, default=0.0, help="solve what does not close, in so many steps each")
    exact = options.parse_args().exact
    first = next(instances())[3]
    quick_many(first.arrays, TRIES)  # compiles
    gaps, seconds, made, left = [], [], [], []
    for model, direction, degree, problems, cost in instances():
        start = time.process_time()
        makespans, bounds, _, _ = quick_many(problems.arrays, TRIES)
        took = time.process_time() - start
        found = (makespans - bounds) / makespans
        gaps.append(found)
        seconds.append(took / len(problems))
        made.append(cost / len(problems))
        left += [(model, direction, degree, problems, case) for case in np.flatnonzero(found > CLOSED)]
        print(
            f"{model:14} {direction:8} tensor {degree}: {len(problems.names):2} operators, "
            f"{np.mean(found == 0):4.0%} proven, {np.mean(found <= CLOSED):4.0%} within 1 %, worst {found.max():5.1%}, "
            f"{1e3 * took / len(problems):.2f} ms each, serial {np.mean(problems.serial / makespans):.3f} times as long"
        )
    every = np.concatenate(gaps)
    print(
        f"{len(every):,} problems: {np.mean(every == 0):.1%} proven, {np.mean(every <= CLOSED):.1%} within 1 %; "
        f"{1e3 * np.mean(seconds):.2f} ms of CPU each, {1e3 * np.mean(made):.2f} ms to make"
    )
    if exact:
        solve_rest(left, len(every), exact)


def solve_rest(left: list[tuple[str, str, int, LayerProblems, int]], count: int, limit: float) -> None:
    from dovetail.schedule.solve import solve

    took, gaps = [], []
    for model, direction, degree, problems, case in left:
        problem = problems.problem(int(case))
        start = time.process_time()
        solution = solve(problem, limit)
        took.append(time.process_time() - start)
        gaps.append(solution.gap)
        if solution.gap > CLOSED:
            name = f"{model} {direction} tensor {degree} design {case}"
            print(f"open: {name}: gap {solution.gap:.1%} in {took[-1]:.2f} s")
    if left:
        within = 1 - sum(gap > CLOSED for gap in gaps) / count
        every = np.sort(np.concatenate([np.zeros(count - len(took)), took]))
        print(
            f"{len(left)} solved: {within:.2%} of all within 1 %; CPU of those: median {np.median(took):.2f} s, "
            f"most {max(took):.2f} s; 99th percentile over all {every[int(0.99 * len(every))]:.2f} s"
        )


if __name__ == "__main__":
    main()
