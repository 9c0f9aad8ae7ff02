"""Compiled evaluation of plans by index: pipeline, end of step, and the memory of every stage."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.compilation import compiled
from dovetail.pipeline.compiled_formulas import peak_saved
from dovetail.pipeline.longest_path_kernels import least_step
from dovetail.plans.pipeline_schedule import DUAL_PIPE
from dovetail.step.compiled_formulas import (
    allocator_bytes,
    exposed,
    offload_seconds,
    optimizer_seconds,
    overlap_budget,
)
from dovetail.step.memory_kernels import (
    STAGE_COLUMNS,
    STAGE_WORK_COLUMNS,
    OneRun,
    by_units,
    fullest_bytes,
    layers_at_work,
    owned_bytes,
    stage_layers,
    stage_parameters,
)
from dovetail.step.plan_columns import (
    FrameworkColumns,
    LayerColumns,
    PartitionColumns,
    PlanColumns,
    ProfileColumns,
    StateColumns,
)


@compiled
def evaluate_plans(
    plans: PlanColumns,
    layers: LayerColumns,
    profiles: ProfileColumns,
    states: StateColumns,
    partitions: PartitionColumns,
    facts: FrameworkColumns,
    kinds: Ints,
    most: int,
) -> tuple[Floats, Floats, Floats]:
    """Seconds of every plan's pipeline, of its end of step, and bytes of its fullest stage.

    Pipelines of schedules other than 1F1B without waiting receivers and GPipe are bounded from below. `most` is the
    largest number of places and stages of any plan.
    """
    n = len(plans.layer)
    pipeline, after, peak = np.empty(n), np.empty(n), np.empty(n)
    forward, backward, by_chunk = np.empty(most), np.empty(most), np.empty(max(most, 2))
    links, fill, drain, saved, activations, on_host = (
        np.empty(most), np.empty(most), np.empty(most), np.empty(most), np.empty(most), np.zeros(most),
    )  # fmt: skip
    # by stage content: its layers, and seconds of forward and backward that can hide the end-of-step collectives
    stage_rows, hiding = np.zeros((most, len(kinds), STAGE_COLUMNS)), np.empty((most, 2))
    # and what its layers at work need, under the ZeRO stage for which that is known
    work, work_zero = np.zeros((most, STAGE_WORK_COLUMNS)), np.empty(most, np.int64)
    for i in range(n):
        if i > 0 and _same_pipeline(plans, i):
            pipeline[i] = pipeline[i - 1]  # and its activations
        else:
            chunk_columns(plans, layers, partitions, i, forward, backward, saved)
            # loops, for slices and sums of arrays take seconds to compile
            for k in range(plans.stages[i]):
                links[k] = plans.delay_s[i]
            pipeline[i] = least_step(
                plans.schedule[i], plans.stages[i], plans.microbatches[i], plans.chunks[i],
                forward, backward, links, fill, drain,
            )  # fmt: skip
            _activations(plans, partitions, i, saved, activations, by_chunk)
            _contents(plans, layers, profiles, partitions, kinds, facts.min_overlap_s, i, stage_rows, hiding)
            for k in range(plans.stages[i]):
                work_zero[k] = -1
            if facts.hosts_activations:
                _offloaded(plans, layers, partitions, i, saved)
                _activations(plans, partitions, i, saved, on_host, by_chunk)
        after[i], peak[i] = _stages(
            plans, profiles, states, partitions, facts, i, stage_rows, work, work_zero, hiding, activations, on_host
        )
    return pipeline, after, peak


@compiled
def _same_pipeline(plans: PlanColumns, i: int) -> bool:
    """Whether a plan differs from the one before it in its state alone."""
    same = plans.layer[i] == plans.layer[i - 1] and plans.partition[i] == plans.partition[i - 1]
    same = same and plans.profile[i] == plans.profile[i - 1]
    same = same and plans.schedule[i] == plans.schedule[i - 1] and plans.microbatches[i] == plans.microbatches[i - 1]
    return same and plans.sending_s[i] == plans.sending_s[i - 1] and plans.delay_s[i] == plans.delay_s[i - 1]


@compiled
def chunk_columns(
    plans: PlanColumns,
    layers: LayerColumns,
    partitions: PartitionColumns,
    i: int,
    forward: Floats,
    backward: Floats,
    saved: Floats,
) -> None:
    """Forward and backward of every chunk with its stage's sends, and what a micro-batch of it saves."""
    row, partition = plans.layer[i], plans.partition[i]
    first, place = partitions.first_chunk[partition], partitions.first_place[partition]
    places = partitions.first_place[partition + 1] - place
    classes = partitions.chunks.shape[1]
    sending = plans.sending_s[i]
    last_chunk, f, b, save = -1, 0.0, 0.0, 0.0
    for k in range(places):
        chunk = partitions.place_chunk[place + k]
        if chunk != last_chunk:
            f, b, save = 0.0, 0.0, 0.0
            for c in range(classes):
                number = partitions.chunks[first + chunk, c]
                if number:
                    f += number * layers.forward_s[row, c]
                    b += number * (layers.input_gradient_s[row, c] + layers.weight_gradient_s[row, c])
                    save += number * layers.saved[row, c]
            last_chunk = chunk
        forward[k] = f + (sending if k < places - 1 else 0.0)
        backward[k] = b + (sending if k > 0 else 0.0)
        saved[k] = save


@compiled
def _offloaded(
    plans: PlanColumns, layers: LayerColumns, partitions: PartitionColumns, i: int, offloaded: Floats
) -> None:
    """What a micro-batch of every chunk leaves on the host."""
    first, place = partitions.first_chunk[plans.partition[i]], partitions.first_place[plans.partition[i]]
    for k in range(partitions.first_place[plans.partition[i] + 1] - place):
        chunk = partitions.place_chunk[place + k]
        offloaded[k] = 0.0
        for c in range(partitions.chunks.shape[1]):
            offloaded[k] += partitions.chunks[first + chunk, c] * layers.offloaded[plans.layer[i], c]


@compiled
def _activations(
    plans: PlanColumns, partitions: PartitionColumns, i: int, saved: Floats, by_content: Floats, by_chunk: Floats
) -> None:
    """The most that a stage of each content keeps of what its micro-batches save for their backwards."""
    p, m, v, schedule = plans.stages[i], plans.microbatches[i], plans.chunks[i], plans.schedule[i]
    first = partitions.first_stage[plans.partition[i]]
    for content in range(p):
        by_content[content] = 0.0
    for k in range(p):
        by_chunk[0], by_chunk[1] = saved[k], saved[p - 1 - k]
        if schedule != DUAL_PIPE:
            for chunk in range(1, v):
                by_chunk[chunk] = saved[k + chunk * p]
        content = partitions.stage_content[first + k]
        peak = peak_saved(schedule, p, m, v, plans.group[i], k, by_chunk)
        by_content[content] = max(by_content[content], peak)


@compiled
def _contents(
    plans: PlanColumns,
    layers: LayerColumns,
    profiles: ProfileColumns,
    partitions: PartitionColumns,
    kinds: Ints,
    min_overlap_s: float,
    i: int,
    stage_rows: Floats,
    hiding: Floats,
) -> None:
    """The layers of every stage content, and the forward and backward that can hide collectives: same in any state."""
    row, profile, partition = int(plans.layer[i]), int(plans.profile[i]), plans.partition[i]
    first = partitions.first_content[partition]
    for content in range(partitions.first_content[partition + 1] - first):
        place, forward, backward = int(first + content), 0.0, 0.0
        for c in range(partitions.contents.shape[1]):
            number = partitions.contents[place, c]
            if number:
                forward += number * layers.forward_s[row, c]
                backward += number * (layers.input_gradient_s[row, c] + layers.weight_gradient_s[row, c])
        p, m, v = plans.stages[i], plans.microbatches[i], plans.chunks[i]
        hiding[content, 0] = overlap_budget(forward, p, m, v, min_overlap_s)
        hiding[content, 1] = overlap_budget(backward, p, m, v, min_overlap_s)
        stage_layers(partitions.contents, place, layers, row, profiles, profile, kinds, stage_rows[content])


@compiled
def _stages(
    plans: PlanColumns,
    profiles: ProfileColumns,
    states: StateColumns,
    partitions: PartitionColumns,
    facts: FrameworkColumns,
    i: int,
    stage_rows: Floats,
    work: Floats,
    work_zero: Ints,
    hiding: Floats,
    activations: Floats,
    on_host: Floats,
) -> tuple[float, float]:
    """Seconds of the end of step, and bytes of the fullest stage; equal stages are computed once."""
    profile, state, partition = int(plans.profile[i]), int(plans.state[i]), plans.partition[i]
    p, m, zero = plans.stages[i], plans.microbatches[i], int(plans.zero_stage[i])
    staged, sizes = (1, facts.staged) if p > 1 else (0, facts.alone)
    first, count = (
        partitions.first_content[partition],
        partitions.first_content[partition + 1] - partitions.first_content[partition],
    )
    end_of_step, peak, run = 0.0, 0.0, OneRun(p == 1, m == 1 and p == 1)
    for content in range(count):
        place = int(first + content)
        ahead, behind, reduction, gathering, flops = hiding[content, 0], hiding[content, 1], 0.0, 0.0, 0.0
        for c in range(partitions.contents.shape[1]):
            number = partitions.contents[place, c]
            if number:
                reduction += number * states.reduction_s[state, c]
                gathering += number * states.gathering_s[state, c]
                flops += number * states.flops[state, c]
        owned = stage_parameters(partitions.contents, place, profiles, profile, states, state)
        unhidden = exposed(reduction, facts.hidden_reduction[staged], behind)
        gathered = exposed(gathering, facts.hidden_gathering[staged], ahead)
        update = optimizer_seconds(owned.trained_home, facts.update, owned.vectors, flops)
        update += offload_seconds(owned.trained_home, facts.update, behind, m)
        end_of_step = max(end_of_step, unhidden + gathered + update)
        bytes_of, used = owned_bytes(owned, sizes, zero), owned.trained
        if work_zero[content] != zero or by_units(zero, sizes):
            stage, stream = stage_rows[content], profiles.stream[profile]
            layers_at_work(stage, stream, sizes, zero, used, bytes_of[1], run, work[content])
            work_zero[content] = zero
        tensors = fullest_bytes(work[content], used, bytes_of, sizes, zero, activations[content], run)
        peak = max(peak, tensors + allocator_bytes(tensors, facts.allocator) + facts.context_bytes)
        if owned.trained_home * facts.hosted + on_host[content] > facts.host_bytes:
            peak = np.inf
    return end_of_step, peak
