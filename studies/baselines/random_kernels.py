"""Compiled random numbers with explicit state, so that results depend only on the seed."""

from __future__ import annotations

import numpy as np
from numba import njit

from dovetail.arrays import Words

_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)


def random_state(seed: int) -> Words:
    """The initial state for a seed."""
    return np.random.SeedSequence(seed).generate_state(1, np.uint64).astype(np.uint64)


@njit(cache=True)
def bits(state: Words) -> np.uint64:
    """The next 64 random bits (SplitMix64: Steele, Lea and Flood, OOPSLA 2014)."""
    state[0] += _STEP
    mixed = state[0]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


@njit(cache=True)
def below(state: Words, n: int) -> int:
    """A random integer below n, with n < 2^32."""
    return int(np.int64(((bits(state) >> _HALF) * np.uint64(n)) >> _HALF))


@njit(cache=True)
def share(state: Words) -> float:
    """A random number in [0, 1)."""
    return np.float64(bits(state) >> np.uint64(11)) * 2.0**-53
