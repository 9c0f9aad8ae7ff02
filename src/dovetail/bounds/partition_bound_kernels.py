"""Compiled lower bounds of plans whose partition is still open."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.arrays import TOLERANCE, Floats, Ints
from dovetail.bounds.waiting_kernels import HALVINGS, left_by_stay, with_bubble
from dovetail.compilation import compiled
from dovetail.frameworks import ParameterBytes
from dovetail.pipeline.compiled_formulas import chunk_runs_in_flight, in_flight_of_chunk
from dovetail.plans.pipeline_schedule import DUAL_PIPE, INTERLEAVED, ONE_F_ONE_B, ZB_H1
from dovetail.step.compiled_formulas import tensor_capacity, transient_peak
from dovetail.step.partition_table import LayerRuns
from dovetail.step.plan_columns import FrameworkColumns, LayerColumns, PlanColumns, ProfileColumns


class BoundRows(NamedTuple):
    """Of each bound: the plan it is of, and the layer rows that have its seconds and its bytes."""

    plan: Ints
    seconds: Ints
    memory: Ints


@compiled
def least_seconds(
    plans: PlanColumns,
    rows: BoundRows,
    layers: LayerColumns,
    profiles: ProfileColumns,
    state_bytes: Floats,
    chain: LayerRuns,
    facts: FrameworkColumns,
    capacity: float,
    limit_s: Floats,
) -> Floats:
    """Lower bounds of a plan's pipeline over all partitions of its blocks; infinite where none fits.

    Beside the bytes of layer rows every layer has its `state_bytes` (plans × classes). Where nothing below `limit_s`
    (by plan) is possible, the bound stops there, and whether anything fits may stay open.
    """
    n, classes = len(rows.plan), len(chain.blocks)
    bounds, most = np.empty(n), 1
    for stages in plans.stages:
        most = max(most, stages)
    block_capacity, transients, seconds = np.empty(most, np.int64), np.empty(classes), np.empty(classes)
    # of the pipeline of the row `counted`: many rows in a row have the same
    flights, free, counted = np.empty((3, most), np.int64), np.empty((2, most)), -1
    bytes_left = tensor_capacity(capacity, facts.context_bytes, facts.allocator) * (1 + TOLERANCE)
    for j in range(n):
        i, row, memory = int(rows.plan[j]), int(rows.seconds[j]), int(rows.memory[j])
        p = plans.stages[i]
        sending = plans.sending_s[i] if p > 1 else 0.0
        total, share = p * sending, 0.0
        # the first micro-batch waits for every transfer on its way there and back
        waiting = 2 * (p - 1) * plans.delay_s[i]
        for c in range(classes):
            seconds[c] = layers.forward_s[row, c] + layers.input_gradient_s[row, c] + layers.weight_gradient_s[row, c]
            total += (chain.blocks[c] + chain.first[c] + chain.after[c]) * seconds[c]
        # as if every stage had a fair share
        least = plans.microbatches[i] * total / p
        if plans.schedule[i] not in (INTERLEAVED, DUAL_PIPE, ZB_H1):
            least = max(least, total + waiting)
        if plans.schedule[i] == INTERLEAVED and plans.group[i] <= p and least < limit_s[i]:
            least = with_bubble(total, least, p, plans.microbatches[i], plans.chunks[i])
        if least >= limit_s[i]:
            bounds[j] = least
            continue
        for c in range(classes):
            if seconds[c] > 0:
                share = max(share, (layers.forward_s[row, c] + sending) / (seconds[c] + sending))
            transients[c] = _transient_of(c, layers, memory, profiles, plans.profile[i], chain, facts.alone)
        saved, state = layers.saved[memory], state_bytes[i]
        if plans.schedule[i] in (INTERLEAVED, DUAL_PIPE):
            if counted < 0 or not _same_pipeline(plans, counted, i):
                _count_flights(plans, i, flights)
                counted = i
            _count_free(plans, i, saved, transients, state, chain, bytes_left, flights, free)
            bounds[j] = _by_class(
                plans, i, saved, transients, state, seconds, (total, sending), chain, flights, free, block_capacity
            )
        else:
            pipeline = (total, waiting, sending, share if plans.schedule[i] == ONE_F_ONE_B else 0.0)
            bounds[j] = _by_stage(plans, i, saved, transients, state, seconds, pipeline, chain, bytes_left, limit_s[i])
    return bounds


@compiled
def _by_class(
    plans: PlanColumns,
    i: int,
    saved: Floats,
    transients: Floats,
    state: Floats,
    seconds: Floats,
    pipeline: tuple[float, float],
    chain: LayerRuns,
    flights: Ints,
    free: Floats,
    block_capacity: Ints,
) -> float:
    """A bound where stages hold several chunks: some stage has a p-th of all seconds, and of each class what it must.

    Stages of two directions share their blocks: only the first holds for them.
    """
    total, sending = pipeline
    p, m = plans.stages[i], plans.microbatches[i]
    slowest = total / p
    for c in range(len(seconds)):
        if chain.blocks[c]:
            fullest = _fullest_stage(p, saved, transients, state, c, chain, flights, free, block_capacity)
            if fullest < 0:
                return np.inf
            if plans.schedule[i] == INTERLEAVED:
                slowest = max(slowest, fullest * seconds[c] + sending)
    if plans.schedule[i] == INTERLEAVED and plans.group[i] <= p:
        return with_bubble(total, m * slowest, p, m, plans.chunks[i])
    return m * slowest


@compiled
def _by_stage(
    plans: PlanColumns,
    i: int,
    saved: Floats,
    transients: Floats,
    state: Floats,
    seconds: Floats,
    pipeline: tuple[float, float, float, float],
    chain: LayerRuns,
    bytes_left: float,
    limit: float,
) -> float:
    """The shortest step into which all blocks fit where stages are contiguous, by bisection.

    With t seconds of a micro-batch, h of them in flight and F forward seconds at a stage, T seconds at all stages, the
    step is at least before + m·t + max(0, after − (h − 1)·F) for 1F1B, where before and after are the seconds at the
    other stages and of the transfers between, which are in T too: a stage waits for its first input, does its work,
    and its last gradient travels on. F is at most `share`·t, so (m − 1 − (h − 1)·share)·t ≤ step − T, as with a share
    of 0 for GPipe, and m·t ≤ step. Both leave every stage some seconds, and its memory some bytes: filling each stage
    greedily with blocks in their order places the most of them.
    """
    total, waiting = pipeline[:2]
    p, m = plans.stages[i], plans.microbatches[i]
    low = m * total / p
    if plans.schedule[i] != ZB_H1:
        low = max(low, total + waiting)
    if limit < np.inf and not _within(limit, plans, i, saved, transients, state, seconds, pipeline, chain, bytes_left):
        # nothing below the limit; whether anything fits at all is worth knowing
        fits = _within(1e300, plans, i, saved, transients, state, seconds, pipeline, chain, bytes_left)
        return max(low, limit) if fits else np.inf
    high = limit
    if limit == np.inf:
        if not _within(1e300, plans, i, saved, transients, state, seconds, pipeline, chain, bytes_left):
            return np.inf
        high = 2 * low
        while not _within(high, plans, i, saved, transients, state, seconds, pipeline, chain, bytes_left):
            high *= 2
    if low >= high or _within(low, plans, i, saved, transients, state, seconds, pipeline, chain, bytes_left):
        return low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _within(middle, plans, i, saved, transients, state, seconds, pipeline, chain, bytes_left):
            high = middle
        else:
            low = middle
    return low


@compiled
def _within(
    step: float,
    plans: PlanColumns,
    i: int,
    saved: Floats,
    transients: Floats,
    state: Floats,
    seconds: Floats,
    pipeline: tuple[float, float, float, float],
    chain: LayerRuns,
    bytes_left: float,
) -> bool:
    """Whether all blocks fit into stages that a step of so many seconds leaves time for."""
    total, waiting, sending, share = pipeline
    p, m = plans.stages[i], plans.microbatches[i]
    run, left, behind = 0, chain.run_length[0], total
    for k in range(p):
        flights = chunk_runs_in_flight(plans.schedule[i], p, m, plans.chunks[i], plans.group[i], k)
        time_left, free, transient = step / m, bytes_left, 0.0
        rate = m - 1 - (min(m, p - k) - 1) * share
        if rate > 0 and plans.schedule[i] != ZB_H1:
            time_left = min(time_left, (step - total - waiting) / rate)
        if plans.schedule[i] == ONE_F_ONE_B and p - k < m:
            to_come = behind + 2 * (p - 1 - k) * plans.delay_s[i]
            time_left = min(time_left, left_by_stay(step, step - total - waiting, to_come, m, p - k))
        time_left = time_left * (1 + TOLERANCE) - sending
        behind -= sending
        for c in range(len(saved)):
            number = (chain.first[c] if k == 0 else 0) + (chain.after[c] if k == p - 1 else 0)
            if number:
                time_left -= number * seconds[c]
                behind -= number * seconds[c]
                free -= number * (state[c] + flights * saved[c])
                transient = max(transient, transients[c])
        if free < transient or time_left < -TOLERANCE * step:
            return False
        while run < len(chain.run_length):
            c = chain.run_class[run]
            each = state[c] + flights * saved[c]
            fits = float(left)
            if seconds[c] > 0:
                fits = min(fits, np.floor(time_left / seconds[c] + TOLERANCE))
            if each > 0:
                fits = min(fits, np.floor((free - max(transient, transients[c])) / each + TOLERANCE))
            if fits < 1:
                break
            taken = int(fits)
            time_left -= taken * seconds[c]
            behind -= taken * seconds[c]
            free -= taken * each
            transient = max(transient, transients[c])
            left -= taken
            if left > 0:
                break
            run += 1
            left = chain.run_length[run] if run < len(chain.run_length) else 0
    return run == len(chain.run_length)


@compiled
def _fullest_stage(
    p: int,
    saved: Floats,
    transients: Floats,
    state: Floats,
    block: int,
    chain: LayerRuns,
    flights: Ints,
    free: Floats,
    block_capacity: Ints,
) -> int:
    """Blocks of a class that some stage has at least, given what fits in the others; -1 where some are left over.

    `block_capacity` is how many fit in each stage, beside the embedding and head at the ends.
    """
    number = chain.blocks[block]
    # as many in every stage as they need where memory is no matter, if they fit
    low = -(-number // p)
    in_all, placed, most = 0, 0, 0
    for k in range(p):
        if free[0, k] < free[1, k]:
            return -1
        each = state[block] + min(flights[0, k], flights[1, k]) * saved[block]
        transient = max(free[1, k], transients[block])
        fitting = number if each <= 0 else int(max(min((free[0, k] - transient) / each, float(number)), 0.0))
        block_capacity[k] = fitting
        in_all += fitting
        placed += min(low, fitting)
        most = max(most, fitting)
    if in_all < number:
        return -1
    if placed >= number:
        return low
    high = most
    while low < high:
        middle = (low + high) // 2
        placed = 0
        for k in range(p):
            placed += min(middle, block_capacity[k])
        if placed >= number:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def _same_pipeline(plans: PlanColumns, i: int, j: int) -> bool:
    """Whether two rows have as many chunk runs in flight."""
    return (
        plans.schedule[i] == plans.schedule[j]
        and plans.stages[i] == plans.stages[j]
        and plans.microbatches[i] == plans.microbatches[j]
        and plans.chunks[i] == plans.chunks[j]
        and plans.group[i] == plans.group[j]
    )


@compiled
def _count_flights(plans: PlanColumns, i: int, flights: Ints) -> None:
    """Runs in flight at each stage: of its first chunk, of its last, and of all."""
    p, m, v, schedule, group = (
        plans.stages[i],
        plans.microbatches[i],
        plans.chunks[i],
        plans.schedule[i],
        plans.group[i],
    )
    chunks = 2 if schedule == DUAL_PIPE else v
    for k in range(p):
        # later chunks of an interleaved stage have no more in flight than earlier ones
        flights[0, k] = in_flight_of_chunk(schedule, p, m, v, group, k, 0)
        flights[1, k] = in_flight_of_chunk(schedule, p, m, v, group, k, chunks - 1)
        flights[2, k] = chunk_runs_in_flight(schedule, p, m, v, group, k)


@compiled
def _count_free(
    plans: PlanColumns,
    i: int,
    saved: Floats,
    transients: Floats,
    state: Floats,
    chain: LayerRuns,
    bytes_left: float,
    flights: Ints,
    free: Floats,
) -> None:
    """Bytes that each stage of several chunks has left for blocks, and its transient peak.

    Chunks have different numbers of micro-batches in flight, and a block may be in the one with fewest. But where
    chunks have fair shares of the blocks, these save what they do beyond that.
    """
    p, v = plans.stages[i], plans.chunks[i]
    both_ways = plans.schedule[i] == DUAL_PIPE
    chunks = 2 if both_ways else v
    smallest, share = np.inf, 0
    for c in range(len(saved)):
        if chain.blocks[c]:
            smallest = min(smallest, saved[c])
            share += chain.blocks[c]
    share = share // (p * v) if chain.fair_shares else 0
    for k in range(p):
        first, last, runs, whole = flights[0, k], flights[1, k], flights[2, k], chunks
        if k == 0 and not both_ways:
            runs, whole = runs - first, whole - 1
        if k == p - 1 and not both_ways:
            runs, whole = runs - last, whole - 1
        free[0, k], free[1, k] = bytes_left - smallest * share * (runs - whole * min(first, last)), 0.0
        for c in range(len(saved)):
            # stages of two directions hold a part of both ends
            if chain.first[c] and k == 0 and not both_ways:
                free[0, k] -= chain.first[c] * (state[c] + first * saved[c])
                free[1, k] = max(free[1, k], transients[c])
            if chain.after[c] and k == p - 1 and not both_ways:
                free[0, k] -= chain.after[c] * (state[c] + last * saved[c])
                free[1, k] = max(free[1, k], transients[c])


@compiled
def _transient_of(
    c: int,
    layers: LayerColumns,
    row: int,
    profiles: ProfileColumns,
    profile: int,
    chain: LayerRuns,
    sizes: ParameterBytes,
) -> float:
    """The transient peak of a stage with a layer of this class beside its activations, at least.

    Sharded by layers (ZeRO 2 and 3), the first layers work when other activations are gone, and what heads saved is
    gone when others work.
    """
    gradients, working = profiles.dense[profile, c] * sizes.layer_gradient, layers.working[row, c]
    if sizes.by_weight:
        gradients = min(gradients, profiles.largest_trained[profile, c] * sizes.sharded_gradient)
    else:
        gradients = min(gradients, profiles.whole[profile, c] * sizes.reduce_buffer)
        if chain.blocks[c] == 0:
            return profiles.loss[profile, c]
        for other in range(len(chain.after)):
            working -= chain.after[other] * layers.saved[row, other]
    if profiles.trained.shape[1]:
        # frozen layers before it reduce nothing
        gradients = 0.0
    return transient_peak(profiles.loss[profile, c], working, gradients)
