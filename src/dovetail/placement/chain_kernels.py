"""Compiled search of the chain problem: least longest stage by number of stages from the end, then the pipelines."""
# numba ships no types
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportMissingTypeStubs=false

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Rows of a chain's table. The first five are running sums with a 0 ahead, so a stage is a difference of two; of the
#: others column i is what reaches layer i.
FORWARD, BACKWARD, PARAMETERS, ACTIVATIONS, CUT, ARRIVES_S, INPUT_BYTES = range(7)
#: Entries of the limits: bytes of a device, bytes of state per byte of parameters, bytes per second, recompute or not.
MEMORY, STATE, RATE, RECOMPUTE = range(4)


@njit(cache=True)
def best_of_width(
    table: Floats, limits: Floats, width: int, narrow: int, devices: int, microbatches: int, best: float
) -> tuple[float, Ints]:
    """The best time below `best`, and [pipelines, ends of the stages...]; empty where there is none.

    `longest[n, i]` is the least longest stage of the layers from i on, in s stages of which n (up to `narrow`) take
    one device alone. It grows by a stage at the front: s − 1 come behind, which is all that memory needs to know.
    """
    layers = table.shape[1] - 1
    longest = np.full((narrow + 1, layers + 1), np.inf)
    choice = np.zeros((layers + 1, narrow + 1, layers + 1), np.int64)
    answer = np.zeros(0, np.int64)
    for s in range(1, layers + 1):
        fewest = (s - min(s, narrow)) * width + min(s, narrow)
        most = min(devices // fewest, microbatches)
        if most < 1:
            break
        # with so many stages at least, on as few devices as they may take, a longer one cannot beat the best
        too_long = best / ((microbatches + most - 1) // most + s - 1)
        for end in range(layers if s == 1 else 1, layers - s + 2):
            load = _load(table, limits, 0, end, s, too_long)
            if load == np.inf:
                break
            alone = 1 if narrow > 0 and table[CUT, end] == table[CUT, 0] else 0
            for n in range(alone, min(s, narrow) + 1):
                found = _with_behind(load, longest, n - alone, end, s)
                used = (s - n) * width + n
                if used > devices or found == np.inf:
                    continue
                reduced_s, most = table[PARAMETERS, end] / limits[RATE], min(devices // used, microbatches)
                value, pipelines = _pipelines(found, s, reduced_s, most, microbatches, best)
                if value < best:
                    best = value
                    answer = _ends(table, choice, s, n, end, narrow, pipelines)
        longest = _grown(table, limits, longest, choice, s, narrow, too_long)
        if np.min(longest) == np.inf:
            break
    return best, answer


@njit(cache=True)
def _grown(
    table: Floats, limits: Floats, longest: Floats, choice: Ints, s: int, narrow: int, too_long: float
) -> Floats:
    """The least longest stage with one stage more; `choice` notes where the one at the front ends."""
    layers = table.shape[1] - 1
    grown = np.full((narrow + 1, layers + 1), np.inf)
    for i in range(1, layers - s + 1):
        for j in range(layers if s == 1 else i + 1, layers - s + 2):
            load = _load(table, limits, i, j, s, too_long)
            if load == np.inf:
                break
            alone = 1 if narrow > 0 and table[CUT, j] == table[CUT, i] else 0
            for n in range(alone, min(s, narrow) + 1):
                found = _with_behind(load, longest, n - alone, j, s)
                if found < grown[n, i]:
                    grown[n, i] = found
                    choice[s, n, i] = j
            worst = grown[0, i]
            for n in range(1, min(s, narrow) + 1):
                worst = max(worst, grown[n, i])
            if _least(table, i, j) >= worst:
                # a stage that ends later only takes longer
                break
    return grown


@njit(cache=True)
def _least(table: Floats, i: int, j: int) -> float:
    """Seconds of a stage without what it hands on: never less for one that ends later."""
    return table[ARRIVES_S, i] + table[FORWARD, j] - table[FORWARD, i] + table[BACKWARD, j] - table[BACKWARD, i]


@njit(cache=True)
def _load(table: Floats, limits: Floats, i: int, j: int, s: int, too_long: float) -> float:
    """Seconds of the stage of layers i to j, the s-th from the end; infinite where it and all longer ones are out."""
    held = table[ACTIVATIONS, j] - table[ACTIVATIONS, i]
    stash = table[INPUT_BYTES, i] if limits[RECOMPUTE] else held
    if limits[STATE] * (table[PARAMETERS, j] - table[PARAMETERS, i]) + held + (s - 1) * stash > limits[MEMORY]:
        return np.inf
    least = _least(table, i, j)
    if least >= too_long:
        return np.inf
    if s == 1:
        return least
    leaves = table[ARRIVES_S, j]
    return least + (max(table[FORWARD, j] - table[FORWARD, i], leaves) if limits[RECOMPUTE] else leaves)


@njit(cache=True)
def _with_behind(load: float, longest: Floats, n: int, j: int, s: int) -> float:
    """The longest of a stage and of those behind it, of which n take one device alone."""
    if s > 1:
        return max(load, longest[n, j])
    return load if n == 0 else np.inf


@njit(cache=True)
def _pipelines(
    longest: float, stages: int, reduced_s: float, most: int, microbatches: int, best: float
) -> tuple[float, int]:
    """The best number of equal pipelines for given stages: of those with equal rounds the fewest."""
    value, chosen = np.inf, 0
    rounds = (microbatches + most - 1) // most
    while True:
        pipelines = (microbatches + rounds - 1) // rounds
        step = longest * (rounds + stages - 1)
        if step >= min(best, value):
            return value, chosen
        found = step + 4 * (pipelines - 1) / pipelines * reduced_s
        if found < value:
            value, chosen = found, pipelines
        if pipelines == 1:
            return value, chosen
        rounds = (microbatches + pipelines - 2) // (pipelines - 1)


@njit(cache=True)
def _ends(
    table: Floats, choice: Ints, stages: int, narrow_stages: int, first_end: int, narrow: int, pipelines: int
) -> Ints:
    """The number of pipelines, and where every stage ends."""
    answer = np.empty(stages + 1, np.int64)
    answer[0] = pipelines
    i, j, n = 0, first_end, narrow_stages
    for k in range(stages):
        answer[1 + k] = j
        if narrow > 0 and table[CUT, j] == table[CUT, i]:
            n -= 1
        left = stages - 1 - k
        if left > 0:
            i, j = j, choice[left, n, j]
    return answer
