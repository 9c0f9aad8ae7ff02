"""Compiled evaluation of plans by index: pipeline, what follows it, and the memory of every stage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from dovetail.arrays import Bools, Floats, Ints
from dovetail.placement.longest_path_kernels import through

#: Pipeline schedules as kernels know them.
ONE_F_ONE_B, GPIPE, INTERLEAVED, ZB_H1, DUAL_PIPE = range(5)


class Layers(NamedTuple):
    """Layer rows × classes: seconds of a microbatch, bytes kept of it, bytes there again for its backward."""

    forward_s: Floats
    input_gradient_s: Floats
    weight_gradient_s: Floats
    kept: Floats
    workspace: Floats


class Cells(NamedTuple):
    """Cells × classes: parameters of one chip (tied ones apart, by weight) and bytes that come and go."""

    own: Floats
    tied: Floats
    whole: Floats
    dense: Floats
    largest: Floats
    transient: Floats
    loss: Floats
    #: cells: bytes a stage hands on
    stream: Floats


class States(NamedTuple):
    """State rows × classes: parameters whose state a chip keeps, seconds of reduction and gathering a step."""

    own: Floats
    tied: Floats
    reduction_s: Floats
    gathering_s: Floats


class Cuts(NamedTuple):
    """Layers on stages: every cut has stage contents (classes × count) without repetition, and chunk contents."""

    #: rows × classes; those of cut i begin at row `first_content[i]`
    contents: Ints
    first_content: Ints
    #: by stage: which of the cut's contents; those of cut i begin at `first_stage[i]`
    stage_content: Ints
    first_stage: Ints
    #: by place along the model: which of the cut's chunk contents; and those contents
    chunks: Ints
    first_chunk: Ints
    place_chunk: Ints
    first_place: Ints


class Facts(NamedTuple):
    """What a framework keeps per parameter and hides, with one stage (0) and with several (1)."""

    weight: float
    sharded_weight: float
    gradient: Floats
    optimizer: float
    step_copy: float
    layer_gradient: float
    by_weight: bool
    hidden_reduction: Floats
    hidden_gathering: Floats
    least_room_s: float
    update_s: float
    context_bytes: float
    allocator: float


class Plans(NamedTuple):
    """Plans as numbers of rows, and their pipelines."""

    layer: Ints
    cell: Ints
    state: Ints
    cut: Ints
    schedule: Ints
    stages: Ints
    microbatches: Ints
    chunks: Ints
    #: interleaved: microbatches that pass a chunk before the next one's turn
    group: Ints
    zero_stage: Ints
    #: seconds a stage spends on sending, and seconds its receiver waits
    sending_s: Floats
    delay_s: Floats

    def take(self, rows: Ints) -> Plans:
        """Some of them."""
        return Plans._make(part[rows] for part in self)


@njit(cache=True)
def evaluate_plans(
    plans: Plans, layers: Layers, cells: Cells, states: States, cuts: Cuts, facts: Facts, has_loss: Bools, most: int
) -> tuple[Floats, Floats, Floats]:
    """Seconds of every plan's pipeline, seconds after it, and bytes of its fullest stage.

    Pipelines of schedules other than 1F1B without waiting receivers and GPipe are bounded from below. `most` is the
    largest number of places and stages of any plan.
    """
    n = len(plans.layer)
    pipeline, after, peak = np.empty(n), np.empty(n), np.empty(n)
    forward, backward = np.empty(most), np.empty(most)
    fill, drain = np.empty(most), np.empty(most)
    for i in range(n):
        if i > 0 and _same_pipeline(plans, i):
            pipeline[i] = pipeline[i - 1]
        else:
            _chunk_seconds(plans, layers, cuts, i, forward, backward)
            pipeline[i] = _pipeline(plans, i, forward, backward, fill, drain)
        after[i], peak[i] = _stages(plans, layers, cells, states, cuts, facts, has_loss, i)
    return pipeline, after, peak


@njit(cache=True)
def _same_pipeline(plans: Plans, i: int) -> bool:
    """Whether a plan differs from the one before it in its state alone."""
    same = plans.layer[i] == plans.layer[i - 1] and plans.cut[i] == plans.cut[i - 1]
    same = same and plans.schedule[i] == plans.schedule[i - 1] and plans.microbatches[i] == plans.microbatches[i - 1]
    return same and plans.sending_s[i] == plans.sending_s[i - 1] and plans.delay_s[i] == plans.delay_s[i - 1]


@njit(cache=True)
def _chunk_seconds(plans: Plans, layers: Layers, cuts: Cuts, i: int, forward: Floats, backward: Floats) -> None:
    """Forward and backward of every chunk, with what its stage spends on sending."""
    row, cut = plans.layer[i], plans.cut[i]
    first, place = cuts.first_chunk[cut], cuts.first_place[cut]
    places = cuts.first_place[cut + 1] - place
    classes = cuts.chunks.shape[1]
    sending = plans.sending_s[i]
    last_chunk, f, b = -1, 0.0, 0.0
    for k in range(places):
        chunk = cuts.place_chunk[place + k]
        if chunk != last_chunk:
            f, b = 0.0, 0.0
            for c in range(classes):
                number = cuts.chunks[first + chunk, c]
                if number:
                    f += number * layers.forward_s[row, c]
                    b += number * (layers.input_gradient_s[row, c] + layers.weight_gradient_s[row, c])
            last_chunk = chunk
        forward[k] = f + (sending if k < places - 1 else 0.0)
        backward[k] = b + (sending if k > 0 else 0.0)


@njit(cache=True)
def _pipeline(plans: Plans, i: int, forward: Floats, backward: Floats, fill: Floats, drain: Floats) -> float:
    p, m, v, schedule = plans.stages[i], plans.microbatches[i], plans.chunks[i], plans.schedule[i]
    delay = plans.delay_s[i]
    if schedule == ONE_F_ONE_B:
        return _fill_and_drain(forward, backward, delay, p, m, fill, drain)
    if schedule == GPIPE:
        there, back, slowest, slowest_back = 0.0, 0.0, 0.0, 0.0
        for k in range(p):
            there += forward[k]
            back += backward[k]
            slowest = max(slowest, forward[k])
            slowest_back = max(slowest_back, backward[k])
        return there + back + (m - 1) * (slowest + slowest_back) + 2 * (p - 1) * delay
    longest, before = 0.0, 0.0
    for k in range(p):
        if schedule == INTERLEAVED:
            # its first forward waits for the chunks before it, and after its last backward they come again
            work = 0.0
            for chunk in range(v):
                work += forward[k + chunk * p] + backward[k + chunk * p]
            longest = max(longest, before + m * work)
            before += forward[k] + backward[k] + 2 * delay
        elif schedule == ZB_H1:
            # weight gradients fill the time in which the last input gradients travel back
            longest = max(longest, before + m * (forward[k] + backward[k]))
            before += forward[k] + delay
        else:
            # either direction brings half of the microbatches
            other = forward[p - 1 - k] + backward[p - 1 - k]
            longest = max(longest, m / 2 * (forward[k] + backward[k] + other))
    return longest


@njit(cache=True)
def _fill_and_drain(
    forward: Floats, backward: Floats, delay: float, p: int, m: int, fill: Floats, drain: Floats
) -> float:
    """One plan's `longest_path_kernels.fill_and_drain`: 1F1B's step, or a bound of it where receivers wait."""
    there, back, slowest, slowest_back = -delay, -delay, 0.0, 0.0
    for k in range(p):
        again = min(m, p - k) - 1
        there += delay + forward[k]
        back += delay + backward[k]
        slowest = max(slowest, forward[k])
        slowest_back = max(slowest_back, backward[k])
        fill[k] = there + again * slowest
        drain[k] = back + again * slowest_back
    begin, rest, trip, step = 0.0, 0.0, 0.0, 0.0
    for k in range(p - 1, -1, -1):
        if k < p - 1:
            begin += delay + backward[k + 1]
            rest += delay + forward[k + 1]
            trip += 2 * delay
        begin = max(begin, fill[k])
        rest = max(rest, drain[k])
        whole = forward[k] + backward[k]
        trip += whole
        step = max(step, through(begin, rest, fill[k], drain[k], trip, whole, m, p - k))
    return step


@njit(cache=True)
def _stages(
    plans: Plans,
    layers: Layers,
    cells: Cells,
    states: States,
    cuts: Cuts,
    facts: Facts,
    has_loss: Bools,
    i: int,
) -> tuple[float, float]:
    """Seconds once a step, and bytes of the fullest stage; what depends on a stage's content is found once for it."""
    row, cell, state, cut = plans.layer[i], plans.cell[i], plans.state[i], plans.cut[i]
    p, m, v = plans.stages[i], plans.microbatches[i], plans.chunks[i]
    staged = 1 if p > 1 else 0
    zero = 1 if plans.zero_stage[i] == 2 and p > 1 else plans.zero_stage[i]
    rooms = 1 + (min(p, m) - 1) * (v - 1) / v
    first, count = cuts.first_content[cut], cuts.first_content[cut + 1] - cuts.first_content[cut]
    stage, classes = cuts.first_stage[cut], cuts.contents.shape[1]
    closing, peak = 0.0, 0.0
    for content in range(count):
        place = int(first + content)
        forward, backward, kept, reduction, gathering = 0.0, 0.0, 0.0, 0.0, 0.0
        used, home = _parameters(cuts, place, cells, cell, states, state)
        for c in range(classes):
            number = cuts.contents[place, c]
            if number:
                forward += number * layers.forward_s[row, c]
                backward += number * (layers.input_gradient_s[row, c] + layers.weight_gradient_s[row, c])
                kept += number * layers.kept[row, c]
                reduction += number * states.reduction_s[state, c]
                gathering += number * states.gathering_s[state, c]
        behind, ahead = max(rooms * backward, facts.least_room_s), max(rooms * forward, facts.least_room_s)
        reduced = reduction - min(reduction * facts.hidden_reduction[staged], behind)
        gathered = gathering - min(gathering * facts.hidden_gathering[staged], ahead)
        closing = max(closing, reduced + gathered + home * facts.update_s)
        moment = _moment(cuts, place, layers, row, cells, cell, facts, has_loss, zero)
        fixed = (home * facts.sharded_weight if zero == 3 else used * facts.weight) + (
            (home if zero >= 2 else used) * facts.gradient[staged] + (home if zero >= 1 else used) * facts.optimizer
        )
        step = (home if zero >= 1 else used) * facts.step_copy
        flights = 0.0
        for k in range(p):
            if cuts.stage_content[stage + k] == content:
                flights = max(flights, flights_of(plans, i, k))
        tensors = fixed + max(flights * kept + moment, step)
        peak = max(peak, tensors * (1 + facts.allocator) + facts.context_bytes)
    return closing, peak


@njit(cache=True)
def flights_of(plans: Plans, i: int, k: int) -> float:
    """Microbatches in flight of each chunk of a stage (`in_flight`)."""
    p, m, v, schedule = plans.stages[i], plans.microbatches[i], plans.chunks[i], plans.schedule[i]
    if schedule == GPIPE:
        return float(m)
    if schedule == ONE_F_ONE_B:
        return float(min(m, p - k))
    if schedule == INTERLEAVED:
        return min(m * v, 2 * (p - 1 - k) + (v - 1) * plans.group[i] + 1) / v
    if schedule == ZB_H1:
        return float(min(m, p))
    return (p + 1) / 2


@njit(cache=True)
def _parameters(cuts: Cuts, place: int, cells: Cells, cell: int, states: States, state: int) -> tuple[float, float]:
    """Parameters a stage uses and those it keeps the state of; tied ones once (`stage_parameters`)."""
    used, kept = 0.0, 0.0
    classes = cuts.contents.shape[1]
    for c in range(classes):
        number = cuts.contents[place, c]
        if number:
            used += number * cells.own[cell, c]
            kept += number * states.own[state, c]
    for w in range(cells.tied.shape[2]):
        for c in range(classes):
            if cuts.contents[place, c] and cells.tied[cell, c, w] > 0:
                used += cells.tied[cell, c, w]
                kept += states.tied[state, c, w]
                break
    return used, kept


@njit(cache=True)
def _moment(
    cuts: Cuts,
    place: int,
    layers: Layers,
    row: int,
    cells: Cells,
    cell: int,
    facts: Facts,
    has_loss: Bools,
    zero: int,
) -> float:
    """Bytes of the fullest moment beside state and activations in flight (`stage_memory`)."""
    loss, work, transient, gradients = 0.0, 0.0, 0.0, 0.0
    whole, first, second, shared = 0.0, 0.0, 0.0, -1.0
    for c in range(cuts.contents.shape[1]):
        if cuts.contents[place, c]:
            work = max(work, layers.workspace[row, c])
            if has_loss[c]:
                loss = max(loss, cells.loss[cell, c])
            else:
                transient = max(transient, cells.transient[cell, c])
            largest = cells.largest[cell, c]
            if zero >= 2 and facts.by_weight:
                gradients = max(gradients, largest)
            else:
                gradients = max(gradients, cells.whole[cell, c] if zero >= 2 else cells.dense[cell, c])
            whole = max(whole, cells.whole[cell, c])
            is_tied = False
            for w in range(cells.tied.shape[2]):
                is_tied = is_tied or cells.tied[cell, c, w] > 0
            if is_tied:
                shared = largest if shared < 0 else shared
            else:
                # two of them: one at work and one fetched ahead
                first, second = (largest, largest) if largest >= first else (first, max(second, largest))
    moment = max(loss, work + transient + gradients * facts.layer_gradient)
    if zero == 3:
        if not facts.by_weight:
            return moment + 2 * whole * facts.weight
        if shared > first:
            return moment + (shared + first) * facts.weight
        return moment + (first + max(second, shared)) * facts.weight
    return moment
