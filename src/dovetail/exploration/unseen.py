"""The designs of a space not seen yet, in a random order that needs no table."""

from __future__ import annotations

import math

import numpy as np

from dovetail.arrays import Ints, Words
from dovetail.hardware.design_space import DesignSpace


class Unseen:
    """The designs within the limits not seen yet, in an order that depends only on the seed."""

    #: Designs tested at once: few at first, since most asks are small.
    _FEWEST, _MOST = 2**8, 2**16
    #: After this many designs in a row that break a limit, we assume the space has no more.
    _FRUITLESS = 2**24

    def __init__(self, space: DesignSpace, seed: int) -> None:
        self.space = space
        self.seen: set[int] = set()
        self._order = Order(space.size, seed)
        self._next = 0

    def leave_out(self, indices: Ints) -> None:
        """Marks designs as seen."""
        self.seen.update(indices.tolist())

    def take(self, n: int) -> Ints:
        """The next designs, which then count as seen."""
        taken: list[int] = []
        rows, fruitless = self._FEWEST, 0
        while len(taken) < n and self._next < self._order.length and fruitless < self._FRUITLESS:
            stop = min(self._next + rows, self._order.length)
            positions, designs = self._order.between(self._next, stop)
            within_limits = self.space.keeps(designs)
            fruitless = 0 if within_limits.any() else fruitless + stop - self._next
            self._next = stop
            for position, design in zip(
                positions[within_limits].tolist(), designs[within_limits].tolist(), strict=True
            ):
                if design not in self.seen:
                    taken.append(design)
                    if len(taken) == n:
                        self._next = position + 1
                        break
            rows = min(2 * rows, self._MOST)
        self.seen.update(taken)
        return np.array(taken, np.int64)


class Order:
    """All whole numbers below a size, each once, in a random order that needs no table.

    A number is a row and a column of a square; each is shifted in turn by a hash of the other, which is reversible,
    so no two positions collide (a Feistel network: Black and Rogaway, CT-RSA 2002, "generalized Feistel cipher").
    """

    _TURNS = 6

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._cols = math.isqrt(size - 1) + 1
        self._rows = -(-size // self._cols)
        self.length = self._rows * self._cols
        """positions, a few more than there are numbers: those without a number are skipped"""
        self._keys = np.random.SeedSequence(seed).generate_state(self._TURNS, np.uint64)

    def between(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Positions from `start` to before `stop`, and the number at each; positions without one are skipped."""
        positions = np.arange(start, stop, dtype=np.int64)
        row, col = np.divmod(positions.astype(np.uint64), np.uint64(self._cols))
        for turn, key in enumerate(self._keys):
            if turn % 2:
                row = (row + _hashed(col, key) % np.uint64(self._rows)) % np.uint64(self._rows)
            else:
                col = (col + _hashed(row, key) % np.uint64(self._cols)) % np.uint64(self._cols)
        numbers = (row * np.uint64(self._cols) + col).astype(np.int64)
        there = numbers < self._size
        return positions[there], numbers[there]


def _hashed(values: Words, key: np.uint64) -> Words:
    """Bits that look random, the same for the same value and key (the finaliser of SplitMix64)."""
    values = values * np.uint64(0x9E3779B97F4A7C15) + key
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
