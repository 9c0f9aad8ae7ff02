"""The designs of a space that nobody looked at yet, in a random order of which no table is kept."""

from __future__ import annotations

import math

import numpy as np

from dovetail.arrays import Ints, Words
from dovetail.hardware.design_space import DesignSpace


class Unseen:
    """The kept designs not seen yet, in an order that the seed alone decides."""

    #: Designs looked at together: few at first, for most asks are small.
    _FEWEST, _MOST = 2**8, 2**16
    #: Designs in a row that break a limit, after which a space is taken to hold no more.
    _FRUITLESS = 2**24

    def __init__(self, space: DesignSpace, seed: int) -> None:
        self.space = space
        self.seen: set[int] = set()
        self._order = Order(space.size, seed)
        self._next = 0

    def leave_out(self, indices: Ints) -> None:
        """Counts designs as seen."""
        self.seen.update(indices.tolist())

    def take(self, n: int) -> Ints:
        """The next designs, which are seen from now on."""
        found: list[int] = []
        rows, fruitless = self._FEWEST, 0
        while len(found) < n and self._next < self._order.length and fruitless < self._FRUITLESS:
            stop = min(self._next + rows, self._order.length)
            positions, designs = self._order.between(self._next, stop)
            kept = self.space.keeps(designs)
            fruitless = 0 if kept.any() else fruitless + stop - self._next
            self._next = stop
            for position, design in zip(positions[kept].tolist(), designs[kept].tolist(), strict=True):
                if design not in self.seen:
                    found.append(design)
                    if len(found) == n:
                        self._next = position + 1
                        break
            rows = min(2 * rows, self._MOST)
        self.seen.update(found)
        return np.array(found, np.int64)


class Order:
    """All whole numbers below a size, each once, in a random order of which no table is kept.

    A number is a row and a column of a square; each is shifted in turn by a hash of the other, which can be undone,
    so no two positions meet (a Feistel network: Black and Rogaway, CT-RSA 2002, "generalized Feistel cipher").
    """

    _TURNS = 6

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._cols = math.isqrt(size - 1) + 1
        self._rows = -(-size // self._cols)
        self.length = self._rows * self._cols
        """positions, a few more than there are numbers: those of the others are passed over"""
        self._keys = np.random.SeedSequence(seed).generate_state(self._TURNS, np.uint64)

    def between(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Positions from `start` to before `stop`, and the number at each; positions without one are left out."""
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
