"""Throughput that is kept with dead dies or links on the WATOS-like wafer: the plan kept, and planned again.

Every die, or every link, is dead with the probability that is named, whatever the others are; five maps of each. A
plan that no longer fits has throughput 0. Kept is the plan that is best on the whole wafer, and that which is best of
those with tiles of at most 4 dies: a dead die takes less with it there. Re-planned is never slower than the faster
of the two. The last lines say which plans these are; the pictures are of one map.

    python benchmarks/wafer_faults.py [FOLDER for pictures]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dovetail import frameworks, hardware, models
from dovetail.hardware import DefectMap
from dovetail.mapping.tiles.damaged import TILE_SHAPES, Replanner, not_replanned
from dovetail.mapping.tiles.damaged_step import TilePlan, wafer_grid
from dovetail.models import Job
from dovetail.report.tiles_picture import tiles_svg

WAFER, FRAMEWORK, MODELS, SEQ_LEN, GLOBAL_BATCH = "watos-like", "wafer", ("gpt3-175b", "llama-3.1-70b"), 2048, 336
SHARES, SEEDS = (0.05, 0.10, 0.20), range(5)
#: Dies of small tiles.
SMALL = 4
#: The map that is drawn: model, share of dead dies, seed.
DRAWN = ("llama-3.1-70b", 0.10, 0)


def maps(dies: float, links: float) -> list[DefectMap]:
    """A map of defects for every seed."""
    wafer = hardware.wafer(WAFER)
    return [DefectMap.sampled(wafer.rows, wafer.cols, 1 - dies, 1 - links, seed) for seed in SEEDS]


def plan_text(plan: TilePlan | None) -> str:
    """Tiles, stages and sequences of a microbatch."""
    if plan is None:
        return "none"
    layouts = plan.plan.layouts
    assert layouts is not None
    return f"{plan.plan.pipeline_parallel} × ({layouts.rows} × {layouts.cols}), b {plan.plan.micro_batch}"


def kept_text(healthy: TilePlan, found: Sequence[TilePlan | None]) -> str:
    """Throughput against that of the whole wafer: median, least and most, and how many do not fit."""
    parts = sorted(0.0 if plan is None else healthy.step_time_s / plan.step_time_s for plan in found)
    return f"{statistics.median(parts):.1%} ({parts[0]:.1%} .. {parts[-1]:.1%}) | {found.count(None)}"


def faster(one: TilePlan | None, other: TilePlan | None) -> TilePlan | None:
    """Of two plans, either of which may not fit."""
    return min((plan for plan in (one, other) if plan is not None), key=lambda plan: plan.step_time_s, default=None)


def main() -> None:
    """A row for every model and share of dead dies or links."""
    wafer, framework = hardware.wafer(WAFER), frameworks.load(FRAMEWORK)
    print(
        "| model | dead | how many | not re-planned | do not fit | small tiles, not re-planned | do not fit "
        "| re-planned | do not fit |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    notes: list[str] = []
    for name in MODELS:
        job = Job(model=models.load(name), seq_len=SEQ_LEN, global_batch=GLOBAL_BATCH)
        search = Replanner(job, wafer, framework)
        healthy = search.best(DefectMap())
        few = {shape: batches for shape, batches in TILE_SHAPES.items() if shape[0] * shape[1] <= SMALL}
        small = Replanner(job, wafer, framework, few).best(DefectMap())
        assert healthy is not None
        assert small is not None
        notes += [f"{name} whole: {each.step_time_s:.2f} s, {plan_text(each)}" for each in (healthy, small)]
        for what, share in [(what, share) for what in ("dies", "links") for share in SHARES]:
            drawn = maps(share, 0.0) if what == "dies" else maps(0.0, share)
            kept, sturdy = (
                [not_replanned(plan, job, wafer.with_defects(each), framework) for each in drawn]
                for plan in (healthy, small)
            )
            before = [faster(one, other) for one, other in zip(kept, sturdy, strict=True)]
            again = [search.best(each, plan) for each, plan in zip(drawn, before, strict=True)]
            dead = [len(each.dead_dies) + len(each.dead_links) for each in drawn]
            columns = " | ".join(kept_text(healthy, found) for found in (kept, sturdy, again))
            print(f"| {name} | {share:.0%} {what} | {min(dead)} .. {max(dead)} | {columns} |", flush=True)
            plans = Counter(map(plan_text, again))
            same = sum(plan is not None and plan is old for plan, old in zip(again, before, strict=True))
            words = ", ".join(f"{text} ({n})" for text, n in plans.most_common())
            notes.append(f"{name} {share:.0%} {what}: {words}; as kept: {same}")
            if (name, share) == DRAWN[:2] and what == "dies" and len(sys.argv) > 1:
                draw(Path(sys.argv[1]), drawn[DRAWN[2]], healthy, before[DRAWN[2]], again[DRAWN[2]])
    print("", *notes, f"{time.process_time():.0f} s CPU", sep="\n")


def draw(folder: Path, defects: DefectMap, healthy: TilePlan, kept: TilePlan | None, again: TilePlan | None) -> None:
    """One map before and after planning again."""
    grid = wafer_grid(hardware.wafer(WAFER).with_defects(defects))
    for name, plan in (("kept", kept), ("replanned", again)):
        part = 0.0 if plan is None else healthy.step_time_s / plan.step_time_s
        title = f"{plan_text(plan)}: {part:.0%} of the whole wafer's throughput".replace("%", " %")
        (folder / f"wafer-faults-{name}.svg").write_text(tiles_svg(title, grid, () if plan is None else plan.tiles))


if __name__ == "__main__":
    main()
