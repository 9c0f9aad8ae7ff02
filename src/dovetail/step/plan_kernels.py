"""Compiled evaluation of plans by index: pipeline, end of step, and the memory of every stage."""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.arrays import Bools, Floats, Ints
from dovetail.frameworks import ParameterBytes
from dovetail.pipeline.compiled_formulas import peak_saved
from dovetail.pipeline.longest_path_kernels import least_step
from dovetail.plans.pipeline_schedule import DUAL_PIPE
from dovetail.step.compiled_formulas import (
    allocator_bytes,
    exposed,
    optimizer_seconds,
    optimizer_step_bytes,
    overlap_budget,
    state_bytes,
    transient_peak,
)
from dovetail.step.plan_columns import (
    FrameworkColumns,
    LayerColumns,
    PartitionColumns,
    PlanColumns,
    ProfileColumns,
    StateColumns,
)


@njit(cache=True)
def evaluate_plans(
    plans: PlanColumns,
    layers: LayerColumns,
    profiles: ProfileColumns,
    states: StateColumns,
    partitions: PartitionColumns,
    facts: FrameworkColumns,
    has_loss: Bools,
    most: int,
) -> tuple[Floats, Floats, Floats]:
    """Seconds of every plan's pipeline, of its end of step, and bytes of its fullest stage.

    Pipelines of schedules other than 1F1B without waiting receivers and GPipe are bounded from below. `most` is the
    largest number of places and stages of any plan.
    """
    n = len(plans.layer)
    pipeline, after, peak = np.empty(n), np.empty(n), np.empty(n)
    forward, backward, saved, by_chunk = np.empty(most), np.empty(most), np.empty(most), np.empty(max(most, 2))
    links, fill, drain, activations = np.empty(most), np.empty(most), np.empty(most), np.empty(most)
    for i in range(n):
        if i > 0 and _same_pipeline(plans, i):
            pipeline[i] = pipeline[i - 1]  # and its activations
        else:
            _chunks(plans, layers, partitions, i, forward, backward, saved)
            links[: plans.stages[i]] = plans.delay_s[i]
            pipeline[i] = least_step(
                plans.schedule[i], plans.stages[i], plans.microbatches[i], plans.chunks[i],
                forward, backward, links, fill, drain,
            )  # fmt: skip
            _activations(plans, partitions, i, saved, activations, by_chunk)
        after[i], peak[i] = _stages(plans, layers, profiles, states, partitions, facts, has_loss, i, activations)
    return pipeline, after, peak


@njit(cache=True)
def _same_pipeline(plans: PlanColumns, i: int) -> bool:
    """Whether a plan differs from the one before it in its state alone."""
    same = plans.layer[i] == plans.layer[i - 1] and plans.partition[i] == plans.partition[i - 1]
    same = same and plans.schedule[i] == plans.schedule[i - 1] and plans.microbatches[i] == plans.microbatches[i - 1]
    return same and plans.sending_s[i] == plans.sending_s[i - 1] and plans.delay_s[i] == plans.delay_s[i - 1]


@njit(cache=True)
def _chunks(
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


@njit(cache=True)
def _activations(
    plans: PlanColumns, partitions: PartitionColumns, i: int, saved: Floats, by_content: Floats, by_chunk: Floats
) -> None:
    """The most that a stage of each content saves for its backwards."""
    p, m, v, schedule = plans.stages[i], plans.microbatches[i], plans.chunks[i], plans.schedule[i]
    first = partitions.first_stage[plans.partition[i]]
    by_content[:p] = 0.0
    for k in range(p):
        by_chunk[0], by_chunk[1] = saved[k], saved[p - 1 - k]
        if schedule != DUAL_PIPE:
            for chunk in range(1, v):
                by_chunk[chunk] = saved[k + chunk * p]
        content = partitions.stage_content[first + k]
        peak = peak_saved(schedule, p, m, v, plans.group[i], k, by_chunk)
        by_content[content] = max(by_content[content], peak)


@njit(cache=True)
def _stages(
    plans: PlanColumns,
    layers: LayerColumns,
    profiles: ProfileColumns,
    states: StateColumns,
    partitions: PartitionColumns,
    facts: FrameworkColumns,
    has_loss: Bools,
    i: int,
    activations: Floats,
) -> tuple[float, float]:
    """Seconds of the end of step, and bytes of the fullest stage; equal stages are computed once."""
    row, profile, state, partition = plans.layer[i], plans.profile[i], plans.state[i], plans.partition[i]
    p, m, v, zero = plans.stages[i], plans.microbatches[i], plans.chunks[i], plans.zero_stage[i]
    staged, sizes = (1, facts.staged) if p > 1 else (0, facts.alone)
    first, count = (
        partitions.first_content[partition],
        partitions.first_content[partition + 1] - partitions.first_content[partition],
    )
    end_of_step, peak = 0.0, 0.0
    for content in range(count):
        place = int(first + content)
        forward, backward, reduction, gathering = 0.0, 0.0, 0.0, 0.0
        for c in range(partitions.contents.shape[1]):
            number = partitions.contents[place, c]
            if number:
                forward += number * layers.forward_s[row, c]
                backward += number * (layers.input_gradient_s[row, c] + layers.weight_gradient_s[row, c])
                reduction += number * states.reduction_s[state, c]
                gathering += number * states.gathering_s[state, c]
        used, home = stage_parameters(partitions.contents, place, profiles, profile, states, state)
        behind = overlap_budget(backward, p, m, v, facts.min_overlap_s)
        ahead = overlap_budget(forward, p, m, v, facts.min_overlap_s)
        reduced = exposed(reduction, facts.hidden_reduction[staged], behind)
        gathered = exposed(gathering, facts.hidden_gathering[staged], ahead)
        end_of_step = max(end_of_step, reduced + gathered + optimizer_seconds(home, facts.update_s))
        parts = memory_parts(
            partitions.contents,
            place,
            layers,
            row,
            profiles,
            profile,
            used,
            home,
            sizes,
            has_loss,
            zero,
            activations[content],
        )
        tensors = 0.0
        for part in parts:
            tensors += part
        peak = max(peak, tensors + allocator_bytes(tensors, facts.allocator) + facts.context_bytes)
    return end_of_step, peak


@njit(cache=True)
def stage_parameters(
    contents: Ints, place: int, profiles: ProfileColumns, profile: int, states: StateColumns, state: int
) -> tuple[float, float]:
    """Parameters a chip of a stage uses and those whose state it has; tied ones count once."""
    used, home = 0.0, 0.0
    classes = contents.shape[1]
    for c in range(classes):
        number = contents[place, c]
        if number:
            used += number * profiles.untied[profile, c]
            home += number * states.untied[state, c]
    for w in range(profiles.tied.shape[2]):
        for c in range(classes):
            if contents[place, c] and profiles.tied[profile, c, w] > 0:
                used += profiles.tied[profile, c, w]
                home += states.tied[state, c, w]
                break
    return used, home


@njit(cache=True)
def parameters_by_stage(contents: Ints, profiles: ProfileColumns, states: StateColumns) -> Floats:
    """`stage_parameters` of the stages of one plan, whose tables have one row: stages × (used, home)."""
    parameters = np.empty((len(contents), 2))
    for place in range(len(contents)):
        parameters[place] = stage_parameters(contents, place, profiles, 0, states, 0)
    return parameters


#: The parts of a stage's memory, in the order of `memory_parts`.
PARTS = (
    "weights", "gradients", "optimizer", "activations", "recompute workspace", "transient", "layer gradients", "loss",
    "gathered weights", "optimizer step",
)  # fmt: skip


@njit(cache=True)
def memory_parts(
    contents: Ints,
    place: int,
    layers: LayerColumns,
    row: int,
    profiles: ProfileColumns,
    profile: int,
    used: float,
    home: float,
    sizes: ParameterBytes,
    has_loss: Bools,
    zero: int,
    activations: float,
) -> tuple[float, float, float, float, float, float, float, float, float, float]:
    """Bytes of one stage's tensors by part (`PARTS`): where the loss is the larger peak, the others are 0."""
    weights, gradients, optimizer = state_bytes(used, home, zero, sizes)
    loss, workspace, transient, of_layer = _transients(
        contents, place, layers, row, profiles, profile, has_loss, zero, sizes.by_weight
    )
    of_layer *= sizes.layer_gradient
    at_peak = transient_peak(loss, workspace, transient, of_layer)
    gathered = 0.0
    if zero == 3:
        gathered = gathered_parameters(contents, place, profiles, profile, sizes.by_weight) * sizes.weight
    step = optimizer_step_bytes(used, home, zero, sizes, activations + at_peak + gathered)
    if at_peak > workspace + transient + of_layer:
        return weights, gradients, optimizer, activations, 0.0, 0.0, 0.0, at_peak, gathered, step
    return weights, gradients, optimizer, activations, workspace, transient, of_layer, 0.0, gathered, step


@njit(cache=True)
def memory_by_stage(
    contents: Ints,
    layers: LayerColumns,
    profiles: ProfileColumns,
    states: StateColumns,
    sizes: ParameterBytes,
    has_loss: Bools,
    zero: int,
    activations: Floats,
) -> Floats:
    """`memory_parts` of the stages of one plan, whose tables have one row: stages × parts."""
    parts = np.empty((len(contents), 10))
    for place in range(len(contents)):
        used, home = stage_parameters(contents, place, profiles, 0, states, 0)
        bytes_of = memory_parts(
            contents, place, layers, 0, profiles, 0, used, home, sizes, has_loss, zero, activations[place]
        )
        for number in range(10):
            parts[place, number] = bytes_of[number]
    return parts


@njit(cache=True)
def _transients(
    contents: Ints,
    place: int,
    layers: LayerColumns,
    row: int,
    profiles: ProfileColumns,
    profile: int,
    has_loss: Bools,
    zero: int,
    by_weight: bool,
) -> tuple[float, float, float, float]:
    """The largest loss, recompute workspace, transient bytes and parameters of a layer's own gradients on a stage.

    Sharded gradients are whole until they are reduced. Accumulated ones are written in place by grouped products of
    experts, while products every token uses have a gradient of their own first.
    """
    loss, workspace, transient, gradients = 0.0, 0.0, 0.0, 0.0
    for c in range(contents.shape[1]):
        if contents[place, c]:
            workspace = max(workspace, layers.workspace[row, c])
            if has_loss[c]:
                loss = max(loss, profiles.loss[profile, c])
            else:
                transient = max(transient, profiles.transient[profile, c])
            if zero < 2:
                gradients = max(gradients, profiles.dense[profile, c])
            else:
                gradients = max(gradients, profiles.largest[profile, c] if by_weight else profiles.whole[profile, c])
    return loss, workspace, transient, gradients


@njit(cache=True)
def gathered_parameters(contents: Ints, place: int, profiles: ProfileColumns, profile: int, by_weight: bool) -> float:
    """Parameters that are whole at once under ZeRO-3: what is at work and what is fetched ahead.

    Of weights that are fetched one by one these are the largest two of a stage, and no weight is fetched ahead of
    itself; one that embedding and head share counts once.
    """
    whole, first, second, shared = 0.0, 0.0, 0.0, 0.0
    for c in range(contents.shape[1]):
        if contents[place, c]:
            whole = max(whole, profiles.whole[profile, c])
            largest, following = profiles.largest[profile, c], profiles.second[profile, c]
            if contents[place, c] > 1 and following == 0:
                # layers of one weight: it is followed by that of the next layer
                following = largest
            for w in range(profiles.tied.shape[2]):
                if profiles.tied[profile, c, w] > 0:
                    shared, largest = max(shared, largest), 0.0
            for weight in (largest, following):
                first, second = max(first, weight), max(second, min(first, weight))
    if not by_weight:
        return 2 * whole
    return max(first, shared) + max(second, min(first, shared))
