"""Four corners of each PHAZE study: the baseline chip or ours, with the published plan or ours.

Reads finished runs of `dovetail explore`, one directory for each study under the folder named, and prints the table of
the documentation; `--plot FILE` draws it too. Of the published plan the degrees are kept: micro-batch, recompute and
where stages are cut are chosen, so that a corner shows degrees and not the rest. A chip has whichever memory size
suits it best, the smallest of those that are as good.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dovetail import Space, Study
from dovetail.hardware import Chip
from dovetail.report.svg import Bars, bars
from dovetail.search.plan import plan

STUDIES = Path(__file__).parents[1] / "studies"

#: Name of a study, name of its model, and its published degrees: pipeline, data, tensor. OPT's 12 x 85 x 1 are 1,020
#: chips, and 85 does not divide a batch of 4,096: the nearest that does has 8 x 128 x 1.
MODELS = {
    "gpt3": ("GPT-3 175B", (32, 8, 4)),
    "llama2": ("Llama-2-7B", (8, 128, 1)),
    "gpt2": ("GPT-2 XL", (32, 32, 1)),
    "bert": ("BERT-large", (8, 128, 1)),
    "opt": ("OPT-350M", (8, 128, 1)),
    "megatron-bert": ("Megatron BERT", (8, 128, 1)),
    "megatron-gpt2-xl": ("Megatron GPT-2 XL", (8, 128, 1)),
    "megatron-gpt2-2.5b": ("Megatron GPT-2 2.5B", (8, 32, 4)),
    "megatron-gpt2-8.3b": ("Megatron GPT-2 8.3B", (8, 16, 8)),
}
NETWORKS = {"": "flat", "-torus": "torus"}

#: PHAZE's likeness of TPU v4, in its own list of designs.
BASELINE = {
    "tensor_cores": 8,
    "vector_cores": 2,
    "rows": 128,
    "cols": 128,
    "vector_lanes": 128,
    "shared_sram_bytes": 2**27,
}
STACKS_BYTES = (8e9, 16e9, 20e9)
NAMES = ("baseline chip, published plan", "baseline chip, our plan", "our chip, published plan", "our chip, our plan")


@dataclass(frozen=True, slots=True)
class Corner:
    """The best step of a chip and a space of plans; none where no plan fits."""

    seconds: float | None
    words: str
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """The corners of a model and a network, in the order of NAMES."""

    model: str
    network: str
    corners: tuple[Corner, ...]


def corner(study: Study, chips: Sequence[Chip], space: Space) -> Corner:
    """The fastest of chips with the fastest plan of a space."""
    found: list[Corner] = []
    for chip in chips:
        answer = plan(study.jobs[0].job, study.positions[0].cluster(chip), study.framework, space=space)
        if answer.evaluation is None:
            continue
        best = answer.plan
        degrees = f"{best.pipeline_parallel}/{best.data_parallel}/{best.tensor_parallel}"
        words = f"{degrees}, micro-batch {best.micro_batch}, recompute {best.recompute}"
        gigabytes = f"{chip.hbm_bytes / 1e9:.0f} GB"
        found.append(Corner(answer.step_time_s, f"{words}, {gigabytes}", parts_of(answer.evaluation)))
    return min(found, key=lambda each: each.seconds or 0.0, default=Corner(None, "does not fit", {}))


def parts_of(evaluation: Any) -> dict[str, float]:
    """Seconds of a step by what they are spent on."""
    return {name: float(seconds) for name, seconds in evaluation.breakdown.items() if seconds}


def row(name: str, suffix: str, runs: Path) -> Row:
    """The corners of one study."""
    study = Study.load(STUDIES / f"phaze-{name}{suffix}.yaml")
    kept = json.loads((runs / f"phaze-{name}{suffix}" / "result.json").read_text(encoding="utf-8"))
    space, (title, (pipeline, _, tensor)) = study.space, MODELS[name]
    # by its variables and not by its number: a run over fewer memory sizes numbers designs otherwise
    baseline, ours = (
        [space.chip(space.index_of({**variables, "hbm_stack_bytes": each})) for each in STACKS_BYTES]
        for variables in (BASELINE, {name: int(kept["result"]["best"]["variables"][name]) for name in BASELINE})
    )
    published = replace(study.plans, pipeline_parallel=(pipeline,), tensor_parallel=(tensor,))
    corners = [corner(study, chips, plans) for chips in (baseline, ours) for plans in (published, study.plans)]
    return Row(title, NETWORKS[suffix], tuple(corners))


def gain(before: Corner, after: Corner) -> str:
    """How many times as fast."""
    return "-" if before.seconds is None or after.seconds is None else f"{before.seconds / after.seconds:.2f}"


def print_table(rows: Sequence[Row]) -> None:
    """The table, and the plans and the parts of the steps below it."""
    print("| model | network | " + " | ".join(NAMES) + " | hardware | mapping | both |")
    print("|---|---|" + "---|" * (len(NAMES) + 3))
    for each in rows:
        first, mapped, made, both = each.corners
        times = [f"{c.seconds:#.4g} s" if c.seconds is not None else c.words for c in each.corners]
        gains = [gain(first, made), gain(first, mapped), gain(first, both)]
        print(f"| {each.model} | {each.network} | " + " | ".join([*times, *gains]) + " |")
    print()
    for each in rows:
        for name, found in zip(NAMES, each.corners, strict=True):
            parts = ", ".join(f"{part} {seconds:.4g}" for part, seconds in found.parts.items())
            print(f"{each.model}, {each.network}, {name}: {found.seconds} s; {found.words}; {parts}")


def draw(rows: Sequence[Row]) -> str:
    """Steps as parts of the first corner's."""
    lines: list[Bars] = []
    for each in rows:
        whole = each.corners[0].seconds
        if whole is not None:
            shares = tuple(None if c.seconds is None else c.seconds / whole for c in each.corners[1:])
            lines.append(Bars(f"{each.model}, {each.network}", shares))
    label = "step time, of that of the baseline chip with the published plan"
    return bars("What hardware and mapping gain apart and together", lines, NAMES[1:], label)


def main() -> None:
    """Prints the table of all studies whose runs are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="folder of the run directories")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the corners there")
    options = parser.parse_args()
    there = [
        (name, suffix)
        for suffix in NETWORKS
        for name in MODELS
        if (options.runs / f"phaze-{name}{suffix}" / "result.json").exists()
    ]
    rows = [row(name, suffix, options.runs) for name, suffix in there]
    print_table(rows)
    if options.plot is not None:
        options.plot.write_text(draw(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
