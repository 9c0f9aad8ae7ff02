"""Compiled conversions between all layouts of a tensor: the collectives of `layout.convert`, and their seconds."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Array, Floats, Ints
from dovetail.compilation import compiled

#: Placements along an axis by number: replicated, partial sum, flat shard; the tensor's dims follow.
WHOLE, OPEN, FLAT_SHARD, FIRST_DIM = range(4)
#: Kinds of collectives in the order a conversion runs them; a slice costs nothing.
REDUCE_SCATTER, ALL_TO_ALL, ALL_REDUCE, ALL_GATHER = range(4)
#: The weight of an impossible conversion; no real one weighs as much.
UNREACHABLE = 1 << 20


@compiled
def _kind(old: int, new: int) -> int:
    if old == WHOLE:
        return -1
    if old == OPEN:
        return ALL_REDUCE if new == WHOLE else REDUCE_SCATTER
    return ALL_GATHER if new == WHOLE else ALL_TO_ALL


@compiled
def _changes(before: Ints, after: Ints, olds: Ints, news: Ints, bits: Ints) -> int:
    """Writes each axis's change, in one step or two; returns how many there are, or −1 if it is impossible."""
    exchanged = -1
    for axis in range(len(before)):
        old, new = before[axis], after[axis]
        if new == OPEN and old != OPEN:
            return -1
        if exchanged < 0 and old != new and _kind(old, new) == ALL_TO_ALL:
            exchanged = new
    changes = 0
    for axis in range(len(before)):
        old, new = before[axis], after[axis]
        if old == new:
            continue
        olds[changes], news[changes], bits[changes] = old, new, 1 << axis
        if exchanged >= 0 and _kind(old, new) == ALL_REDUCE:
            # an all-reduce is a reduce-scatter and an all-gather: the exchange in between then moves only a shard
            news[changes] = exchanged
            changes += 1
            olds[changes], news[changes], bits[changes] = exchanged, WHOLE, 1 << axis
        changes += 1
    return changes


@compiled
def _collectives(sharded: int, olds: Ints, news: Ints, bits: Ints, sets: int, steps: Ints) -> tuple[int, int, int]:
    """Writes the collectives of changes, equal ones in one; returns how many, their weight and whether they gather."""
    changes, count, weight, only = len(olds), 0, 0, True
    done = np.zeros(changes, np.bool_)
    for kind in range(-1, 4):
        for first in range(changes):
            if done[first] or _kind(olds[first], news[first]) != kind:
                continue
            mask = 0
            for other in range(first, changes):
                if olds[other] == olds[first] and news[other] == news[first]:
                    mask |= bits[other]
                    done[other] = True
            moved = sharded & ~mask if news[first] == WHOLE else sharded | mask
            if kind >= 0:
                larger = moved if kind == ALL_GATHER else sharded
                steps[count] = (kind * sets + mask) * sets + larger
                count += 1
                weight += 1024 + (kind == ALL_REDUCE)
                only = only and kind == ALL_GATHER
            sharded = moved
    return count, weight, (1 if only else 0) + (2 if only and weight > 0 else 0)


@compiled
def conversions(layouts: Ints) -> tuple[Array, Array, Array]:
    """Every layout into every other: its collectives, the weight, and whether it only gathers.

    `layouts` are layouts × axes, axes in order of their names. A collective is a place in prices by kind, axes that
    take part and axes that shard the tensor on the larger side (both as bits); 0, which nothing takes part in, fills
    up. A conversion weighs 2^10 per collective and 1 per all-reduce. In the last result bit 0 says that only gathers
    (and slices) happen, bit 1 that a gather does.
    """
    count, axes = layouts.shape
    # an axis makes one change, or two if its all-reduce is split
    olds, news, bits = np.zeros(2 * axes, np.int64), np.zeros(2 * axes, np.int64), np.zeros(2 * axes, np.int64)
    steps, found, most = np.zeros((count, count, 2 * axes), np.int32), np.zeros(2 * axes, np.int64), 0
    weights = np.full((count, count), UNREACHABLE, np.int32)
    gathers = np.zeros((count, count), np.int8)
    for b in range(count):
        sharded = 0
        for axis in range(axes):
            if layouts[b, axis] != WHOLE and layouts[b, axis] != OPEN:
                sharded |= 1 << axis
        for a in range(count):
            changes = _changes(layouts[b], layouts[a], olds, news, bits)
            if changes >= 0:
                number, weights[b, a], gathers[b, a] = _collectives(
                    sharded, olds[:changes], news[:changes], bits[:changes], 1 << axes, found
                )
                steps[b, a, :number] = found[:number]
                most = max(most, number)
    return steps[:, :, :most].copy(), weights, gathers


@compiled
def conversion_seconds(steps: Array, prices: Floats) -> Floats:
    """Seconds of every conversion by price: `prices` are by price and place."""
    count, most = steps.shape[0], steps.shape[2]
    seconds = np.zeros((len(prices), count, count))
    for price in range(len(prices)):
        for b in range(count):
            for a in range(count):
                total = 0.0
                for step in range(most):
                    total += prices[price, steps[b, a, step]]
                seconds[price, b, a] = total
    return seconds
