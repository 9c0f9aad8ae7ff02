"""Throughput that is kept with dead dies or links on a wafer: the plan of the whole wafer kept, and planned again.

Every die, or every link, is dead with the probability that is named, whatever the others are; three maps of each. A
plan that no longer fits has throughput 0. `dovetail plan --strategy free --defect-rate R --seed N --keep PLAN` says the
same of one map.

    python benchmarks/wafer_faults.py [FOLDER for pictures] [SECONDS for each search]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dovetail import frameworks, hardware, models
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster, DefectMap
from dovetail.mapping.tiles.free_plan import FreeLimits, free_plan
from dovetail.mapping.tiles.surviving import surviving_plan
from dovetail.models import Job
from dovetail.plans.arrange import arrange
from dovetail.plans.words import plan_words
from dovetail.report.wafer_picture import wafer_pictures
from dovetail.report.wafer_svg import wafer_svg
from dovetail.simulation import simulate
from dovetail.step.evaluate import Evaluation

WAFER, FRAMEWORK, MODELS, SEQ_LEN, GLOBAL_BATCH = "watos-like", "wafer", ("gpt3-175b", "llama-3.1-70b"), 2048, 336
SHARES, SEEDS, SECONDS = (0.05, 0.10, 0.20), range(3), 15.0
#: The map that is drawn: model, share of dead dies, seed.
DRAWN = ("llama-3.1-70b", 0.10, 0)


def damaged(cluster: Cluster, dies: float, links: float, seed: int) -> Cluster:
    """The wafer with a drawn map of defects."""
    rows, cols = cluster.tiers[0].shape
    return replace(cluster, defects=(DefectMap.sampled(rows, cols, 1 - dies, 1 - links, seed),))


def kept_text(healthy: Evaluation, found: Sequence[Evaluation | None]) -> str:
    """Throughput against that of the whole wafer: median, least and most, and how many do not fit."""
    parts = sorted(0.0 if plan is None else healthy.step_time_s / plan.step_time_s for plan in found)
    return f"{statistics.median(parts):.1%} ({parts[0]:.1%} .. {parts[-1]:.1%}) | {found.count(None)}"


def planned(
    job: Job, cluster: Cluster, framework: Framework, kept: Evaluation | None, seconds: float
) -> Evaluation | None:
    """The best plan found in so many seconds, or the kept one where that is faster."""
    found = free_plan(job, cluster, framework, FreeLimits(time_limit_s=seconds, named_s=0.0)).evaluation
    both = [plan for plan in (found, kept) if plan is not None]
    return min(both, key=lambda plan: plan.step_time_s, default=None)


def main() -> None:
    """A row for every model and share of dead dies or links."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    cluster, framework = hardware.cluster(WAFER), frameworks.load(FRAMEWORK)
    print("| model | dead | how many | kept | do not fit | re-planned | do not fit |")
    print("|---|---|---|---|---|---|---|")
    notes: list[str] = []
    for name in MODELS:
        job = Job(model=models.load(name), seq_len=SEQ_LEN, global_batch=GLOBAL_BATCH)
        healthy = planned(job, cluster, framework, None, 3 * seconds)
        assert healthy is not None
        notes.append(f"{name} whole: {healthy.step_time_s:.2f} s, {plan_words(healthy.plan)}")
        for what, share in [(what, share) for what in ("dies", "links") for share in SHARES]:
            dies, links = (share, 0.0) if what == "dies" else (0.0, share)
            drawn = [damaged(cluster, dies, links, seed) for seed in SEEDS]
            kept = [surviving_plan(healthy.plan, job, each, framework) for each in drawn]
            again = [planned(job, each, framework, old, seconds) for each, old in zip(drawn, kept, strict=True)]
            dead = [len(each.defects[0].dead_dies) + len(each.defects[0].dead_links) for each in drawn]
            columns = " | ".join(kept_text(healthy, found) for found in (kept, again))
            print(f"| {name} | {share:.0%} {what} | {min(dead)} .. {max(dead)} | {columns} |", flush=True)
            if (name, share) == DRAWN[:2] and what == "dies" and folder is not None:
                draw(folder, job, drawn[DRAWN[2]], framework, kept[DRAWN[2]], again[DRAWN[2]])
    print("", *notes, f"{time.process_time():.0f} s CPU", sep="\n")


def draw(
    folder: Path, job: Job, cluster: Cluster, framework: Framework, kept: Evaluation | None, again: Evaluation | None
) -> None:
    """One map with the plan that was kept, where it fits, and the plan made for it."""
    for name, found in (("kept", kept), ("replanned", again)):
        if found is not None:
            step = simulate(found.plan, job, cluster, framework)
            pictures = wafer_pictures(step, arrange(found.plan, job.graph(), cluster), cluster)
            (folder / f"wafer-faults-{name}.svg").write_text(wafer_svg(pictures))


if __name__ == "__main__":
    main()
