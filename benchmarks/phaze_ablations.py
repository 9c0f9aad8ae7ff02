"""What each freedom of the PHAZE studies gains: the best step without it, beside the best with all.

`python benchmarks/phaze_ablations.py`: studies of two models on the torus with 80 GB a chip, over the designs of 250
mm² and more by PHAZE's area, which hold the best of every study. Each line is a study of its own, proven like the
others; hardware alone keeps the published plan's degrees, mapping alone keeps the baseline chip.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from phaze_corners import BASELINE, MODELS

from dovetail.documents import read_document
from dovetail.exploration.resolving import study_of
from dovetail.exploration.study import Study

STUDIES = Path(__file__).parents[1] / "studies"
#: NVDLA's cores, with as many multiply-accumulate units as the baseline: the reference of `phaze-grid`.
NVDLA = {**BASELINE, "tensor_cores": 64, "vector_cores": 32, "rows": 64, "cols": 32, "shared_sram_bytes": 2**25}

Document = dict[str, Any]


def whole(name: str) -> Document:
    """The study of a model with one size of memory and the largest designs."""
    document: Document = dict(read_document(STUDIES / f"phaze-{name}-torus.yaml"))
    vary = {"hbm_stack_bytes": ["20 GB"]}
    return {**document, "hardware": {**document["hardware"], "vary": vary, "limits": ["phaze_area_mm2 >= 250"]}}


def with_plans(document: Document, **plans: list[Any]) -> Document:
    """The same with other values of some fields of plans."""
    return {**document, "plans": {**document["plans"], **plans}}


def on_chip(document: Document, chip: dict[str, int]) -> Document:
    """The same with a single chip; lanes are the columns of an array."""
    names = ("tensor_cores", "vector_cores", "rows", "cols", "shared_sram_bytes")
    vary = {"hbm_stack_bytes": ["20 GB"], **{name: [chip[name]] for name in names}}
    hardware = {name: value for name, value in document["hardware"].items() if name != "limits"}
    return {**document, "hardware": {**hardware, "vary": vary}}


def more_lanes(document: Document, lanes: int) -> Document:
    """The baseline chip with so many lanes in each of its vector cores, which PHAZE's rule does not allow."""
    hardware = {
        "base": "tpu-v4",
        "shares_cores": True,
        "technology": "7nm",
        "set": {"core_sram_bytes": 0, "hbm_stack_bytes": "20 GB"},
        "vary": {**{name: [value] for name, value in BASELINE.items()}, "vector_lanes": [lanes]},
    }
    return {**document, "hardware": hardware}


def ablations(name: str) -> dict[str, Document]:
    """The questions about a model, by what they leave out."""
    all_free = whole(name)
    pipeline, _, tensor = MODELS[name][1]
    published = {"pipeline_parallel": [pipeline], "tensor_parallel": [tensor]}
    baseline = on_chip(all_free, BASELINE)
    return {
        "all free": all_free,
        "micro-batch 1": with_plans(all_free, micro_batch=[1]),
        "no recompute": with_plans(all_free, recompute=["none"]),
        "no tensor parallelism": with_plans(all_free, tensor_parallel=[1]),
        "hardware only": with_plans(all_free, **published),
        "mapping only": baseline,
        "mapping only, 4,096 lanes": more_lanes(all_free, 2048),
        "mapping only, NVDLA-like": on_chip(all_free, NVDLA),
        "neither": with_plans(baseline, **published),
    }


def answered(document: Document) -> dict[str, Any]:
    """The best step of a study, its plan and its CPU time."""
    start = time.process_time()
    resolved = study_of(document, document["name"], STUDIES)
    study = Study(**{field: getattr(resolved, field) for field in resolved.__dataclass_fields__})
    result = study.run()
    points = result.pareto_front()
    found: dict[str, Any] = {"status": result.certificate["status"], "step_s": None, "plan": None}
    if points:
        (job,) = study.jobs
        plan = result.plan_of(points[0], job.name)
        degrees = f"{plan.pipeline_parallel}/{plan.data_parallel}/{plan.tensor_parallel}"
        found |= {
            "step_s": points[0]["objectives"]["step_time"],
            "plan": f"{degrees}, MBS {plan.micro_batch}, recompute {plan.recompute}",
            "variables": points[0]["variables"],
        }
    return {**found, "cpu_s": round(time.process_time() - start, 1)}


def main() -> None:
    """Prints a table for the models named, and writes the answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["bert", "llama2"])
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    print("| model | without | step | of all free | plan | CPU s |")
    print("|---|---|---|---|---|---|")
    for name in options.models:
        found[name] = {}
        for words, document in ablations(name).items():
            one = found[name][words] = answered(document)
            best = found[name]["all free"]["step_s"]
            times = "-" if one["step_s"] is None else f"{one['step_s']:.5g} s | {one['step_s'] / best:.3f}"
            print(f"| {MODELS[name][0]} | {words} | {times} | {one['plan']} | {one['cpu_s']} |", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
