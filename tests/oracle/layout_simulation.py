"""Chips that really hold pieces of a tensor, and do what the steps of a conversion say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from dovetail.layout import PARTIAL, CollectiveKind, Layout
from dovetail.layout.convert import ConversionStep

Array = NDArray[np.float64]
#: A chip: its position along every axis.
Chip = tuple[int, ...]


@dataclass
class Piece:
    """What a chip holds: along each dim some positions, and the numbers there (a term of a sum, where partial)."""

    positions: list[list[int]]
    values: Array

    def part(self, dim: int, index: int, count: int) -> Piece:
        """One of `count` equal parts along a dim."""
        size = len(self.positions[dim]) // count
        chosen = range(index * size, (index + 1) * size)
        positions = [p if i != dim else [p[j] for j in chosen] for i, p in enumerate(self.positions)]
        return Piece(positions, self.values.take(chosen, axis=dim))


def joined(pieces: list[Piece], dim: int) -> Piece:
    """Pieces that differ along one dim, as one."""
    first = pieces[0]
    for i, positions in enumerate(first.positions):
        assert i == dim or all(p.positions[i] == positions for p in pieces)
    together = [n for p in pieces for n in p.positions[dim]]
    positions = [p if i != dim else together for i, p in enumerate(first.positions)]
    return Piece(positions, np.concatenate([p.values for p in pieces], axis=dim))


def summed(pieces: list[Piece]) -> Piece:
    """Terms of one sum, added."""
    assert all(p.positions == pieces[0].positions for p in pieces)
    return Piece(pieces[0].positions, np.sum([p.values for p in pieces], axis=0))


class Chips:
    """A mesh of chips, each with a piece of one tensor."""

    def __init__(self, dims: tuple[str, ...], sizes: Mapping[str, int]) -> None:
        self.dims, self.sizes, self.axes = dims, sizes, tuple(sizes)
        extent = prod(sizes.values())  # divisible however many axes cut a dim
        shape = (extent,) * len(dims)
        self.whole: Array = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float64)
        everything = [list(range(extent)) for _ in dims]
        coordinates = list(product(*(range(n) for n in sizes.values())))
        self.pieces: dict[Chip, Piece] = {chip: Piece(everything, self.whole) for chip in coordinates}

    @classmethod
    def holding(cls, layout: Layout, dims: tuple[str, ...], sizes: Mapping[str, int]) -> Chips:
        """Chips with a tensor in this layout."""
        chips = cls(dims, sizes)
        terms = np.random.default_rng(1)
        for axis in layout.partial:
            for group in chips.groups((axis,)):
                piece = chips.pieces[group[0]]
                others = [terms.integers(-9, 9, piece.values.shape).astype(np.float64) for _ in group[1:]]
                for chip, values in zip(group, [piece.values - sum(others), *others], strict=True):
                    chips.pieces[chip] = Piece(piece.positions, values)
        # replicas of one sum must hold the same terms: draw them once per position along the partial axes
        along = [chips.axes.index(a) for a in layout.partial]
        first = {tuple(chip[i] for i in along): piece for chip, piece in reversed(chips.pieces.items())}
        chips.pieces = {chip: first[tuple(chip[i] for i in along)] for chip in chips.pieces}
        for axis in layout.sharded:
            placement = layout[axis]
            assert placement is not None
            chips.slice((axis,), placement)
        chips.check(layout)
        return chips

    def groups(self, axes: tuple[str, ...]) -> list[list[Chip]]:
        """Chips that differ along these axes alone, in order."""
        rest = [i for i, a in enumerate(self.axes) if a not in axes]
        found: dict[tuple[int, ...], list[Chip]] = {}
        for chip in self.pieces:
            found.setdefault(tuple(chip[i] for i in rest), []).append(chip)
        return list(found.values())

    def apply(self, step: ConversionStep) -> None:
        """Does one step: who talks with whom and along which dims follows from its kind and axes alone."""
        old, new = step.before[step.axes[0]], step.after[step.axes[0]]
        if step.kind is None:
            assert new is not None
            self.slice(step.axes, new)
            return
        for group in self.groups(step.axes):
            pieces = [self.pieces[chip] for chip in group]
            for index, chip in enumerate(group):
                self.pieces[chip] = self._received(step.kind, pieces, index, old, new)

    def slice(self, axes: tuple[str, ...], dim: str) -> None:
        """Every chip keeps its part."""
        for group in self.groups(axes):
            for index, chip in enumerate(group):
                self.pieces[chip] = self.pieces[chip].part(self.dims.index(dim), index, len(group))

    def _received(
        self, kind: CollectiveKind, pieces: list[Piece], index: int, old: str | None, new: str | None
    ) -> Piece:
        if kind is CollectiveKind.ALL_REDUCE:
            return summed(pieces)
        if kind is CollectiveKind.ALL_GATHER:
            return joined(pieces, self.dims.index(str(old)))
        into = self.dims.index(str(new))
        parts = [p.part(into, index, len(pieces)) for p in pieces]
        if kind is CollectiveKind.REDUCE_SCATTER:
            return summed(parts)
        assert kind is CollectiveKind.ALL_TO_ALL
        return joined(parts, self.dims.index(str(old)))

    def check(self, layout: Layout) -> None:
        """The chips hold the tensor as the layout says: shares of the right size, every number once."""
        for i, dim in enumerate(self.dims):
            share = len(self.whole) // prod(self.sizes[a] for a in layout.sharded if layout[a] == dim)
            assert all(len(p.positions[i]) == share for p in self.pieces.values())
        for axis in self.axes:
            if layout[axis] is None:
                for group in self.groups((axis,)):
                    first = self.pieces[group[0]]
                    for chip in group[1:]:
                        assert self.pieces[chip].positions == first.positions
                        assert np.array_equal(self.pieces[chip].values, first.values)
        replicas = prod(n for a, n in self.sizes.items() if layout[a] is None)
        total = np.zeros_like(self.whole)
        for piece in self.pieces.values():
            total[np.ix_(*piece.positions)] += piece.values
        assert np.array_equal(total, replicas * self.whole)
        assert all(layout[a] == PARTIAL or layout[a] is None or layout[a] in self.dims for a in self.axes)
