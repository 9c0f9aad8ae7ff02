"""Compiled bounds of what stages wait for, whatever the partition."""

from __future__ import annotations

from dovetail.arrays import TOLERANCE
from dovetail.compilation import compiled

#: Halvings of the span between what is possible and what is not.
HALVINGS = 12


@compiled
def with_bubble(total: float, least: float, p: int, m: int, v: int) -> float:
    """The shortest interleaved step by what its stages wait for, whatever the partition; `least` without that.

    A stage reaches chunk c of the first micro-batch when that has been through all chunks before, and has then worked
    at most on a group of at most p micro-batches in its own earlier chunks: the rest it waited. Summed over the stages,
    and with the last micro-batch's way back, the waits are at least Σ (p − 1 − s)·w(s, c), w being the seconds of a
    micro-batch in a chunk. This holds for every c, so for their mean: Σ (p − 1 − s)·W(s) / v. A step of T seconds
    leaves each stage W(s) ≤ T / m, and the sum is least where the last stages are full. So p·T ≥ m·total + that.
    """
    low, high = max(least, m * total / p), max(least, m * total / p) + total
    if _waits(total, low / m, p) / v + m * total <= p * low:
        return low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _waits(total, middle / m, p) / v + m * total <= p * middle:
            high = middle
        else:
            low = middle
    return low


@compiled
def _waits(total: float, most: float, p: int) -> float:
    """Σ (p − 1 − s)·W(s) at least, where stages have `total` together and `most` each."""
    full = min(int(total / most), p)
    return most * full * (full - 1) / 2 + max(total - full * most, 0.0) * min(full, p - 1)


@compiled
def left_by_stay(step: float, spare: float, to_come: float, m: int, h: int) -> float:
    """Seconds of a micro-batch that a stage may take at most, with h < m of them in flight in 1F1B.

    A step takes every forward and backward once, the links there and back, and the longest stay at a stage. A stay has
    t seconds of the stage's own and a trip through those behind it: trip + max(turns·t, (turns − rounds·(h − 1))·t +
    rounds·trip), with m − h turns (`partition.stage_split_kernels`). `spare` is what the step leaves for it, and
    `to_come` what a micro-batch takes at this stage, at those behind and on the links between, trip + t. The more
    layers the stages before have taken, the less there is to come: filling stages greedily still places most.
    """
    turns, spare = m - h, spare + TOLERANCE * step
    rounds = (turns - 1) // h
    most = step / m
    for own, trips in ((turns, 1), (turns - rounds * (h - 1), 1 + rounds)):
        left = spare - trips * to_come
        if own > trips:
            most = min(most, left / (own - trips))
        elif left < 0.0:
            return -step
    return most
