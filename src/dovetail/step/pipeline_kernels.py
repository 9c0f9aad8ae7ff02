"""Compiled exact steps of interleaved pipelines, of plans by index: many of one size go through its order together."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.compilation import compiled
from dovetail.pipeline.interleaved_kernels import LANES, steps_of_lanes
from dovetail.pipeline.interleaved_order import periodic_order
from dovetail.step.plan_columns import LayerColumns, PartitionColumns, PlanColumns
from dovetail.step.plan_kernels import chunk_columns


@compiled
def interleaved_plans(
    plans: PlanColumns, rows: Ints, layers: LayerColumns, partitions: PartitionColumns, most: int
) -> Floats:
    """Exact pipeline seconds of some plans; those of one pipeline size follow each other, of two stages or more.

    `most` is the largest number of places of any plan.
    """
    step = np.empty(len(rows))
    forward, backward, saved = np.empty(most), np.empty(most), np.empty(most)
    duration, delay = np.empty((2 * most, LANES)), np.empty((2 * most, LANES))
    low = 0
    while low < len(rows):
        i = int(rows[low])
        p, v, high = int(plans.stages[i]), int(plans.chunks[i]), low
        order = periodic_order(p, int(plans.microbatches[i]), v, int(plans.group[i]))
        while high < len(rows) and _same_size(plans, int(rows[high]), i):
            width = 0
            while width < LANES and high < len(rows) and _same_size(plans, int(rows[high]), i):
                plan = int(rows[high])
                chunk_columns(plans, layers, partitions, plan, forward, backward, saved)
                for place in range(p * v):
                    duration[place, width], duration[p * v + place, width] = forward[place], backward[place]
                for link in range(2 * p):
                    delay[link, width] = plans.delay_s[plan]
                width, high = width + 1, high + 1
            steps_of_lanes(order, duration, delay, width, step, high - width)
        low = high
    return step


@compiled
def _same_size(plans: PlanColumns, i: int, j: int) -> bool:
    """Whether the pipelines of two plans have one order."""
    same = plans.stages[i] == plans.stages[j] and plans.microbatches[i] == plans.microbatches[j]
    return same and plans.chunks[i] == plans.chunks[j] and plans.group[i] == plans.group[j]
