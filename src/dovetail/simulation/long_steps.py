"""A long step from a shorter one: periods of its steady state are skipped, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.errors import InputError
from dovetail.pipeline.repeating_order import Stretch, filling, period, shortened, stretches
from dovetail.pipeline.work_order import WorkKind, WorkOrder
from dovetail.plans.pipeline_schedule import Pipeline, PipelineSchedule
from dovetail.simulation.steady_state import SteadyState, steady_state
from dovetail.simulation.step_tasks import StepTasks
from dovetail.simulation.task_graph import SkippedTime, Timeline, run
from dovetail.simulation.task_writer import MOST_TASKS

#: Steps of as many tasks are played one by one, in a second or two.
FEW_TASKS = 500_000
#: Tasks of the longest step that is played to find a steady state.
MOST_TRIED = 4_000_000
#: Micro-batches of the shortest step that stands for a longer one: enough for its picture to show both ends.
FEWEST = 64
#: Periods of the shortest step that are not needed to fill its pipeline.
PERIODS = 2

#: The tasks of a step with some pipeline.
Writer = Callable[[Pipeline], StepTasks]


def played(
    write: Writer, pipeline: Pipeline, *, rates: bool = False, skip: bool = True, few: int = FEW_TASKS,
    fewest: int = FEWEST,
) -> tuple[StepTasks, Timeline]:  # fmt: skip
    """A step's tasks and when they ran; of a step of more than a few tasks those outside of skipped periods.

    Shorter steps of the same pipeline, twice as long each time, are played until one has a steady state. Without one,
    and where the rates of all messages are asked for, every task is played.
    """
    short = first_shortened(pipeline, fewest)
    while short is not None:
        tasks = write(short)
        whole = _whole(tasks, pipeline)
        if whole <= few:
            break
        if rates or not skip:
            _check_most(whole, "is to be played task by task")
            break
        timeline = run(tasks.graph)
        states = [steady_state(tasks, timeline, stretch) for stretch in stretches(tasks.order)]
        found = [state for state in states if state is not None]
        enough = 2 * short.num_microbatches
        if states and len(found) == len(states):
            every = period(pipeline).microbatches
            left_out = (pipeline.num_microbatches - short.num_microbatches) // every
            lacking = left_out % math.lcm(*(state.periods for state in found))
            if not lacking:
                return lengthened(tasks, timeline, found, pipeline)
            enough = short.num_microbatches + lacking * every
        elif 2 * len(tasks.graph) > MOST_TRIED:
            _check_most(whole, f"has no steady state within {short.num_microbatches:,} micro-batches")
            break
        short = shortened(pipeline, enough)
    tasks = write(pipeline)
    return tasks, run(tasks.graph, rates=rates)


def first_shortened(pipeline: Pipeline, fewest: int = FEWEST) -> Pipeline | None:
    """The shortest step that may stand for this one; None where it would hardly be shorter."""
    enough = max(fewest, filling(pipeline) + PERIODS * period(pipeline).microbatches)
    return shortened(pipeline, enough) if 2 * enough <= pipeline.num_microbatches else None


def lengthened(
    tasks: StepTasks, timeline: Timeline, states: Sequence[SteadyState], pipeline: Pipeline
) -> tuple[StepTasks, Timeline]:
    """What a step with this pipeline does, from a shorter one with a steady state in each stretch of its order.

    What comes after a steady state is as much later as the periods last that are skipped, its items those of later
    micro-batches; the items within come so many times more.
    """
    each = period(pipeline)
    left_out = (pipeline.num_microbatches - tasks.order.pipeline.num_microbatches) // each.microbatches
    item, runs = tasks.labels.item, tasks.runs.copy()
    later_s, own = np.zeros(len(runs)), item < 0
    outside_s = np.zeros(int(own.sum()))
    skipped: list[SkippedTime] = []
    for state in states:
        times = left_out // state.periods
        lasts_s = times * state.period_s
        runs[state.within] += times
        skipped.append(SkippedTime(state.begin_s + sum(each.lasts_s for each in skipped), lasts_s))
        later_s[state.later] += lasts_s
        outside_s[timeline.start_s[own] > state.begin_s] += lasts_s
    shift_s = np.where(own, 0.0, later_s[item])
    shift_s[own] = outside_s
    order = _lengthened_order(tasks.order, states, pipeline)
    labels = replace(tasks.labels, microbatch=np.where(own, -1, order.microbatch[item]))
    times_s: list[Floats] = [each + shift_s for each in (timeline.start_s, timeline.end_s)]
    whole = replace(tasks, order=order, labels=labels, runs=runs)
    return whole, replace(timeline, start_s=times_s[0], end_s=times_s[1], skipped=tuple(skipped))


def _lengthened_order(order: WorkOrder, states: Sequence[SteadyState], pipeline: Pipeline) -> WorkOrder:
    """The items of a shorter order as those of this pipeline; a stage's n-th forward has the n-th micro-batch."""
    each = period(pipeline)
    left_out = pipeline.num_microbatches - order.pipeline.num_microbatches
    microbatch, forward = order.microbatch.copy(), order.kind == WorkKind.FORWARD
    if pipeline.schedule is PipelineSchedule.DUAL_PIPE:  # those of the second direction come behind the others
        microbatch[order.microbatch >= order.pipeline.num_microbatches // 2] += left_out // 2
    for state in states:
        for of_kind in (forward, ~forward):
            if (state.within & of_kind).any():
                microbatch[state.later & of_kind] += left_out // each.microbatches * each.later
    return replace(order, pipeline=pipeline, microbatch=microbatch)


def _whole(tasks: StepTasks, pipeline: Pipeline) -> int:
    """How many tasks the step has with this pipeline."""
    each, order = period(pipeline), tasks.order
    periods = (pipeline.num_microbatches - order.pipeline.num_microbatches) // each.microbatches
    counts: Ints = np.bincount(tasks.labels.item[tasks.labels.item >= 0], minlength=len(order.kind))
    repeated = sum(int(counts[_first_period(stretch, each.items)].sum()) for stretch in stretches(order))
    return len(tasks.graph) + periods * repeated


def _first_period(stretch: Stretch, items: int) -> Ints:
    return (stretch.first[:, None] + np.arange(items)).ravel()


def _check_most(tasks: int, why: str) -> None:
    if tasks > MOST_TASKS:
        what = f"{why}, and has {tasks:,} tasks, more than {MOST_TASKS:,}"
        fix = "take fewer micro-batches (a smaller global_batch): some more of them than stages show the same"
        raise InputError("this step", what, fix)
