"""What this processor does at best, measured: operations, loads, bytes by working set, and what it waits for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from cpu_time import cpu_seconds
from numba import njit

from dovetail.arrays import Floats, Ints

#: Bytes of three arrays that fit a cache of each level, and the most that this level is taken to hold.
LEVELS = {
    "L1": (24 << 10, 48 << 10),
    "L2": (960 << 10, 2 << 20),
    "L3": (24 << 20, 64 << 20),
    "memory": (768 << 20, 1 << 62),
}
REPEATS = 7


@njit(fastmath={"nnan", "nsz"})
def _triad(a: Floats, b: Floats, c: Floats, times: int) -> None:
    for k in range(times):
        for i in range(len(a)):
            a[i] = b[i] + (1.0 + k) * c[i]


@njit(fastmath={"nnan", "nsz"})
def _vector(a: Floats, more: Floats, least: Floats, times: int) -> None:
    m0, m1, m2, m3 = more
    l0, l1, l2, l3 = least
    for _ in range(times):
        for i in range(len(a)):
            v = a[i] + m0
            v = (v if v > l0 else l0) + m1
            v = (v if v > l1 else l1) + m2
            v = (v if v > l2 else l2) + m3
            a[i] = v if v > l3 else l3


@njit
def _scalar(more: Floats, times: int) -> float:
    # chains that differ, so that none are put together into a vector; half of it is work on whole numbers
    a, b, c, d = 0.0, 1.0, 2.0, 3.0
    i, j, k, n = 1, 2, 3, 4
    for step in range(times):
        a = max(a + more[0], more[1])
        b = min(b * more[2], more[3])
        c = max(c - more[1], more[0])
        d = min(more[3], d + more[1])
        i = (i + step) ^ 3
        j = (j ^ step) + 7
        k = (k - step) | 1
        n = (n & 1023) + step
    return a + b + c + d + i + j + k + n


@njit
def _dependent(more: Floats, times: int) -> float:
    a = 0.0
    for _ in range(times):
        a = max(a + more[0], more[1])
    return a


@njit
def _gathered(values: Floats, which: Ints, times: int) -> float:
    a, b, c, d, e, f, g, h = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for _ in range(times):
        for i in range(0, len(which), 8):
            a, b = a + values[which[i]], b + values[which[i + 1]]
            c, d = c + values[which[i + 2]], d + values[which[i + 3]]
            e, f = e + values[which[i + 4]], f + values[which[i + 5]]
            g, h = g + values[which[i + 6]], h + values[which[i + 7]]
    return a + b + c + d + e + f + g + h


@njit
def _branches(values: Floats, limit: float, times: int) -> int:
    heavy = 0
    for k in range(times):
        for i in range(len(values)):
            if values[i] < limit:
                heavy = heavy * 3 + i
                if heavy % 7 == 3:
                    heavy ^= k
    return heavy


@dataclass(frozen=True)
class Rates:
    """Per second, and seconds."""

    vector_per_s: float
    scalar_per_s: float
    loads_per_s: float
    bytes_per_s: dict[str, float]
    #: of an addition and a maximum that wait for each other
    dependent_s: float
    branch_s: float

    def level(self, working_set: float) -> str:
        """The nearest cache that holds so many bytes."""
        return next(name for name, (_, most) in LEVELS.items() if working_set <= most)


def measured() -> Rates:
    """All of them, medians as kernels are measured, so that what else the machine does slows both."""
    more, least = np.array([0.5, 0.25, 1 + 1e-9, 1e300]), np.array([1.0, 2.0, 3.0, 4.0])
    row, draw = np.ones(1024), np.random.default_rng(0)
    which, chance = draw.permutation(1024).astype(np.uint64), draw.random(1 << 16)
    bytes_per_s: dict[str, float] = {}
    for name, (size, _) in LEVELS.items():
        a, b, c = np.ones((3, size // 24))
        times = max(1, (256 << 20) // size)
        bytes_per_s[name] = size * times / cpu_seconds(lambda a=a, b=b, c=c, t=times: _triad(a, b, c, t), REPEATS)
    steps = 1 << 20
    branches = cpu_seconds(lambda: _branches(chance, 0.5, 16), REPEATS) - cpu_seconds(
        lambda: _branches(chance, 1.0, 16), REPEATS
    )
    return Rates(
        vector_per_s=8 * 1024 * 2048 / cpu_seconds(lambda: _vector(row, more, least, 2048), REPEATS),
        scalar_per_s=16 * steps / cpu_seconds(lambda: _scalar(more, steps), REPEATS),
        loads_per_s=2 * 1024 * 2048 / cpu_seconds(lambda: _gathered(row, which, 2048), REPEATS),
        bytes_per_s=bytes_per_s,
        dependent_s=cpu_seconds(lambda: _dependent(more, steps), REPEATS) / steps,
        # half of the branches are taken, at random: about half of them are guessed wrongly
        branch_s=max(branches, 0.0) / (16 * len(chance) / 2),
    )
