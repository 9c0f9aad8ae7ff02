"""Compiled bounds of plans whose cut is still open."""
# numba ships no types
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportMissingTypeStubs=false

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dovetail.search.plan_kernels import DUAL_PIPE, GPIPE, ONE_F_ONE_B, Cells, Facts, Layers, Plans, flights_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@njit(cache=True)
def least_seconds(
    plans: Plans,
    memory: Ints,
    layers: Layers,
    cells: Cells,
    state_bytes: Floats,
    blocks: Ints,
    ends: Ints,
    facts: Facts,
    capacity: float,
) -> Floats:
    """Seconds that the pipeline of a plan takes at least however its blocks are cut; infinite where no cut fits.

    Bytes are those of the layer rows `memory`, beside `state_bytes` (plans × classes) that every layer keeps. Some
    stage has a p-th of all seconds, and of every class's blocks a p-th, rounded up, or more where others are full:
    1F1B's step is then no shorter than T + (m − 1 − (h − 1)·φ)·t, with T all seconds of a microbatch, t that stage's,
    h the microbatches in flight and φ the largest part of a layer's seconds that its forward takes
    (`bottleneck_bound`, with every F at most φ·t).
    """
    n, classes = len(plans.layer), len(blocks)
    found = np.empty(n)
    room = np.empty(plans.stages.max() if n else 1, np.int64)
    for i in range(n):
        row, cell, p, m = plans.layer[i], plans.cell[i], plans.stages[i], plans.microbatches[i]
        total, share, lightest = 0.0, 0.0, np.inf
        sending = plans.sending_s[i] if p > 1 else 0.0
        for c in range(classes):
            seconds = layers.forward_s[row, c] + layers.input_gradient_s[row, c] + layers.weight_gradient_s[row, c]
            total += (blocks[c] + ends[c]) * seconds
            if blocks[c]:
                share = max(share, (layers.forward_s[row, c] + sending) / (seconds + sending))
                lightest = min(lightest, seconds)
            elif ends[c] and seconds > 0:
                share = max(share, (layers.forward_s[row, c] + sending) / (seconds + sending))
        total += p * sending
        fullest = _fullest_stage(
            plans, i, memory[i], layers, cells, cell, state_bytes[i], blocks, facts, capacity, room
        )
        if fullest < 0:
            found[i] = np.inf
            continue
        slowest = total / p
        # stages of two directions share their blocks
        alone = plans.schedule[i] != DUAL_PIPE
        if alone:
            slowest = max(slowest, fullest * lightest + sending)
        for c in range(classes):
            if blocks[c] and alone:
                seconds = layers.forward_s[row, c] + layers.input_gradient_s[row, c] + layers.weight_gradient_s[row, c]
                slowest = max(slowest, -(-blocks[c] // p) * seconds + sending)
        found[i] = m * slowest
        if plans.schedule[i] == ONE_F_ONE_B:
            found[i] = max(found[i], total + max(0.0, m - 1 - (min(m, p) - 1) * share) * slowest)
        elif plans.schedule[i] == GPIPE:
            found[i] = total + (m - 1) * slowest
    return found


@njit(cache=True)
def _fullest_stage(
    plans: Plans,
    i: int,
    row: int,
    layers: Layers,
    cells: Cells,
    cell: int,
    state: Floats,
    blocks: Ints,
    facts: Facts,
    capacity: float,
    room: Ints,
) -> int:
    """Blocks that some stage has at least, given what fits in the others; -1 where blocks are left over."""
    kept, fixed, moment, number = np.inf, np.inf, np.inf, 0
    for c in range(len(blocks)):
        if blocks[c]:
            kept = min(kept, layers.kept[row, c])
            fixed = min(fixed, state[c])
            at_work = layers.workspace[row, c] + cells.transient[cell, c]
            moment = min(moment, at_work)
            number += blocks[c]
    bytes_left = ((capacity - facts.context_bytes) / (1 + facts.allocator)) * (1 + 1e-9)
    p = plans.stages[i]
    in_all, most = 0, 0
    for k in range(p):
        each = fixed + flights_of(plans, i, k) * kept
        held = number if each <= 0 else int(max(min((bytes_left - moment) / each, number), -1.0))
        if k == 0 or k == p - 1:
            # embedding or head alone need no room for a block's backward
            held = max(held, 0)
        if held < 0:
            return -1
        room[k] = held
        in_all += held
        most = max(most, held)
    if in_all < number:
        return -1
    low, high = -(-number // p), most
    while low < high:
        middle = (low + high) // 2
        placed = 0
        for k in range(p):
            placed += min(middle, room[k])
        if placed >= number:
            high = middle
        else:
            low = middle + 1
    return low
