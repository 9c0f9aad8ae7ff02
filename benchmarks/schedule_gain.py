"""What schedules gain: a layer's operators side by side against one after the other, by class of design.

GPT-3, Llama-2-7B and BERT-large, one sequence, on designs of the space `phaze-grid` by how many tensor cores they have.
`quick` is the list schedule with its improvements, `exact` what the solver makes of it within its limit.
"""

from __future__ import annotations

import argparse

import numpy as np
from layer_schedules import layer_works

import dovetail as dt
from dovetail.cost.units import chip_units
from dovetail.schedule.layer import layer_problems
from dovetail.schedule.quick import TRIES, quick_many
from dovetail.schedule.solve import solve

MODELS = ("gpt3-175b", "llama-2-7b", "bert-large")
CLASSES = {"1 to 8 tensor cores": (1, 8), "16 to 128": (16, 128), "256 to 4,096": (256, 4096)}
DESIGNS, SEED = 12, 7


def chips_of(least: int, most: int) -> list[int]:
    space = dt.hardware.space("phaze-grid")
    batch = space.sample(4000, SEED)
    cores = batch.designs.tensor_cores
    return batch.index[(cores >= least) & (cores <= most)][:DESIGNS].tolist()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--limit", type=float, default=0.3, help="steps of the exact solver per problem")
    limit = options.parse_args().limit
    space = dt.hardware.space("phaze-grid")
    print("| model | direction | designs | one after the other | first list schedule | exact | gap left |")
    print("|---|---|---|---|---|---|---|")
    for model in MODELS:
        for direction, work in layer_works(model, 1).items():
            for name, ends in CLASSES.items():
                units = [chip_units(space.chip(index), "bf16") for index in chips_of(*ends)]
                problems = layer_problems(work, units)
                listed, _, _, _ = quick_many(problems.arrays, 0)
                improved, _, _, _ = quick_many(problems.arrays, TRIES)
                found = [solve(problems.problem(case), limit) for case in range(len(problems))]
                exact = np.minimum([s.makespan for s in found], improved)
                gap = np.mean([s.gap for s in found])
                print(
                    f"| {model} | {direction} | {name} | {np.mean(problems.serial / exact):.3f} | "
                    f"{np.mean(listed / exact):.3f} | 1 | {gap:.1%} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
