"""CPU time of recompute frontiers against trying every subset of operators, or an integer program for one point.

With `--plot FOLDER` it draws two frontiers for the documentation instead.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
from baselines.frontier_plot import Curve, NamedChoice, frontier_plot
from cpu_time import cpu_seconds

from dovetail.graph import LayerGraph
from dovetail.profile import LayerProfile, Recompute, Saving, recompute
from dovetail.profile.frontier import recompute_frontier
from dovetail.profile.modules import MODULES
from dovetail.profile.recompute import RecomputeMenu

# the blocks and the integer program the frontier is checked with
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "oracle"))
from real_layers import blocks_of, in_ticks
from recompute_oracle import Forward
from recompute_program import Program

CASES = [
    ("llama-3.1-405b", 8, "full"),
    ("llama-3.1-8b", 1, "full"),
    ("qwen3-8b", 1, "full"),
    ("gemma-2-27b", 8, "full"),
    ("gpt3-175b", 8, "layer"),
    ("mixtral-8x7b", 8, "full"),
    ("gpt-oss-120b", 8, "full"),
    ("qwen3-235b-a22b", 1, "sparse"),
    ("llama-4-maverick", 8, "chunked_sparse"),
    ("deepseek-v3", 8, "dense"),
    ("deepseek-v3", 8, "sparse"),
    ("qwen3.5-397b-a17b", 8, "linear_sparse"),
    ("deepseek-v3.2", 8, "prediction"),
    ("glm-5", 1, "prediction"),
]
MOST_OPERATORS = 16


def every_subset(graph: LayerGraph, profile: LayerProfile) -> float:
    """CPU seconds to evaluate every subset of the operators, one after another."""
    menu = RecomputeMenu(graph, profile)
    space = menu.space
    before = time.process_time()
    for subset in range(2 ** len(space.operators)):
        names = [name for number, name in enumerate(space.operators) if subset >> number & 1]
        menu.cost_of(space.choose(names))
    return time.process_time() - before


def one_point(graph: LayerGraph, profile: LayerProfile) -> float:
    """CPU seconds of the integer program for the least time within the middle point's bytes."""
    whole = in_ticks(profile)
    frontier, program = recompute_frontier(graph, whole), Program(Forward(graph, whole))
    middle = len(frontier.seconds) // 2
    kept, footprint = int(frontier.saved_bytes[middle]), int(frontier.footprint_bytes[middle])
    return cpu_seconds(lambda: program.least_ticks(kept, footprint), 5)


def print_times() -> None:
    """One line per block."""
    print("CPU milliseconds, warm; every subset tried one by one, or an integer program for one point of the frontier")
    print(f"{'block':40}{'operators':>10}{'points':>8}{'frontier':>10}{'against':>15}{'ratio':>9}")
    for model, tensor_parallel, layer in CASES:
        graph, profile = blocks_of(model, tensor_parallel)[layer]
        spent = cpu_seconds(lambda graph=graph, profile=profile: recompute_frontier(graph, profile), 20)
        few = len(graph.operators) <= MOST_OPERATORS
        other = every_subset(graph, profile) if few else one_point(graph, profile)
        against = f"{1e3 * other:.0f} all" if few else f"{1e3 * other:.1f} one point"
        points = len(recompute_frontier(graph, profile).seconds)
        name = f"{model} {layer}, tp {tensor_parallel}"
        print(f"{name:40}{len(graph.operators):10}{points:8}{1e3 * spent:10.2f}{against:>15}{other / spent:9.1f}")


def added_seconds(cost: Recompute) -> float:
    """Of operators and collectives, none of them hidden."""
    return float(cost.added_s) + sum(float(s) for s in cost.added_collective_s.values())


def named_costs(graph: LayerGraph, profile: LayerProfile) -> Iterator[tuple[str, Recompute]]:
    """The choices that have names; the modules (core_attn is what is called selective) alone and in pairs."""
    yield "none", recompute(graph, profile, "none")
    yield "selective", recompute(graph, profile, "selective")
    modules = [name for name, m in MODULES.items() if name != "core_attn" and list(m.operators(graph))]
    for count in (1, 2):
        for names in combinations(modules, count):
            yield " + ".join(names), recompute(graph, profile, names)
    yield "full", recompute(graph, profile, "full")
    yield "full, stops early", recompute(graph, profile, "full", Saving(stops_early=True))


def curve(name: str, graph: LayerGraph, profile: LayerProfile, *, pairs: bool = False) -> Curve:
    """A block's frontier with the named choices beside it."""
    frontier = recompute_frontier(graph, profile)
    rows = np.column_stack([frontier.saved_bytes, frontier.footprint_bytes, frontier.seconds])
    choices: list[NamedChoice] = []
    for label, cost in named_costs(graph, profile):
        if " + " in label and not pairs:
            continue
        kept, seconds = float(cost.saved_bytes), added_seconds(cost)
        row = (kept, kept + float(cost.workspace_bytes), seconds)
        on = bool(np.isclose(rows, row, rtol=1e-9, atol=0).all(axis=1).any())
        choices.append(NamedChoice(label, kept, seconds, on))
    points = tuple(zip(frontier.saved_bytes.tolist(), frontier.seconds.tolist(), strict=True))
    return Curve(name, points, tuple(choices))


def draw(folder: Path) -> None:
    """Writes the plots, and prints the table of the first one's named choices."""
    llama = curve("frontier", *blocks_of("llama-3.1-405b", 8)["full"], pairs=True)
    fused = curve("fused attention", *blocks_of("gpt3-175b", 8)["layer"])
    unfused = curve("attention written out", *blocks_of("gpt3-175b", 8, "unfused")["layer"])
    on = "8-way tensor and sequence parallel, H100"
    plots = {
        "llama-3.1-405b": frontier_plot(f"A block of Llama 3.1 405B, {on}", [llama]),
        "gpt3-175b": frontier_plot(f"A block of GPT-3 175B, {on}", [unfused, fused]),
    }
    for name, text in plots.items():
        (folder / f"recompute-frontier-{name}.svg").write_text(text)
    print("| choice | kept, MiB | added, ms | least with no more kept, ms |")
    print("|---|---|---|---|")
    for choice in llama.choices:
        least = min(seconds for kept, seconds in llama.points if kept <= choice.saved_bytes * (1 + 1e-9))
        print(f"| {choice.name} | {choice.saved_bytes / 2**20:.1f} | {1e3 * choice.seconds:.2f} | {1e3 * least:.2f} |")


def main() -> None:
    """Times, or plots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write the plots of the documentation there")
    folder: Path | None = parser.parse_args().plot
    if folder is None:
        print_times()
    else:
        draw(folder)


if __name__ == "__main__":
    main()
