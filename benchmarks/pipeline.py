"""CPU time of pipeline step times against a plain Python walk through the same orders."""

from __future__ import annotations

import numpy as np
from cpu_time import cpu_seconds

from dovetail.pipeline import ChunkTimes, Pipeline, PipelineSchedule, WorkKind, lower_bound, step_time, work_order
from dovetail.pipeline.step_time import compiled

#: Pipelines, and the seconds of a transfer where a chunk's forward takes about one.
CASES = [
    (Pipeline(PipelineSchedule.ONE_F_ONE_B, 8, 64), 0.05),
    (Pipeline(PipelineSchedule.ONE_F_ONE_B, 64, 64), 0.05),
    (Pipeline(PipelineSchedule.ONE_F_ONE_B, 64, 64), 0.0),
    (Pipeline(PipelineSchedule.INTERLEAVED, 16, 64, 4), 0.05),
    (Pipeline(PipelineSchedule.ZB_H1, 64, 64), 0.05),
    (Pipeline(PipelineSchedule.DUAL_PIPE, 16, 64), 0.05),
]
PLANS = 1000


def plain_step_time(pipeline: Pipeline, stages: list, seconds: dict[WorkKind, list[float]], link: float) -> float:
    """The reference: lists and dicts, one item at a time, stages in turn until none can move."""
    places, last_place = pipeline.places().tolist(), pipeline.num_places - 1
    done: dict[tuple[bool, int, int], float] = {}
    free, position = [0.0] * pipeline.num_stages, [0] * pipeline.num_stages
    moved = True
    while moved:
        moved = False
        for stage, items in enumerate(stages):
            while position[stage] < len(items):
                count = 2 if items[position[stage]].joined else 1
                group = items[position[stage] : position[stage] + count]
                start, waits = free[stage], False
                for item in group:
                    place = places[stage][item.chunk]
                    if item.kind is WorkKind.FORWARD:
                        need = (True, item.microbatch, place - 1) if place else None
                    elif item.kind is WorkKind.WEIGHT_GRADIENT:
                        need = None
                    else:
                        need = (False, item.microbatch, place + 1) if place < last_place else None
                    if need is not None:
                        waits = waits or need not in done
                        start = max(start, done.get(need, 0.0) + link)
                if waits:
                    break
                end = start + sum(seconds[item.kind][places[stage][item.chunk]] for item in group)
                for item in group:
                    if item.kind is not WorkKind.WEIGHT_GRADIENT:
                        done[item.kind is WorkKind.FORWARD, item.microbatch, places[stage][item.chunk]] = end
                free[stage] = end
                position[stage] += count
                moved = True
    return max(free)


def measured(pipeline: Pipeline, link: float) -> list[float]:
    """Microseconds: the reference, one plan, each of many plans, the bound of each, and ordering a new shape."""
    f, b, w = np.random.default_rng(0).uniform(0.5, 1.5, (3, PLANS, pipeline.num_places))
    one, many = ChunkTimes(f[0], b[0], w[0], link), ChunkTimes(f, b, w, link)
    order = work_order(pipeline)
    stages = [order.items(stage) for stage in range(pipeline.num_stages)]
    seconds = dict(zip(WorkKind, (part[0].tolist() for part in (f, b + w, b, w)), strict=True))
    assert abs(plain_step_time(pipeline, stages, seconds, link) / float(step_time(pipeline, one)) - 1) < 1e-9
    spent = [
        cpu_seconds(lambda: plain_step_time(pipeline, stages, seconds, link), 5),
        cpu_seconds(lambda: step_time(pipeline, one), 50),
        cpu_seconds(lambda: step_time(pipeline, many), 5) / PLANS,
        cpu_seconds(lambda: lower_bound(pipeline, many), 5) / PLANS,
        cpu_seconds(lambda: compiled.__wrapped__(pipeline), 3),
    ]
    return [1e6 * part for part in spent]


def main() -> None:
    """Prints one line per pipeline."""
    print(f"CPU microseconds, warm; one plan alone, and each of {PLANS}; ratios against plain Python")
    print(f"{'pipeline':36}{'plain':>8}{'alone':>7}{'ratio':>7}{'each':>8}{'ratio':>8}{'bound':>8}{'new shape':>11}")
    for pipeline, link in CASES:
        plain, alone, each, bound, shape = measured(pipeline, link)
        chunks = f" v={pipeline.num_chunks}" if pipeline.num_chunks > 1 else ""
        name = f"{pipeline.schedule} p={pipeline.num_stages} m={pipeline.num_microbatches}{chunks}"
        name += "" if link else ", no transfers"
        new = f"{shape:11.0f}" if pipeline.schedule is not PipelineSchedule.ONE_F_ONE_B else f"{'none':>11}"
        print(f"{name:36}{plain:8.0f}{alone:7.0f}{plain / alone:7.0f}{each:8.2f}{plain / each:8.0f}{bound:8.2f}{new}")


if __name__ == "__main__":
    main()
