"""Compiled search of the recompute frontier: operators from the last to the first, labels by what is still needed."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.compilation import compiled
from dovetail.profile.operator_bits import WORD

#: Columns of a label: saved bytes, footprint while the backward runs, seconds added.
SAVED, FOOTPRINT, SECONDS = range(3)
#: Columns of an operator's table, one row for each set of its results that recomputed operators need.
NEEDED, SAVE_BYTES, SAVE_S, RECOMPUTE_BYTES, RECOMPUTE_S = range(5)


@compiled
def search(bits: Ints, tables: Floats, reads: Ints, last_table: Floats, last_bits: Ints) -> tuple[Floats, Ints]:
    """Labels of the frontier and, for each, the recomputed steps as bits of two words.

    Steps are operators from the last to the first. `bits[k]` are the places, in a state, of the results of step k that
    recomputed operators may need (−1: none), `tables[k]` the cost of saving and of recomputing it for every set of
    them, and `reads[k]` the bits that recomputing it sets. A state says what is needed of undecided operators. Within
    one state we drop dominated labels: whatever follows costs all of them the same.
    """
    states = np.zeros(1, np.int64)
    starts = np.array([0, 1], np.int64)
    labels = np.zeros((1, 3))
    recomputed = np.zeros((1, 2), np.int64)
    for k in range(len(bits)):
        states, starts, labels, recomputed = _step(k, bits[k], tables[k], reads[k], states, starts, labels, recomputed)
    # the inputs of the layer can only be saved: one state is left
    frontier, choices = np.zeros((0, 3)), np.zeros((0, 2), np.int64)
    for s in range(len(states)):
        row = last_table[_row(states[s], last_bits)]
        part, part_choices = _moved(
            labels, recomputed, starts[s], starts[s + 1], row[SAVE_BYTES], row[SAVE_BYTES], row[SAVE_S], -1
        )
        frontier, choices = _merged(frontier, choices, part, part_choices)
    return frontier, choices


@compiled
def _step(
    k: int, bits: Ints, table: Floats, reads: int, states: Ints, starts: Ints, labels: Floats, recomputed: Ints
) -> tuple[Ints, Ints, Floats, Ints]:
    """Decides one operator in every state: dropped, saved or recomputed."""
    written = 0
    for bit in bits:
        if bit >= 0:
            written |= 1 << bit
    new_states = np.empty(2 * len(states), np.int64)
    parts = [labels[:0]]
    choices = [recomputed[:0]]
    count = 0
    for s in range(len(states)):
        row = table[_row(states[s], bits)]
        rest = states[s] & ~written
        for recompute in range(2 if row[NEEDED] else 1):
            state = rest | reads if recompute else rest
            bytes_saved = 0.0 if recompute else row[SAVE_BYTES]
            footprint = row[RECOMPUTE_BYTES] if recompute else row[SAVE_BYTES]
            seconds = row[RECOMPUTE_S] if recompute else row[SAVE_S]
            bit = k if recompute else -1
            part, choice = _moved(labels, recomputed, starts[s], starts[s + 1], bytes_saved, footprint, seconds, bit)
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


@compiled
def _joined(states: Ints, parts: list[Floats], choices: list[Ints]) -> tuple[Ints, Ints, Floats, Ints]:
    """The labels of all states in one array."""
    starts = np.zeros(len(states) + 1, np.int64)
    for n in range(len(states)):
        starts[n + 1] = starts[n] + len(parts[n + 1])
    labels = np.empty((starts[-1], 3))
    recomputed = np.empty((starts[-1], 2), np.int64)
    for n in range(len(states)):
        labels[starts[n] : starts[n + 1]] = parts[n + 1]
        recomputed[starts[n] : starts[n + 1]] = choices[n + 1]
    return states, starts, labels, recomputed


@compiled
def _row(state: int, bits: Ints) -> int:
    """Which set of an operator's results is needed."""
    row = 0
    for n in range(len(bits)):
        if bits[n] >= 0 and state >> bits[n] & 1:
            row |= 1 << n
    return row


@compiled
def _moved(
    labels: Floats, recomputed: Ints, start: int, end: int, saved: float, footprint: float, seconds: float, bit: int
) -> tuple[Floats, Ints]:
    """Labels with a cost added: their order stays."""
    part = labels[start:end].copy()
    choice = recomputed[start:end].copy()
    for i in range(end - start):
        part[i, SAVED] += saved
        part[i, FOOTPRINT] += footprint
        part[i, SECONDS] += seconds
        if bit >= 0:
            choice[i, bit // WORD] |= 1 << (bit % WORD)
    return part, choice


@compiled
def _before(one: Floats, other: Floats) -> bool:
    """Order of labels: saved bytes, seconds, footprint. Nothing dominates a label that comes before it."""
    if one[SAVED] != other[SAVED]:
        return one[SAVED] < other[SAVED]
    if one[SECONDS] != other[SECONDS]:
        return one[SECONDS] < other[SECONDS]
    return one[FOOTPRINT] < other[FOOTPRINT]


@compiled
def _merged(one: Floats, one_choice: Ints, other: Floats, other_choice: Ints) -> tuple[Floats, Ints]:
    """The labels of both that none of them dominates, in order."""
    most = len(one) + len(other)
    labels, recomputed = np.empty((most, 3)), np.empty((most, 2), np.int64)
    # seconds and footprints of the labels so far that no other beats in both: seconds fall, footprints grow
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
        recomputed[count] = choice
        count += 1
    return labels[:count], recomputed[:count]
