"""Axes of traced tensors as products of atoms, and which atoms of different tensors are one dim.

An atom is a dim in the making. Operators say that axes are equal; a view shows that an atom is a product of others, a
slice or a concatenation that it is a sum. One union-find over all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import TypeAlias

Axis: TypeAlias = "tuple[int, ...]"
Axes: TypeAlias = "tuple[Axis, ...]"


class Atoms:
    """All atoms of a trace."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[int] = []
        self._factors: dict[int, Axis] = {}
        self._parts: dict[int, Axis] = {}
        self._free: set[int] = set()
        self._fixed: set[int] = set()
        self._twins: dict[int, int] = {}

    def new(self, size: int, *, free: bool = False, fixed: bool = False) -> int:
        """A fresh atom; a free one (batch, sequence) and a fixed one (places of an image) are never taken apart."""
        self._parent.append(len(self._parent))
        self._size.append(size)
        if free:
            self._free.add(len(self._parent) - 1)
        if fixed:
            self._fixed.add(len(self._parent) - 1)
        return len(self._parent) - 1

    def twin(self, atom: int) -> int:
        """A second atom for a dim that one tensor has twice; the two never become one."""
        root = self.find(atom)
        if root not in self._twins:
            other = self.new(self._size[root], free=root in self._free, fixed=True)
            self._twins[root], self._twins[other] = other, root
        return self._twins[root]

    def distinct(self, axes: Axes) -> Axes:
        """The same axes, where an atom that comes again is its twin."""
        seen: set[int] = set()
        result: list[Axis] = []
        for axis in axes:
            own: list[int] = []
            for atom in self.leaves(axis):
                own.append(self.twin(atom) if atom in seen else atom)
                seen.add(atom)
            result.append(tuple(own) if own != list(self.leaves(axis)) else axis)
        return tuple(result)

    def axis(self, size: int) -> Axis:
        """A fresh axis."""
        return () if size == 1 else (self.new(size),)

    def fresh(self, shape: Iterable[int]) -> Axes:
        """Fresh axes for a shape."""
        return tuple(self.axis(size) for size in shape)

    def find(self, atom: int) -> int:
        """What stands for an atom and all that equal it."""
        while self._parent[atom] != atom:
            self._parent[atom] = self._parent[self._parent[atom]]
            atom = self._parent[atom]
        return atom

    def size(self, atom: int) -> int:
        """How long it is."""
        return self._size[self.find(atom)]

    def length(self, axis: Iterable[int]) -> int:
        """How long an axis is."""
        return prod(self.size(a) for a in axis)

    def is_free(self, atom: int) -> bool:
        """Whether a job sets its size."""
        return self.find(atom) in self._free

    def leaves(self, axis: Iterable[int]) -> Axis:
        """An axis as the atoms it is a product of; those of size 1 are left out."""
        found: list[int] = []
        for atom in axis:
            root = self.find(atom)
            factors = self._factors.get(root)
            if factors is not None:
                found.extend(self.leaves(factors))
            elif self._size[root] != 1:
                found.append(root)
        return tuple(found)

    def below(self, axis: Iterable[int]) -> set[int]:
        """Every atom an axis consists of, by products or sums."""
        found: set[int] = set()
        for leaf in self.leaves(axis):
            found.add(leaf)
            for part in self._parts.get(leaf, ()):
                found |= self.below((part,))
        return found

    def parts(self, atom: int) -> Axis:
        """The atoms it is a sum of, in order; itself where it is none."""
        root = self.find(atom)
        parts = self._parts.get(root)
        return tuple(leaf for part in parts for leaf in self.parts(part)) if parts else (root,)

    def is_sum(self, atom: int) -> bool:
        """Whether slices or concatenations took it apart."""
        return self.find(atom) in self._parts

    def unify(self, one: Axis, other: Axis) -> bool:
        """Says that two axes are one; False where their atoms do not fit each other."""
        left, right = list(self.leaves(one)), list(self.leaves(other))
        while left and right:
            a, b = self.find(left[0]), self.find(right[0])
            if self._size[a] == self._size[b]:
                if not self._union(a, b):
                    return False
                left.pop(0)
                right.pop(0)
                continue
            small, large, rest = (a, b, right) if self._size[a] < self._size[b] else (b, a, left)
            if self._size[large] % self._size[small] or not self._divide(
                large, (self._size[small], self._size[large] // self._size[small])
            ):
                return False
            rest[:1] = list(self.leaves((large,)))
        return not left and not right

    def _union(self, a: int, b: int) -> bool:
        if a == b or self._twins.get(a) == b:
            return True
        for plain, other in ((a, b), (b, a)):
            bare = (
                plain not in self._parts and plain not in self._factors and plain not in self._free | self._twins.keys()
            )
            bare = bare and (plain not in self._fixed or other in self._fixed)
            if bare and self._size[plain] == self._size[other] and not self._inside(plain, other):
                self._parent[plain] = other
                return True
        if a in self._parts and b in self._parts and not self._inside(a, b) and not self._inside(b, a):
            bounds = sorted({*self._bounds(a), *self._bounds(b)})
            ones, others = self._refined(a, bounds), self._refined(b, bounds)
            self._parent[a] = b
            return all(self.unify((x,), (y,)) for x, y in zip(ones, others, strict=True))
        return False

    def _inside(self, inner: int, outer: int) -> bool:
        """Whether an atom is among those another one consists of."""
        below = (*self._factors.get(outer, ()), *self._parts.get(outer, ()))
        return any(self.find(each) == inner or self._inside(inner, self.find(each)) for each in below)

    def _divide(self, atom: int, sizes: Sequence[int]) -> bool:
        if atom in self._free or atom in self._fixed or atom in self._parts:
            return False
        self._factors[atom] = tuple(self.new(size) for size in sizes)
        return True

    def _bounds(self, atom: int) -> list[int]:
        at = 0
        bounds: list[int] = []
        for part in self.parts(atom)[:-1]:
            at += self._size[part]
            bounds.append(at)
        return bounds

    def span(self, axis: Axis, start: int, stop: int) -> Axis | None:
        """The part of an axis between two positions; None where it cannot be named."""
        leaves = self.leaves(axis)
        if not leaves or not 0 <= start < stop <= self.length(leaves):
            return None
        first, inner = leaves[0], self.length(leaves[1:])
        if start % inner or stop % inner:
            return None
        if (stop - start) == self.length(leaves):
            return axis
        found = self._between(first, start // inner, stop // inner)
        return None if found is None else (*found, *leaves[1:])

    def _between(self, atom: int, start: int, stop: int) -> Axis | None:
        """The atom that spans a part of another, which becomes a sum."""
        root = self.find(atom)
        if root in self._free:
            return None
        if (start, stop) == (0, self._size[root]):
            return (root,)
        if root not in self._parts:
            bounds = [b for b in (start, stop) if 0 < b < self._size[root]]
            edges = [0, *bounds, self._size[root]]
            self._parts[root] = tuple(self.new(b - a) for a, b in pairwise(edges))
        at = 0
        inside: list[int] = []
        for part in self._parts[root]:
            begin, end = at, at + self.size(part)
            at = end
            if start <= begin and end <= stop:
                inside.append(part)
            elif begin <= start and stop <= end:
                if self.find(part) in self._factors:
                    return self.span((part,), start - begin, stop - begin)
                return self._between(part, start - begin, stop - begin)
            elif begin < stop and start < end:  # overlaps: refine the part
                low, high = max(begin, start) - begin, min(end, stop) - begin
                piece = self.span((part,), low, high)
                if piece is None:
                    return None
                inside.extend(piece)
        if len(inside) == 1:
            return (inside[0],)
        whole = self.new(stop - start)
        self._parts[whole] = tuple(inside)
        return (whole,)

    def _refined(self, atom: int, bounds: Sequence[int]) -> list[int]:
        """The parts of a sum, cut at these places too."""
        edges = [0, *bounds, self._size[atom]]
        found: list[int] = []
        for start, stop in pairwise(edges):
            piece = self._between(atom, start, stop)
            assert piece is not None
            found.extend(piece)
        return found

    def joined(self, axes: Sequence[Axis]) -> Axis:
        """The axis that several make one behind another."""
        parts = [axis[0] if len(axis) == 1 else self._product(axis) for axis in axes]
        whole = self.new(sum(self.size(p) for p in parts))
        self._parts[whole] = tuple(parts)
        return (whole,)

    def _product(self, axis: Axis) -> int:
        atom = self.new(self.length(axis))
        if axis:
            self._factors[atom] = axis
        return atom

    def reshape(self, axes: Axes, shape: Sequence[int]) -> Axes | None:
        """The same atoms in the same order, dealt to axes of other sizes; None where they do not fit."""
        waiting = list(self.leaves(atom for axis in axes for atom in axis))
        result: list[Axis] = []
        for size in shape:
            axis: list[int] = []
            left = size
            while left > 1:
                if not waiting:
                    return None
                atom = waiting[0]
                own = self.size(atom)
                if left % own == 0:
                    axis.append(waiting.pop(0))
                    left //= own
                elif own % left == 0 and self._divide(self.find(atom), (left, own // left)):
                    waiting[:1] = list(self.leaves((atom,)))
                else:
                    return None
            result.append(tuple(axis))
        return None if waiting else tuple(result)
