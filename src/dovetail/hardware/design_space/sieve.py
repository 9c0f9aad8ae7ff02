"""Limits applied to a block of designs, one after the other; what is left is packed together once it is little."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dovetail.arrays import Bools, Ints
from dovetail.frozen import frozen
from dovetail.hardware.design import Designs
from dovetail.hardware.design_space.expression import Expression
from dovetail.hardware.design_space.scope import Formulas, Scope
from dovetail.hardware.design_space.variable import BOUNDS

#: Designs are packed where fewer than one in so many are left: until then a grid's shared values are worth more.
_PACK_BELOW = 4


@frozen
class Rule:
    """What a design must keep: a limit of the file, or the bounds of a derived variable."""

    text: str
    condition: Expression | None = None
    variable: str = ""

    @classmethod
    def limit(cls, condition: Expression) -> Rule:
        """A limit of the file."""
        return cls(condition.text, condition)

    @classmethod
    def bounds(cls, variable: str) -> Rule:
        """A derived variable within its bounds: formulas may lead beyond them."""
        return cls(f"{variable} is {BOUNDS[variable].text}", None, variable)

    def holds(self, scope: Scope) -> Bools:
        """Where it is kept."""
        if self.condition is not None:
            return self.condition.holds(scope)
        return BOUNDS[self.variable].hold(scope(self.variable))


class Sieve:
    """A block of designs after all rules."""

    def __init__(
        self,
        designs: Designs,
        shape: tuple[int, ...],
        rules: Sequence[Rule],
        formulas: Formulas,
        inside: tuple[int, int] | None = None,
    ) -> None:
        self._formulas = formulas
        self._scope = Scope(designs, formulas)
        self._alive = np.ones(shape, np.bool_)
        self._places: Ints | None = None
        """positions in the block of the designs at hand; None: all, in their order"""
        low, high = inside or (0, math.prod(shape))
        self._alive.reshape(-1)[:low] = False
        self._alive.reshape(-1)[high:] = False
        self.size = self.kept = high - low
        self.left_out: dict[str, int] = {}
        for rule in rules:
            self._apply(rule)

    def _apply(self, rule: Rule) -> None:
        if self.kept == 0:
            return
        if self.kept * _PACK_BELOW < self._alive.size:
            self._pack()
        np.logical_and(self._alive, rule.holds(self._scope), out=self._alive)
        remaining = int(np.count_nonzero(self._alive))
        self.left_out[rule.text] = self.kept - remaining
        self.kept = remaining

    def _pack(self) -> None:
        self._scope = Scope(self._packed(), self._formulas)
        self._places = self.positions()
        self._alive = np.ones(len(self._places), np.bool_)

    def _packed(self) -> Designs:
        """The designs left, in one dimension; what they have in common stays a single number."""
        designs, shape = self._scope.designs, self._alive.shape
        columns = {name: designs.value(name) for name in designs.variables}
        spread = {name: np.broadcast_to(column, shape) for name, column in columns.items() if column.ndim}
        return designs.varied({name: column[self._alive] for name, column in spread.items()})

    def positions(self) -> Ints:
        """Of the designs kept, in the block."""
        if self._places is not None:
            return self._places[self._alive]
        return np.flatnonzero(self._alive)

    def survivors(self, variables: Sequence[str]) -> tuple[Designs, Ints]:
        """The designs kept, with arrays for these variables, and their positions."""
        designs = self._packed()
        spread = {name: np.broadcast_to(designs.value(name), (self.kept,)) for name in variables}
        return designs.varied(spread), self.positions()

    def ends(self, name: str) -> tuple[float, float]:
        """The least and greatest value of a figure over the designs kept; nan is none."""
        values = np.broadcast_to(self._scope(name), self._alive.shape)
        low = np.fmin.reduce(values, axis=None, where=self._alive, initial=math.inf)
        high = np.fmax.reduce(values, axis=None, where=self._alive, initial=-math.inf)
        return float(low), float(high)
