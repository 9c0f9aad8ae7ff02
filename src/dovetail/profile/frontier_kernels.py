"""Compiled search of the recompute frontier: operators from the last to the first, labels by what is still wanted."""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.arrays import Floats, Ints
from dovetail.profile.operator_bits import WORD

#: Columns of a label: bytes kept, bytes of the layer while its backward runs, seconds added.
KEPT, FOOTPRINT, SECONDS = range(3)
#: Columns of an operator's table, one row for each set of its results that repeated operators want.
WANTED, HELD_BYTES, HELD_S, AGAIN_BYTES, AGAIN_S = range(5)


@njit(cache=True)
def search(bits: Ints, tables: Floats, reads: Ints, last_table: Floats, last_bits: Ints) -> tuple[Floats, Ints]:
    """Labels of the frontier and, for each, the steps that were repeated as bits of two words.

    Steps are operators from the last to the first. `bits[k]` are the places, in a state, of the results of step k that
    repeated operators may want (−1: none), `tables[k]` what holding and repeating it cost for every set of them, and
    `reads[k]` the state's bits that repeating it sets. A state is what is wanted of operators not yet decided; labels
    of one state that another label of it dominates can be dropped, since what follows costs them the same.
    """
    states = np.zeros(1, np.int64)
    starts = np.array([0, 1], np.int64)
    labels = np.zeros((1, 3))
    chosen = np.zeros((1, 2), np.int64)
    for k in range(len(bits)):
        states, starts, labels, chosen = _step(k, bits[k], tables[k], reads[k], states, starts, labels, chosen)
    # what the layer was handed can only be held: one state is left
    found, choices = np.zeros((0, 3)), np.zeros((0, 2), np.int64)
    for s in range(len(states)):
        row = last_table[_row(states[s], last_bits)]
        part, again = _moved(
            labels, chosen, starts[s], starts[s + 1], row[HELD_BYTES], row[HELD_BYTES], row[HELD_S], -1
        )
        found, choices = _merged(found, choices, part, again)
    return found, choices


@njit(cache=True)
def _step(
    k: int, bits: Ints, table: Floats, reads: int, states: Ints, starts: Ints, labels: Floats, chosen: Ints
) -> tuple[Ints, Ints, Floats, Ints]:
    """One operator decided in every state: dropped, held or repeated."""
    own = 0
    for bit in bits:
        if bit >= 0:
            own |= 1 << bit
    new_states = np.empty(2 * len(states), np.int64)
    parts = [labels[:0]]
    choices = [chosen[:0]]
    count = 0
    for s in range(len(states)):
        row = table[_row(states[s], bits)]
        rest = states[s] & ~own
        for again in range(2 if row[WANTED] else 1):
            state = rest | reads if again else rest
            bytes_kept = 0.0 if again else row[HELD_BYTES]
            footprint = row[AGAIN_BYTES] if again else row[HELD_BYTES]
            seconds = row[AGAIN_S] if again else row[HELD_S]
            bit = k if again else -1
            part, choice = _moved(labels, chosen, starts[s], starts[s + 1], bytes_kept, footprint, seconds, bit)
            place = -1
            for n in range(count):
                if new_states[n] == state:
                    place = n
            if place < 0:
                new_states[count] = state
                count += 1
                parts.append(part)
                choices.append(choice)
            else:
                parts[place + 1], choices[place + 1] = _merged(parts[place + 1], choices[place + 1], part, choice)
    return _joined(new_states[:count], parts, choices)


@njit(cache=True)
def _joined(states: Ints, parts: list[Floats], choices: list[Ints]) -> tuple[Ints, Ints, Floats, Ints]:
    """The labels of all states in one array."""
    starts = np.zeros(len(states) + 1, np.int64)
    for n in range(len(states)):
        starts[n + 1] = starts[n] + len(parts[n + 1])
    labels = np.empty((starts[-1], 3))
    chosen = np.empty((starts[-1], 2), np.int64)
    for n in range(len(states)):
        labels[starts[n] : starts[n + 1]] = parts[n + 1]
        chosen[starts[n] : starts[n + 1]] = choices[n + 1]
    return states, starts, labels, chosen


@njit(cache=True)
def _row(state: int, bits: Ints) -> int:
    """Which set of an operator's results is wanted."""
    row = 0
    for n in range(len(bits)):
        if bits[n] >= 0 and state >> bits[n] & 1:
            row |= 1 << n
    return row


@njit(cache=True)
def _moved(
    labels: Floats, chosen: Ints, start: int, end: int, kept: float, footprint: float, seconds: float, bit: int
) -> tuple[Floats, Ints]:
    """Labels with a cost added: their order stays."""
    part = labels[start:end].copy()
    choice = chosen[start:end].copy()
    for i in range(end - start):
        part[i, KEPT] += kept
        part[i, FOOTPRINT] += footprint
        part[i, SECONDS] += seconds
        if bit >= 0:
            choice[i, bit // WORD] |= 1 << (bit % WORD)
    return part, choice


@njit(cache=True)
def _before(one: Floats, other: Floats) -> bool:
    """Order of labels: bytes kept, seconds, footprint. Nothing dominates a label that comes before it."""
    if one[KEPT] != other[KEPT]:
        return one[KEPT] < other[KEPT]
    if one[SECONDS] != other[SECONDS]:
        return one[SECONDS] < other[SECONDS]
    return one[FOOTPRINT] < other[FOOTPRINT]


@njit(cache=True)
def _merged(one: Floats, one_choice: Ints, other: Floats, other_choice: Ints) -> tuple[Floats, Ints]:
    """The labels of both that none of them dominates, in order."""
    most = len(one) + len(other)
    labels, chosen = np.empty((most, 3)), np.empty((most, 2), np.int64)
    # seconds and footprints of labels so far that none so far beats in both: the seconds fall, the footprints grow
    stair_s, stair_f = np.empty(most), np.empty(most)
    count, height, i, j = 0, 0, 0, 0
    while i < len(one) or j < len(other):
        if j == len(other) or (i < len(one) and not _before(other[j], one[i])):
            label, choice = one[i], one_choice[i]
            i += 1
        else:
            label, choice = other[j], other_choice[j]
            j += 1
        dominated = False
        for n in range(height - 1, -1, -1):
            if stair_f[n] <= label[FOOTPRINT] and stair_s[n] <= label[SECONDS]:
                dominated = True
                break
        if dominated:
            continue
        left = 0
        for n in range(height):
            if not (label[FOOTPRINT] <= stair_f[n] and label[SECONDS] <= stair_s[n]):
                stair_s[left], stair_f[left] = stair_s[n], stair_f[n]
                left += 1
        stair_s[left], stair_f[left] = label[SECONDS], label[FOOTPRINT]
        height = left + 1
        labels[count] = label
        chosen[count] = choice
        count += 1
    return labels[:count], chosen[:count]
