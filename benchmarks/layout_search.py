"""The exact search of layouts against simulated annealing and a genetic search of the same space, at equal CPU time.

A block of a model on a tile of the WATOS-like wafer; memory has a price, and what is computed again is in the space.
Tables are made once and not counted; adding their objectives up counts for every search. Optuna's NSGA-II runs for the
time of the exact search where that is long enough for a generation.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from baselines.annealing import simulated_annealing
from baselines.flat_costs import Tried
from baselines.genetic import genetic_search
from optuna.distributions import CategoricalDistribution
from optuna.samplers import NSGAIISampler

from dovetail import frameworks, hardware, models
from dovetail.mapping.elimination import CostProblem, cheapest
from dovetail.mapping.layouts.layer_problem import layer_problem
from dovetail.mapping.tiles.skeletons import TileSkeleton
from dovetail.mapping.tiles.tile_layers import PRICES, TileLayers
from dovetail.mapping.tiles.tile_layouts import searched_tiles

MODELS = ("gpt3-175b", "llama-3.1-70b")
TILES = ("2x2", "2x4", "4x4", "8x6")
BATCHES = (1, 8)
SEEDS = 10
#: Memory of a die, priced in times of a block's seconds.
PRICE = 0.1
#: A cost this close to the optimum is the optimum: sums in another order round differently.
SAME = 1e-9
#: Fewest trials that say anything of Optuna: its first generation.
GENERATION = 50
#: CPU seconds after which the exact search is not timed again.
ENOUGH_S = 10.0

Search = Callable[..., Tried]


@dataclass(frozen=True)
class Case:
    """A cost problem, and what it took to solve it."""

    name: str
    problem: CostProblem
    weights: tuple[float, ...]
    tables_s: float
    exact_s: float
    lowest: float

    def gap(self, cost: float) -> float:
        """By what part a cost is above the optimum."""
        return cost / self.lowest - 1


def case_of(model: str, tile: str, batch: int) -> Case:
    """A block on the first tile of this shape, with as many stages as the wafer has room for."""
    rows, cols = (int(n) for n in tile.split("x"))
    wafer = hardware.wafer("watos-like").cluster()
    grid = wafer.tiers[0].shape
    assert grid is not None
    shape = TileSkeleton(rows, cols, (grid[0] // rows) * (grid[1] // cols), batch)
    job = models.Job(model=models.load(model), seq_len=2048, global_batch=336)
    layers = TileLayers(job, wafer, frameworks.load("wafer"), shape, zero_stage=1)
    layout = next(searched_tiles(layers, rows, cols))
    before = time.process_time()
    problem = layer_problem(layers.setting(layers.main_block, layout), layout).problem
    tables_s = time.process_time() - before
    block_s, _ = cheapest(problem, (1.0, 0.0, 0.0))
    weights = (1.0, *layers.prices(block_s)[PRICES.index(PRICE)])
    spent: list[float] = []
    cost = 0.0
    while len(spent) < 7 and sum(spent) < ENOUGH_S:
        before = time.process_time()
        cost, _ = cheapest(problem, weights)
        spent.append(time.process_time() - before)
    name = f"{model} | {rows} × {cols} | {batch} | {len(problem.sizes)} | 10^{sum(map(math.log10, problem.sizes)):.0f}"
    return Case(name, problem, weights, tables_s, statistics.median(spent), cost)


def runs(case: Case, search: Search, times: float, seeds: int) -> list[Tried]:
    """One run of each seed, which ends early where it meets the optimum."""
    stop_at = case.lowest * (1 + SAME)
    limit = times * case.exact_s
    return [search(case.problem, case.weights, cpu_s=limit, seed=seed, stop_at=stop_at) for seed in range(seeds)]


def found(case: Case, tried: Sequence[Tried]) -> list[Tried]:
    """The runs that met the optimum."""
    return [one for one in tried if case.gap(one.cost) <= SAME]


def cell(case: Case, tried: Sequence[Tried]) -> str:
    """Median and worst gap, and how many met the optimum."""
    gaps = sorted(max(0.0, case.gap(one.cost)) for one in tried)
    return f"{percent(statistics.median(gaps))}, {percent(gaps[-1])}, {len(found(case, tried))}/{len(tried)}"


def percent(part: float) -> str:
    """A gap to read."""
    return "0" if part <= SAME else f"{100 * part:.2g}%"


def until_found(case: Case, tried: Sequence[Tried]) -> str:
    """Median CPU seconds until the optimum was met, of the runs that met it."""
    spent = [one.trace[-1].cpu_s for one in found(case, tried)]
    return f"{statistics.median(spent):.2g}" if spent else "–"


def optuna_best(case: Case, seed: int) -> tuple[float, int, float]:
    """The least cost that Optuna's NSGA-II meets in the exact search's time, its trials, and seconds of a trial."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=NSGAIISampler(population_size=GENERATION, seed=seed))
    genes: dict[str, Any] = {str(v): CategoricalDistribution(range(n)) for v, n in enumerate(case.problem.sizes)}
    weights = np.array(case.weights)
    best, trials = math.inf, 0
    before = time.process_time()
    while (spent := time.process_time() - before) < case.exact_s:
        trial = study.ask(genes)
        choice = np.array([[trial.params[name] for name in genes]])
        cost = float(case.problem.cost(choice)[0] @ weights)
        study.tell(trial, cost if math.isfinite(cost) else 1e300)
        best, trials = min(best, cost), trials + 1
    return best, trials, spent / trials


def optuna_cell(case: Case) -> str:
    """The median gap of three seeds (of one where a run is long), and how many trials there was time for."""
    tried = [optuna_best(case, seed) for seed in range(3 if case.exact_s < ENOUGH_S else 1)]
    trials = int(statistics.median(n for _, n, _ in tried))
    each = f"{trials} of {1e3 * statistics.median(s for _, _, s in tried):.2g} ms"
    if trials < GENERATION:
        return f"– ({each})"
    return f"{percent(statistics.median(case.gap(cost) for cost, _, _ in tried))} ({each})"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--tiles", nargs="+", default=TILES)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args()
    print(
        "| layer | tile | sequences | variables | choices | tables s | exact s "
        "| annealing: equal time | 10 × the time | s to optimum "
        "| genetic: equal time | 10 × the time | s to optimum | Optuna: equal time |"
    )
    print("|" + "---|" * 14, flush=True)
    for model in asked.models:
        for tile in asked.tiles:
            for batch in asked.batches:
                case = case_of(model, tile, batch)
                cells = [case.name, f"{case.tables_s:.2g}", f"{case.exact_s:.2g}"]
                for search in (simulated_annealing, genetic_search):
                    # compiled before it is timed
                    search(case.problem, case.weights, evaluations=1000)
                    once, longer = (runs(case, search, times, asked.seeds) for times in (1, 10))
                    cells += [cell(case, once), cell(case, longer), until_found(case, longer)]
                print(f"| {' | '.join([*cells, optuna_cell(case)])} |", flush=True)


if __name__ == "__main__":
    main()
