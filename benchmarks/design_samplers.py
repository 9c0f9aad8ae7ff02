"""Best design found against designs evaluated, for every sampler, beside the proven optimum of the same question.

`python benchmarks/design_samplers.py --json FILE --plot FILE`: two PHAZE studies on the torus with 80 GB a chip, TP 1,
one or eight stages and micro-batches of 1 or 4. Random and evolutionary search are the median of a few seeds. A design
that is proven not to beat the best so far is evaluated too, in less time; `phaze` needs the figure of every design.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.arrays import Floats
from dovetail.documents import read_document
from dovetail.exploration.best_plans import searched
from dovetail.exploration.fidelity import Worker
from dovetail.exploration.operator_score import operator_score
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.resolving import study_of
from dovetail.exploration.samplers import SAMPLERS, WANTS_FIGURES
from dovetail.exploration.study import Study
from dovetail.report.svg import Panel, Series, growth

STUDIES = Path(__file__).parents[1] / "studies"
NAMES = {"phaze-bert-torus": "BERT-large", "phaze-gpt2-torus": "GPT-2 XL"}
SEEDS = {"random": 3, "evolutionary": 3, "hardware_first": 1, "phaze": 1}
#: Designs asked for at once.
ASKED = 16


def narrowed(name: str) -> Study:
    """The study with one size of memory and few plans, so that a design takes a fraction of a second."""
    document = dict(read_document(STUDIES / f"{name}.yaml"))
    document["hardware"] = {**document["hardware"], "vary": {"hbm_stack_bytes": ["20 GB"]}}
    document["plans"] = {
        **document["plans"],
        "tensor_parallel": [1],
        "pipeline_parallel": [1, 8],
        "recompute": ["none"],
    }
    resolved = study_of(document, name, STUDIES)
    return Study(**{field: getattr(resolved, field) for field in resolved.__dataclass_fields__})


def best_so_far(study: ResolvedStudy, method: str, seed: int, evaluations: int) -> Floats:
    """The best step time after every design that a sampler asked for; infinite until one fits."""
    worker, space = Worker(study), study.positions[0].space
    sampler = SAMPLERS[method](space, 1, seed, operator_score(study))
    best: list[float] = []
    least = np.inf
    while len(best) < evaluations:
        asked = sampler.ask(min(ASKED, evaluations - len(best)))
        if not len(asked):
            break
        bounds_s, told = worker.physical_of(0, asked), list[float]()
        for code, bound in zip(asked, bounds_s, strict=True):
            front = np.array([[least]]) if np.isfinite(least) and method not in WANTS_FIGURES else np.zeros((0, 1))
            (row,) = searched(study, np.array([code]), bound[None], front)
            told.append(row.figures[0] if row.figures is not None else float(study.mean.of(np.array(row.least_s))))
            least = min(least, told[-1]) if row.figures is not None else least
            best.append(least)
        sampler.tell(asked, np.array(told)[:, None])
    return np.array(best)


def curves(name: str, evaluations: int) -> dict[str, Any]:
    """The curves of a study, and the optimum."""
    study, start = narrowed(name), time.process_time()
    result = study.run()
    (best,) = result.pareto_front()
    optimum = best["objectives"]["step_time"]
    answer: dict[str, Any] = {
        "optimum_s": optimum,
        "certificate": result.certificate["status"],
        "counts": result.document["counts"],
        "cpu_s": {"exact": round(time.process_time() - start, 1)},
        "curves": {},
    }
    for method, seeds in SEEDS.items():
        start = time.process_time()
        runs = [best_so_far(study, method, seed, evaluations) for seed in range(seeds)]
        answer["cpu_s"][method] = round((time.process_time() - start) / seeds, 1)
        answer["curves"][method] = np.median(np.stack(runs), axis=0).tolist()
        print(f"{name} {method}: {answer['cpu_s'][method]} s of CPU", file=sys.stderr, flush=True)
    return answer


def points(curve: list[float], optimum: float) -> tuple[tuple[float, float], ...]:
    """Powers of two along a curve, and its end, as parts of the optimum."""
    at = sorted({2**k for k in range(20) if 2**k <= len(curve)} | {len(curve)})
    return tuple((float(n), curve[n - 1] / optimum) for n in at if np.isfinite(curve[n - 1]))


def draw(found: dict[str, Any]) -> str:
    """The curves of all studies side by side."""
    panels: list[Panel] = []
    for name, one in found.items():
        longest = max(len(curve) for curve in one["curves"].values())
        series = [Series(method, points(curve, one["optimum_s"])) for method, curve in one["curves"].items()]
        series.append(Series("proven optimum", ((1.0, 1.0), (float(longest), 1.0))))
        panels.append(Panel(f"{NAMES[name]}: designs evaluated", tuple(series)))
    return growth("Best step time found, as a multiple of the proven optimum", panels, "times the optimum")


def print_table(found: dict[str, Any]) -> None:
    """What each method found after how many designs."""
    print("| model | method | after 16 | after 64 | at the end | designs | CPU s |")
    print("|---|---|---|---|---|---|---|")
    for name, one in found.items():
        for method, curve in one["curves"].items():
            cells = [f"{curve[min(n, len(curve)) - 1] / one['optimum_s']:.3f}" for n in (16, 64, len(curve))]
            print(f"| {NAMES[name]} | `{method}` | {' | '.join(cells)} | {len(curve)} | {one['cpu_s'][method]} |")
        counts = one["counts"]
        print(f"{NAMES[name]}: {one['certificate']}, {one['optimum_s']:.5g} s, {counts}, {one['cpu_s']['exact']} s")


def main() -> None:
    """Prints the table; writes the curves and draws them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=128)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for name in NAMES:
        found[name] = curves(name, options.evaluations)
        print_table({name: found[name]})
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.plot is not None:
        options.plot.write_text(draw(found), encoding="utf-8")


if __name__ == "__main__":
    main()
