"""Weak scaling by the model beside published runs: 7B and 8B with FSDP, 405B with Megatron, batches growing with chips.

python benchmarks/weak_scaling.py    prints the rows of docs/results/scaling.md and draws docs/assets/weak-scaling.svg
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dovetail import hardware
from dovetail.accuracy import MeasuredRun, published_runs
from dovetail.report.svg import Panel, Series, growth
from dovetail.step.evaluate import evaluate

ASSET = Path(__file__).parents[1] / "docs" / "assets" / "weak-scaling.svg"
CHIPS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
#: Title of a panel → its cluster, how the ids of its runs begin, and that of the run whose plan is scaled.
SCALED = {
    "MPT-7B with FSDP on H100: chips": (
        "eos",
        "mosaic-h10080gb-bf16-7b-s2048-",
        "mosaic-h10080gb-bf16-7b-s2048-128g-012",
    ),
    "Llama 3.1 8B with FSDP on H200: chips": (
        "hgx-h200",
        "torchtitan-trainy-h200-8B-",
        "torchtitan-trainy-h200-8B-64g",
    ),
    "Llama 3.1 405B with Megatron on H100: chips": (
        "eos",
        "dgxc-v25.04.02-llama3-405b-bf16-h100-sxm-",
        "dgxc-v25.04.02-llama3-405b-bf16-h100-sxm-512g-gbs256-2836",
    ),
}


def scaled(run: MeasuredRun, cluster: str, chips: int) -> float:
    """Tokens per second and chip of a run's plan with more or fewer replicas."""
    task, factor = run.task, chips / run.task.plan.chips
    fixed = task.plan
    group = fixed.zero_group and int(fixed.zero_group * factor)
    plan = replace(fixed, data_parallel=int(fixed.data_parallel * factor), zero_group=group)
    job = replace(task.job, global_batch=int(task.job.global_batch * factor))
    return evaluate(plan, job, hardware.cluster(cluster, chips), task.framework).tokens_per_s_per_chip


def main() -> None:
    """Prints a table for each panel and draws them."""
    runs, panels = published_runs().runs, list[Panel]()
    for title, (cluster, start, base) in SCALED.items():
        found = {run.task.plan.chips: run for run in runs if run.id.startswith(start)}
        (scales,) = [run for run in runs if run.id == base]
        smallest = scales.task.plan.chips // scales.task.plan.data_parallel
        predicted = {chips: scaled(scales, cluster, chips) for chips in CHIPS if chips >= smallest}
        measured = {
            chips: run.task.job.tokens_per_step / run.step_time_s / chips
            for chips, run in sorted(found.items())
            if chips >= min(predicted) and run.task.plan.pipeline_parallel == scales.task.plan.pipeline_parallel
        }
        print(f"| {title.replace(': chips', '')}, chips | predicted | measured |")
        for chips in sorted({*predicted, *measured}):
            cells = (f"{of[chips]:,.0f}" if chips in of else "" for of in (predicted, measured))
            print(f"| {chips:,} | {' | '.join(cells)} |")
        series = [Series(name, tuple(of.items())) for name, of in (("predicted", predicted), ("measured", measured))]
        panels.append(Panel(title, tuple(series)))
    ASSET.write_text(growth("Weak scaling", panels, "tokens per second and chip"), encoding="utf-8")


if __name__ == "__main__":
    main()
