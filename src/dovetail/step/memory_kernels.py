"""Compiled memory of a stage's chips: what is there at each phase of a step, by part."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.compilation import compiled
from dovetail.frameworks import ParameterBytes
from dovetail.step.compiled_formulas import frozen_bytes, optimizer_step_bytes, state_bytes
from dovetail.step.plan_columns import LayerColumns, ProfileColumns, StateColumns


class StageParameters(NamedTuple):
    """Parameters of a stage's chip: those it uses and those it stores in shards, all of them and the trained ones."""

    used: float
    home: float
    trained: float
    trained_home: float
    #: of what it stores, all that are no matrices of blocks, where these have an optimizer of their own
    vectors: float


@compiled
def stage_parameters(
    contents: Ints, place: int, profiles: ProfileColumns, profile: int, states: StateColumns, state: int
) -> StageParameters:
    """Parameters of a chip of a stage; tied ones count once."""
    used, home, trained, trained_home, vectors = 0.0, 0.0, 0.0, 0.0, 0.0
    classes, some_frozen = contents.shape[1], profiles.trained.shape[1] > 0
    for c in range(classes):
        number = contents[place, c]
        if number:
            used += number * profiles.untied[profile, c]
            home += number * states.untied[state, c]
            vectors += number * states.vectors[state, c]
            if some_frozen:
                trained += number * profiles.trained[profile, c]
                trained_home += number * states.trained[state, c]
    for w in range(profiles.tied.shape[2]):
        for c in range(classes):
            if contents[place, c] and profiles.tied[profile, c, w] > 0:
                used += profiles.tied[profile, c, w]
                home += states.tied[state, c, w]
                if not some_frozen or profiles.tied_trained[profile, c, w] > 0:
                    trained += profiles.tied[profile, c, w]
                    trained_home += states.tied[state, c, w]
                    vectors += states.tied[state, c, w]
                break
    if not some_frozen:
        trained, trained_home = used, home
    return StageParameters(used, home, trained, trained_home, vectors)


@compiled
def parameters_by_stage(contents: Ints, profiles: ProfileColumns, states: StateColumns) -> Floats:
    """`stage_parameters` of the stages of one plan, whose tables have one row: stages × fields."""
    parameters = np.empty((len(contents), 5))
    for place in range(len(contents)):
        of_stage = stage_parameters(contents, place, profiles, 0, states, 0)
        for number in range(5):
            parameters[place, number] = of_stage[number]
    return parameters


#: The parts of a stage's memory, in the order of `memory_parts`.
PARTS = (
    "weights", "gradients", "optimizer", "activations", "layer at work", "layer gradients", "loss", "gathered weights",
    "optimizer step",
)  # fmt: skip
#: The phases of a step at which memory can be fullest.
PHASES = (
    "loss", "backward of the head", "backward of the last layer", "backward of the first layer",
    "backward of the embedding", "optimizer",
)  # fmt: skip
LOSS, HEAD, LAST, FIRST, EMBEDDING, UPDATE = range(6)

#: Columns of `stage_layers`: what memory depends on, of each class of layers on a stage.
COUNT, KIND, SAVED, WORKING, WHOLE, TRAINED, DENSE, LOSS_BYTES, LARGEST, SECOND, LARGEST_TRAINED, TIED = range(12)
STAGE_COLUMNS = 12

#: What a class of layers is: `kinds` of kernels.
IS_BLOCK, IS_EMBEDDING, IS_HEAD = range(3)


class OneRun(NamedTuple):
    """What of a step decides when gradients and activations are there: one stage, and one micro-batch on it."""

    one_stage: bool
    one_microbatch: bool


@compiled
def stage_layers(
    contents: Ints,
    place: int,
    layers: LayerColumns,
    row: int,
    profiles: ProfileColumns,
    profile: int,
    kinds: Ints,
    stage: Floats,
) -> None:
    """Fills the figures of a stage's classes of layers: classes × the columns above."""
    for c in range(contents.shape[1]):
        stage[c, COUNT] = contents[place, c]
        if not contents[place, c]:
            continue
        stage[c, KIND], stage[c, WHOLE] = kinds[c], profiles.whole[profile, c]
        stage[c, SAVED], stage[c, WORKING] = layers.saved[row, c], layers.working[row, c]
        stage[c, TRAINED] = profiles.trained[profile, c] if profiles.trained.shape[1] else profiles.whole[profile, c]
        stage[c, DENSE], stage[c, LOSS_BYTES] = profiles.dense[profile, c], profiles.loss[profile, c]
        stage[c, LARGEST], stage[c, SECOND] = profiles.largest[profile, c], profiles.second[profile, c]
        stage[c, LARGEST_TRAINED], stage[c, TIED] = profiles.largest_trained[profile, c], 0.0
        for w in range(profiles.tied.shape[2]):
            if profiles.tied[profile, c, w] > 0:
                stage[c, TIED] = 1.0
                stage[c, TRAINED] += profiles.tied_trained[profile, c, w] if profiles.trained.shape[1] else 0.0


@compiled
def by_units(zero: int, sizes: ParameterBytes) -> bool:
    """Whether weights or gradients are sharded layer by layer."""
    return zero >= 2 and not sizes.by_weight


@compiled
def can_be_fullest(phase: int, zero: int, sizes: ParameterBytes, run: OneRun) -> bool:
    """Whether a phase can be the fullest one: some only where weights or gradients are sharded layer by layer."""
    if phase in (HEAD, FIRST, EMBEDDING):
        return by_units(zero, sizes) and (phase != FIRST or (sizes.late_gradients and run.one_microbatch))
    return True


#: Columns of `layers_at_work`, for each phase of a step: what the layer at work saved and what of that is gone, its
#: working bytes, its gradients before and after their reduction, gathered weights, and the loss.
AT_WORK_COLUMNS = 7
#: after those of all phases: trained parameters of the largest block, embedding and head, and what heads save
BY_KIND = 6 * AT_WORK_COLUMNS
STAGE_WORK_COLUMNS = BY_KIND + 4


@compiled
def layers_at_work(
    stage: Floats, stream: float, sizes: ParameterBytes, zero: int, used: float, held: float, run: OneRun, work: Floats
) -> None:
    """Fills what the layers at work need on a stage at each phase, the columns above.

    Bytes of gradients that are held, of `used` trained parameters, count where they are sharded layer by layer: as the
    result of a reduction. Nothing else depends on the state beyond its ZeRO stage.
    """
    reduced = held / max(used, 1.0)
    whole, trained, saved_head = _whole_by_kind(stage)
    work[BY_KIND], work[BY_KIND + 1], work[BY_KIND + 2] = trained
    work[BY_KIND + 3] = saved_head
    for phase in range(UPDATE):
        if can_be_fullest(phase, zero, sizes, run):
            first = phase * AT_WORK_COLUMNS
            needed = _at_work(stage, stream, sizes, zero, whole, trained, reduced, phase)
            for column in range(AT_WORK_COLUMNS):
                work[first + column] = needed[column]


@compiled
def owned_bytes(owned: StageParameters, sizes: ParameterBytes, zero: int) -> tuple[float, float, float, float]:
    """Bytes of a stage's weights, gradients and optimizer state, and of what the optimizer makes for its update."""
    used, home = owned.trained, owned.trained_home
    weights, gradients, optimizer = state_bytes(used, home, zero, sizes, owned.vectors)
    weights += frozen_bytes(owned.used - used, owned.home - home, zero, sizes)
    return weights, gradients, optimizer, optimizer_step_bytes(used, home, zero, sizes)


@compiled
def memory_parts(
    work: Floats,
    used: float,
    state: tuple[float, float, float, float],
    sizes: ParameterBytes,
    zero: int,
    activations: float,
    run: OneRun,
    phase: int,
) -> tuple[float, float, float, float, float, float, float, float, float]:
    """Bytes of one stage's tensors by part (`PARTS`) at a phase of the step that can be the fullest.

    `work` is of `layers_at_work`, `used` the trained parameters, `state` of `owned_bytes`. Gradients of one micro-batch
    may come with the backward of their layers: none is there at the loss, and all are when the embedding is done.
    """
    weights, gradients, optimizer, step = state
    if phase == UPDATE:
        return weights, gradients, optimizer, 0.0, 0.0, 0.0, 0.0, 0.0, step
    first = phase * AT_WORK_COLUMNS
    if used > 0 and sizes.late_gradients and run.one_microbatch:
        block, embedding, head = work[BY_KIND], work[BY_KIND + 1], work[BY_KIND + 2]
        done = (0.0, 0.0, head, used - block - embedding, used - embedding)[phase]
        gradients *= min(max(done / used, 0.0), 1.0)
    if phase >= FIRST:
        activations = work[first]
    elif phase == LAST and run.one_stage and by_units(zero, sizes):
        activations -= work[BY_KIND + 3]
    activations -= work[first + 1]
    return (
        weights, gradients + work[first + 4], optimizer, activations, work[first + 2], work[first + 3], work[first + 6],
        work[first + 5], 0.0,
    )  # fmt: skip


@compiled
def fullest_bytes(
    work: Floats,
    used: float,
    state: tuple[float, float, float, float],
    sizes: ParameterBytes,
    zero: int,
    activations: float,
    run: OneRun,
) -> float:
    """Bytes of a stage's tensors at its fullest phase; of what, as above."""
    fullest = 0.0
    for phase in range(6):
        if can_be_fullest(phase, zero, sizes, run):
            parts = memory_parts(work, used, state, sizes, zero, activations, run, phase)
            tensors = parts[0] + parts[1] + parts[2] + parts[3] + parts[4] + parts[5] + parts[6] + parts[7] + parts[8]
            fullest = max(fullest, tensors)
    return fullest


@compiled
def memory_by_stage(
    contents: Ints,
    layers: LayerColumns,
    profiles: ProfileColumns,
    states: StateColumns,
    sizes: ParameterBytes,
    kinds: Ints,
    zero: int,
    activations: Floats,
    run: OneRun,
) -> Floats:
    """`memory_parts` of the stages of one plan, whose tables have one row: stages × phases × parts.

    All are 0 where a phase cannot be the fullest.
    """
    parts, stage = np.zeros((len(contents), 6, 9)), np.zeros((contents.shape[1], STAGE_COLUMNS))
    work = np.zeros(STAGE_WORK_COLUMNS)
    for place in range(len(contents)):
        owned = stage_parameters(contents, place, profiles, 0, states, 0)
        stage_layers(contents, place, layers, 0, profiles, 0, kinds, stage)
        state = owned_bytes(owned, sizes, zero)
        layers_at_work(stage, profiles.stream[0], sizes, zero, owned.trained, state[1], run, work)
        for phase in range(6):
            if can_be_fullest(phase, zero, sizes, run):
                bytes_of = memory_parts(work, owned.trained, state, sizes, zero, activations[place], run, phase)
                for number in range(9):
                    parts[place, phase, number] = bytes_of[number]
    return parts


@compiled
def _whole_by_kind(stage: Floats) -> tuple[tuple[float, float, float], tuple[float, float, float], float]:
    """Parameters of the largest block, embedding and head of a stage, all and trained, and what its heads save."""
    block, embedding, head, saved = 0.0, 0.0, 0.0, 0.0
    of_block, of_embedding, of_head = 0.0, 0.0, 0.0
    for c in range(len(stage)):
        if stage[c, COUNT] > 0:
            whole, trained = stage[c, WHOLE], stage[c, TRAINED]
            if stage[c, KIND] == IS_BLOCK:
                block, of_block = max(block, whole), max(of_block, trained)
            elif stage[c, KIND] == IS_EMBEDDING:
                embedding, of_embedding = max(embedding, whole), max(of_embedding, trained)
            else:
                head, of_head = max(head, whole), max(of_head, trained)
                saved += stage[c, COUNT] * stage[c, SAVED]
    return (block, embedding, head), (of_block, of_embedding, of_head), saved


@compiled
def _at_work(
    stage: Floats,
    stream: float,
    sizes: ParameterBytes,
    zero: int,
    whole: tuple[float, float, float],
    trained: tuple[float, float, float],
    reduced: float,
    phase: int,
) -> tuple[float, float, float, float, float, float, float]:
    """What the layer at work needs on a stage: what it saved and what of that is gone, working bytes, its gradients
    before and after their reduction, gathered weights, loss.

    Accumulated gradients are written in place by grouped products of experts, while products every token uses have a
    gradient of their own first.
    """
    units = by_units(zero, sizes)
    weight = sizes.weight if zero == 3 and units else 0.0
    loss, fullest, saved, freed, working, of_layer, gathered, summed = 0.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for c in range(len(stage)):
        if stage[c, COUNT] == 0:
            continue
        if stage[c, KIND] == IS_HEAD:
            loss = max(loss, stage[c, LOSS_BYTES])
        if units and stage[c, KIND] != _KIND_OF[phase]:
            continue
        at_work, gone, gradients, fetched, out = stage[c, WORKING], 0.0, 0.0, 0.0, 0.0
        if zero < 2:
            gradients = stage[c, DENSE] * sizes.layer_gradient
        elif sizes.by_weight:
            gradients = stage[c, LARGEST_TRAINED] * sizes.sharded_gradient
        else:
            at_work, gone, gradients, fetched, out = _unit_at_work(
                stage, c, stream, sizes, whole, trained, weight, reduced, phase
            )
        needed = at_work - gone + gradients + weight * fetched + out
        if needed > fullest:
            fullest, saved, freed, working = needed, stage[c, SAVED], gone, at_work
            of_layer, gathered, summed = gradients, weight * fetched, out
    if zero == 3 and sizes.by_weight:
        gathered = _gathered(stage) * sizes.weight
    if phase == LOSS:
        return 0.0, 0.0, 0.0, 0.0, 0.0, weight * whole[IS_HEAD] if units else gathered, loss
    return saved, freed, working, of_layer, summed, gathered, 0.0


@compiled
def _unit_at_work(
    stage: Floats,
    c: int,
    stream: float,
    sizes: ParameterBytes,
    whole: tuple[float, float, float],
    trained: tuple[float, float, float],
    weight: float,
    reduced: float,
    phase: int,
) -> tuple[float, float, float, float, float]:
    """Working bytes of a layer whose weights or gradients are sharded, what it saved that is gone, its gradients and
    what their reduction sends, parameters that are whole, and the reduction's result.

    Weights are gathered layer by layer, one ahead; gradients are whole until they are reduced, and what a reduction
    sends is there until the next one. Its result takes `reduced` bytes per parameter.
    """
    own, at_work, saved, kind = stage[c, WHOLE], stage[c, WORKING], stage[c, SAVED], stage[c, KIND]
    block, embedding, head = whole
    updated = stage[c, TRAINED]
    ahead, before, gone = block, 0.0, 0.0
    if kind == IS_BLOCK:
        ahead = embedding if phase == FIRST else block
        before = trained[IS_HEAD] if phase == LAST and head > 0 else updated
        if stage[c, COUNT] > 1 and (updated - before) * sizes.reduce_buffer > saved:
            # the last but one comes after a larger one
            before, gone = updated, saved
    elif kind == IS_EMBEDDING:
        ahead, before = 0.0, trained[IS_BLOCK]
    before *= sizes.reduce_buffer
    # at the end its gradients stand beside what their reduction sends, and its activations are gone; gradients go one
    # by one, but the last, a table's, stays until their sum over shards is there
    sent = updated * (sizes.layer_gradient + sizes.reduce_buffer)
    arrived = stream * (kind != IS_EMBEDDING)
    table = kind == IS_HEAD or (kind == IS_EMBEDDING and stage[c, SECOND] == 0)
    result = updated * reduced if table else 0.0
    if sent + result + arrived - saved > at_work + before + weight * own:
        return arrived, saved, sent, ahead, result
    return at_work, gone, before, own + ahead, 0.0


#: The kind of layer that is at work at each phase, where weights or gradients are sharded layer by layer.
_KIND_OF = (IS_HEAD, IS_HEAD, IS_BLOCK, IS_BLOCK, IS_EMBEDDING, IS_BLOCK)


@compiled
def gathered_parameters(contents: Ints, place: int, profiles: ProfileColumns, profile: int) -> float:
    """Parameters that are whole at once under ZeRO-3 where weights are fetched one by one, of a stage."""
    stage = np.zeros((contents.shape[1], STAGE_COLUMNS))
    nothing = np.zeros((1, contents.shape[1]))
    layers = LayerColumns(nothing, nothing, nothing, nothing, nothing, nothing)
    stage_layers(contents, place, layers, 0, profiles, profile, contents[place], stage)  # of any kind
    return _gathered(stage)


@compiled
def _gathered(stage: Floats) -> float:
    """The largest two weights of a stage.

    No weight is fetched ahead of itself, and one that embedding and head share counts once.
    """
    first, second, shared = 0.0, 0.0, 0.0
    for c in range(len(stage)):
        if stage[c, COUNT] > 0:
            largest, following = stage[c, LARGEST], stage[c, SECOND]
            if stage[c, COUNT] > 1 and following == 0:
                # layers of one weight: it is followed by that of the next layer
                following = largest
            if stage[c, TIED] > 0:
                shared, largest = max(shared, largest), 0.0
            for weight in (largest, following):
                first, second = max(first, weight), max(second, min(first, weight))
    return max(first, shared) + max(second, min(first, shared))
