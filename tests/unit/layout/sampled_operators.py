"""Layouts of one operator drawn evenly and changed step by step, to try encodings at random."""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from random import Random

from dovetail.layout.encoding import Factor, MeshAxis, Strings
from dovetail.layout.encoding.canonical import canonical_strings
from dovetail.layout.encoding.factor import primes
from dovetail.layout.encoding.operator_space import Label, OperatorSpace

#: Tries of a random change before a fresh sample is taken instead.
TRIES = 200


class SampledOperatorSpace(OperatorSpace):
    """The canonical encodings of one operator, sampled and varied."""

    def sample(self, random: Random) -> Strings:
        """One of them, each as likely as any other."""
        pairs, (rows, cols) = self._fitting(), (self._strings[self.rows], self._strings[self.cols])
        assert pairs, f"{self.operator.name} cannot run on {self.rows} × {self.cols} dies"
        weights = list(accumulate(len(rows[one]) * len(cols[other]) for one, other in pairs))
        while True:
            one, other = pairs[bisect(weights, random.randrange(weights[-1]))]
            drawn = Strings(random.choice(rows[one]), random.choice(cols[other]))
            # of a pair and its transpose one is canonical: half of either is taken, so both count once
            if self.rows != self.cols or drawn.rows == drawn.cols or random.random() < 0.5:
                return canonical_strings(drawn, self.rows, self.cols)

    def mutate(self, strings: Strings, random: Random) -> Strings:
        """Another of them, one step away where there is one: one prime part relabelled, or two parts changed over."""
        for _ in range(TRIES):
            parts = _prime_parts(strings)
            one = random.randrange(len(parts)) if parts else 0
            if len(parts) > 1 and random.random() < 0.5:
                other = random.randrange(len(parts))
                changed = self._swapped(parts, one, other)
            elif parts:
                changed = self._relabelled(parts, one, random.choice(self._labels))
            else:
                return strings
            if changed != strings and changed in self:
                return changed
        return self.sample(random)

    def neighbours(self, strings: Strings) -> tuple[Strings, ...]:
        """Everything one step away, in order."""
        parts = _prime_parts(strings)
        numbers = range(len(parts))
        changed = {self._relabelled(parts, one, label) for one in numbers for label in self._labels}
        changed |= {self._swapped(parts, one, other) for one in numbers for other in numbers if one < other}
        return tuple(sorted(s for s in changed if s != strings and s in self))

    def _relabelled(self, parts: list[tuple[MeshAxis, Factor]], one: int, label: Label) -> Strings:
        axis, factor = parts[one]
        return self._joined([*parts[:one], (axis, Factor(factor.size, *label)), *parts[one + 1 :]])

    def _swapped(self, parts: list[tuple[MeshAxis, Factor]], one: int, other: int) -> Strings:
        """Two parts change labels, or sizes too where they lie along one axis."""
        changed = list(parts)
        (axis, first), (across, second) = parts[one], parts[other]
        if axis is across:
            changed[one], changed[other] = (axis, second), (axis, first)
        else:
            changed[one] = (axis, Factor(first.size, *second.label))
            changed[other] = (across, Factor(second.size, *first.label))
        return self._joined(changed)

    def _joined(self, parts: list[tuple[MeshAxis, Factor]]) -> Strings:
        by_axis = {axis: tuple(factor for where, factor in parts if where is axis) for axis in MeshAxis}
        return canonical_strings(Strings(by_axis[MeshAxis.ROWS], by_axis[MeshAxis.COLS]), self.rows, self.cols)


def _prime_parts(strings: Strings) -> list[tuple[MeshAxis, Factor]]:
    return [
        (axis, Factor(prime, *factor.label))
        for axis in MeshAxis
        for factor in strings.along(axis)
        for prime in primes(factor.size)
    ]
