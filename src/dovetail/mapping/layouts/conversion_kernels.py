"""Compiled conversions between all layouts of a tensor: what `layout.convert` would have it send, priced."""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.arrays import Floats, Ints

#: Placements along an axis by number: whole, a sum not complete, a flat shard; the tensor's dims follow.
WHOLE, OPEN, FLAT_SHARD, FIRST_DIM = range(4)
#: Kinds of collectives in the order in which a conversion takes them; a slice costs nothing.
REDUCE_SCATTER, ALL_TO_ALL, ALL_REDUCE, ALL_GATHER = range(4)
#: What no conversion weighs: from a layout that cannot become the other.
UNREACHABLE = 1 << 20


@njit(cache=True)
def _kind(old: int, new: int) -> int:
    if old == WHOLE:
        return -1
    if old == OPEN:
        return ALL_REDUCE if new == WHOLE else REDUCE_SCATTER
    return ALL_GATHER if new == WHOLE else ALL_TO_ALL


@njit(cache=True)
def _changes(before: Ints, after: Ints, olds: Ints, news: Ints, bits: Ints) -> int:
    """What each axis does, in one step or two; how many changes there are, and −1 where the layout cannot be made."""
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
            # an all-reduce is a reduce-scatter and an all-gather: what is exchanged in between is then a piece
            news[changes] = exchanged
            changes += 1
            olds[changes], news[changes], bits[changes] = exchanged, WHOLE, 1 << axis
        changes += 1
    return changes


@njit(cache=True)
def _priced(sharded: int, olds: Ints, news: Ints, bits: Ints, prices: Floats, seconds: Floats) -> tuple[int, int]:
    """Adds up the seconds of changes, those that are alike in one collective; what they weigh, whether they gather."""
    changes, weight, only = len(olds), 0, True
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
                for price in range(len(prices)):
                    seconds[price] += prices[price, kind, mask, larger]
                weight += 1024 + (kind == ALL_REDUCE)
                only = only and kind == ALL_GATHER
            sharded = moved
    return weight, (1 if only else 0) + (2 if only and weight > 0 else 0)


@njit(cache=True)
def conversions(layouts: Ints, prices: Floats) -> tuple[Floats, Ints, Ints]:
    """Every layout into every other: seconds by kind of price, how much it weighs, and whether it only gathers.

    `layouts` are layouts × axes, axes in order of their names. `prices` are by price, kind, axes that take part and
    axes that cut the tensor on the larger side (both as bits). A conversion weighs 2^10 for every collective and 1 for
    every all-reduce. Of the last result bit 0 says that nothing but gathers (and slices) happens, bit 1 that one does.
    """
    count, axes = layouts.shape
    seconds = np.zeros((len(prices), count, count))
    weights = np.full((count, count), UNREACHABLE, np.int64)
    gathers = np.zeros((count, count), np.int64)
    # an axis makes one change, or two where an all-reduce is taken apart
    olds, news, bits = np.zeros(2 * axes, np.int64), np.zeros(2 * axes, np.int64), np.zeros(2 * axes, np.int64)
    paid = np.zeros(len(prices))
    for b in range(count):
        sharded = 0
        for axis in range(axes):
            if layouts[b, axis] != WHOLE and layouts[b, axis] != OPEN:
                sharded |= 1 << axis
        for a in range(count):
            changes = _changes(layouts[b], layouts[a], olds, news, bits)
            if changes >= 0:
                paid[:] = 0.0
                found = _priced(sharded, olds[:changes], news[:changes], bits[:changes], prices, paid)
                weights[b, a], gathers[b, a] = found
                seconds[:, b, a] = paid
    return seconds, weights, gathers
