"""Layer rows of a search in one place: each is made once, and plans name it by its number."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Bools, Ints
from dovetail.step.plan_columns import LayerColumns


class LayerPool:
    """Rows that are added and stay where they are; those for states with collectives of their own can be looked up."""

    def __init__(self, classes: int) -> None:
        self._size = 0
        self._columns = LayerColumns(*(np.empty((0, classes)) for _ in LayerColumns._fields))
        #: codes of the rows that can be looked up, sorted, and these rows
        self._codes, self._coded_rows = np.zeros(0, np.int64), np.zeros(0, np.int64)

    @property
    def columns(self) -> LayerColumns:
        """All rows so far, for kernels."""
        return LayerColumns(*(column[: self._size] for column in self._columns))

    def add(self, rows: int) -> int:
        """Makes room for so many rows, and returns the first of them."""
        first, self._size = self._size, self._size + rows
        if self._size > len(self._columns.saved):
            capacity = 2 * self._size
            # pages that nobody writes to take no memory
            wider = LayerColumns(*(np.empty((capacity, column.shape[1])) for column in self._columns))
            for old, new in zip(self._columns, wider, strict=True):
                new[:first] = old[:first]
            self._columns = wider
        return first

    def set(self, rows: Ints, columns: LayerColumns) -> None:
        """Writes rows, which are arrays of any shape with their classes along a last axis."""
        for column, values in zip(self._columns, columns, strict=True):
            column[rows] = values

    def unknown(self, codes: Ints) -> Bools:
        """Which of some codes have no row yet."""
        return ~np.isin(codes, self._codes)

    def code(self, codes: Ints, columns: LayerColumns) -> None:
        """Adds a row for each of some codes, which are new."""
        first = self.add(len(codes))
        self.set(first + np.arange(len(codes)), columns)
        joined = np.concatenate([self._codes, codes])
        order = np.argsort(joined)
        rows = np.concatenate([self._coded_rows, first + np.arange(len(codes))])
        self._codes, self._coded_rows = joined[order], rows[order]

    def coded(self, codes: Ints) -> Ints:
        """The rows of codes."""
        return self._coded_rows[np.searchsorted(self._codes, codes)]
