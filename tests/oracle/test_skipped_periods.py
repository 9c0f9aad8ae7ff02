"""Steps whose steady state is skipped are those in which every task is played."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_steps import kernel_step
from pipeline_graph import plan_times, random_times

from dovetail.pipeline import Pipeline, PipelineSchedule, work_order
from dovetail.pipeline.repeating_order import shortened, stretches
from dovetail.simulation.long_steps import played
from dovetail.simulation.task_graph import run

#: schedule, stages, microbatches, chunks, group
PIPELINES = [
    Pipeline(PipelineSchedule.ONE_F_ONE_B, 1, 50),
    Pipeline(PipelineSchedule.ONE_F_ONE_B, 4, 90),
    Pipeline(PipelineSchedule.ONE_F_ONE_B, 7, 131),
    Pipeline(PipelineSchedule.INTERLEAVED, 4, 96, 2),
    Pipeline(PipelineSchedule.INTERLEAVED, 3, 101, 3),
    Pipeline(PipelineSchedule.INTERLEAVED, 4, 131, 2, 7),
    Pipeline(PipelineSchedule.ZB_H1, 4, 150),
    Pipeline(PipelineSchedule.ZB_H1, 6, 151),
    Pipeline(PipelineSchedule.DUAL_PIPE, 4, 120),
    Pipeline(PipelineSchedule.DUAL_PIPE, 6, 122),
    Pipeline(PipelineSchedule.GPIPE, 4, 90),
]


def test_x():
    for pipeline in PIPELINES:
        for seed in range(6):
            times = plan_times(random_times(pipeline, seed, plans=1, transfers=False), 0)
            times.pairs = None
            rng = np.random.default_rng(seed)
            delays = tuple(rng.random(2) * rng.choice([0, 0.1, 1]))
            write = lambda p: kernel_step(p, times, 1, delays)
            full = run(write(pipeline).graph)
            tasks, timeline = played(write, pipeline, few=0, fewest=2)
            ev=int((timeline.task_events*tasks.task_runs).sum())
            print(pipeline.schedule.value, pipeline.num_stages, pipeline.num_microbatches, pipeline.num_chunks, seed,
              len(timeline.skipped), len(tasks.graph)/len(full.start_s), timeline.seconds/full.seconds-1, ev-full.events, [s.lasts_s for s in timeline.skipped])
