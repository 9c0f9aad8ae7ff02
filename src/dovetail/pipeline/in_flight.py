"""How much of its forwards a stage has in flight at once: what memory for activations is made of.

A chunk run is in flight from the beginning of its forward to the end of its last gradient: the backward, or the weight
gradient where a schedule splits it off. `compiled_formulas` makes these functions callable inside compiled code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dovetail.arrays import Floats, Ints
from dovetail.pipeline.work_order import WorkKind, WorkOrder
from dovetail.plans.pipeline_schedule import (
    DUAL_PIPE,
    GPIPE,
    INTERLEAVED,
    ONE_F_ONE_B,
    SCHEDULE_CODES,
    Pipeline,
)


def chunk_runs_in_flight(schedule: int, stages: int, microbatches: int, chunks: int, group: int, stage: int) -> int:
    """The most chunk runs that a stage has in flight; `group` is the interleaved schedule's micro-batch group size."""
    if schedule == GPIPE:
        return microbatches
    if schedule == ONE_F_ONE_B:
        return min(microbatches, stages - stage)
    if schedule == INTERLEAVED:
        # all forwards of the warm-up, and the one before the first backward
        return min(microbatches * chunks, 2 * (stages - 1 - stage) + (chunks - 1) * group + 1)
    if schedule == DUAL_PIPE:
        return stages + 1
    return min(microbatches, stages)  # ZB-H1


def peak_saved(
    schedule: int, stages: int, microbatches: int, chunks: int, group: int, stage: int, saved: Floats
) -> float:
    """The most that a stage saves for its backwards at once; `saved` is what one micro-batch of each chunk saves.

    Exact for the schedule's order, however the chunks of a stage differ: `peak_in_flight` counts it over the order.
    """
    runs = chunk_runs_in_flight(schedule, stages, microbatches, chunks, group, stage)
    if schedule == DUAL_PIPE:
        # the chunk that came from the nearer end, and the one of the other direction, peak together
        return (stages - stage) * saved[0] + (stage + 1) * saved[1]
    if schedule != INTERLEAVED:
        return runs * saved[0]
    alike = True
    for chunk in range(1, chunks):
        alike = alike and saved[chunk] == saved[0]
    if alike:
        return runs * saved[0]
    return interleaved_peak(runs, microbatches, chunks, group, saved)


def interleaved_peak(runs: int, microbatches: int, chunks: int, group: int, saved: Floats) -> float:
    """The most that chunks of different sizes save: after `runs` forwards, then one backward and one forward in turn.

    Forwards take chunks in turn, a group of microbatches each; backwards the same from the last chunk on. Between two
    changes of chunk the sum grows or falls evenly, so its largest value is at such a change, or at either end. Whole
    groups repeat: where no smaller one is left over, one period is enough.
    """
    sum_saved, turns = 0.0, runs_in_turns(runs, microbatches, chunks, group)
    for chunk in range(chunks):
        sum_saved += of_turn(turns, chunk) * saved[chunk]
    left = microbatches * chunks - runs
    if microbatches % group == 0:
        left = min(left, chunks * group)
    # the chunk whose forward, or backward, is next, its group, and how many of the group are left
    forward_group = min(runs // (chunks * group), (microbatches - 1) // group)
    size = min(group, microbatches - forward_group * group)
    forward, done = divmod(runs - forward_group * chunks * group, size)
    forwards = size - done
    backward_group, backward, backwards = 0, chunks - 1, min(group, microbatches)
    peak = sum_saved
    while left > 0:
        steps = min(forwards, backwards, left)
        sum_saved += steps * (saved[forward] - saved[backward])
        peak = max(peak, sum_saved)
        left, forwards, backwards = left - steps, forwards - steps, backwards - steps
        if forwards == 0:
            forward += 1
            if forward == chunks:
                forward, forward_group = 0, forward_group + 1
            forwards = min(group, max(microbatches - forward_group * group, 1))
        if backwards == 0:
            backward -= 1
            if backward < 0:
                backward, backward_group = chunks - 1, backward_group + 1
            backwards = min(group, max(microbatches - backward_group * group, 1))
    return peak


def runs_in_turns(runs: int, microbatches: int, chunks: int, group: int) -> tuple[int, int, int]:
    """Of the first runs of an interleaved stage: those of each chunk in whole groups, and all in the group begun.

    Last comes how many micro-batches that group has.
    """
    whole = min(runs // (chunks * group), microbatches // group)
    return whole * group, runs - whole * chunks * group, min(group, microbatches - whole * group)


def of_turn(turns: tuple[int, int, int], turn: int) -> int:
    """Of the first runs of an interleaved stage, those of the chunk whose turn is this in every group."""
    whole, left, size = turns
    return whole + min(max(left - turn * size, 0), size)


def in_flight_of_chunk(
    schedule: int, stages: int, microbatches: int, chunks: int, group: int, stage: int, chunk: int
) -> int:
    """Runs of one chunk in flight when its stage has the most in flight; the chunk's own peak is no lower."""
    runs = chunk_runs_in_flight(schedule, stages, microbatches, chunks, group, stage)
    if schedule == DUAL_PIPE:
        return stages - stage if chunk == 0 else stage + 1
    if schedule != INTERLEAVED:
        return runs
    return of_turn(runs_in_turns(runs, microbatches, chunks, group), chunk)


def in_flight(pipeline: Pipeline) -> Ints:
    """For every stage, the most chunk runs in flight."""
    sizes = pipeline.num_stages, pipeline.num_microbatches, pipeline.num_chunks, pipeline.microbatch_group_size
    code = SCHEDULE_CODES[pipeline.schedule]
    return np.array([chunk_runs_in_flight(code, *sizes, stage) for stage in range(pipeline.num_stages)], np.int64)


def peak_saved_by_stage(pipeline: Pipeline, saved: ArrayLike) -> Floats:
    """What every stage saves at its peak, of what a micro-batch of the chunk at each place along the model saves."""
    sizes = pipeline.num_stages, pipeline.num_microbatches, pipeline.num_chunks, pipeline.microbatch_group_size
    by_chunk = np.asarray(saved, np.float64)[pipeline.places()]
    code = SCHEDULE_CODES[pipeline.schedule]
    return np.array([peak_saved(code, *sizes, stage, of_stage) for stage, of_stage in enumerate(by_chunk)])


def peak_in_flight(order: WorkOrder, weight: ArrayLike = 1.0) -> Floats:
    """The peak counted over an order, each chunk run with a weight (its bytes, say) for its place along the model."""
    weights = np.broadcast_to(np.asarray(weight, np.float64), order.pipeline.num_places)[order.place]
    taken = np.where(order.kind == WorkKind.FORWARD, weights, 0.0)
    stays = (order.kind == WorkKind.FORWARD) | (order.kind == WorkKind.INPUT_GRADIENT)
    change = np.where(stays, taken, -weights)
    spans = np.split(change, order.starts[1:-1])
    return np.array([np.cumsum(span).max() for span in spans])
