"""Exact pipeline seconds of plans as rows of the tables: every distinct pipeline once, those of one order together."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints, numbers
from dovetail.compilation import worth_compiling
from dovetail.pipeline.chunk_times import ChunkTimes
from dovetail.pipeline.interleaved_order import operations_run
from dovetail.pipeline.step_time import step_time
from dovetail.plans.pipeline_schedule import INTERLEAVED, Pipeline, PipelineSchedule
from dovetail.plans.skeletons import NAMES
from dovetail.step.partition_table import PartitionTable
from dovetail.step.plan_columns import LayerColumns, PlanColumns


def exact_pipelines(plans: PlanColumns, layers: LayerColumns, partitions: PartitionTable) -> Floats:
    """Exact pipeline seconds of every plan."""
    columns = (plans.layer, plans.partition, plans.schedule, plans.stages, plans.microbatches, plans.chunks)
    first, back = without_repetition(*columns, plans.sending_s, plans.delay_s)
    steps = np.empty(len(first))
    interleaved = (plans.schedule[first] == INTERLEAVED) & (plans.stages[first] > 1)
    (together,) = np.nonzero(interleaved)
    if len(together):
        # compiled code is imported where it is used: that takes longer than all that a command without it needs
        from dovetail.step.pipeline_kernels import interleaved_plans

        rows = first[together]
        stages, chunks, microbatches = plans.stages[rows], plans.chunks[rows], plans.microbatches[rows]
        sizes = np.stack([stages, chunks, microbatches], axis=1)
        together = together[np.argsort(sizes @ [2**48, 2**24, 1], kind="stable")]
        operations = int(operations_run(stages, microbatches, chunks, plans.group[rows]).sum())
        steps[together] = worth_compiling(interleaved_plans, operations)(
            plans, first[together], layers, partitions.arrays(), partitions.most_places
        )
    (others,) = np.nonzero(~interleaved)
    if len(others):
        rows = first[others]
        sizes = np.stack([plans.schedule[rows], plans.stages[rows], plans.microbatches[rows], plans.chunks[rows]])
        pipelines, group = np.unique(sizes, axis=1, return_inverse=True)
        for number, (schedule, *size) in enumerate(pipelines.T.tolist()):
            members = others[group.reshape(-1) == number]
            pipeline = Pipeline(PipelineSchedule(NAMES[schedule]), *size)
            steps[members] = _steps(pipeline, plans.take(first[members]), layers, partitions)
    return steps[back]


def without_repetition(*columns: Ints | Floats) -> tuple[Ints, Ints]:
    """The first of rows that are alike and follow each other, and which of these each row is."""
    new = np.zeros(len(columns[0]), np.bool_)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    (first,) = np.nonzero(new)
    return first, np.cumsum(new) - 1


def _steps(pipeline: Pipeline, plans: PlanColumns, layers: LayerColumns, partitions: PartitionTable) -> Floats:
    """The same for plans of one pipeline, by the chunks of each."""
    counts = np.stack([partitions.places(partition) for partition in numbers(plans.partition)]).astype(np.float64)
    forward, of_input, of_weight = (np.einsum("npc,nc->np", counts, part[plans.layer]) for part in layers[:3])
    forward[:, :-1] += plans.sending_s[:, None]
    of_input[:, 1:] += plans.sending_s[:, None]
    delays = np.repeat(plans.delay_s[:, None], pipeline.num_links, axis=1)
    return step_time(pipeline, ChunkTimes(forward, of_input, of_weight, transfer_s=delays))
