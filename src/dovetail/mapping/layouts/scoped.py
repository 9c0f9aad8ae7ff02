"""Arrays over the options of some variables that broadcast against arrays over others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from dovetail.arrays import Array, Ints
from dovetail.frozen import frozen

#: By option, the number of its class; None if every option is a class of its own.
Classes = tuple[int, ...] | None


@frozen
class OptionScope:
    """Variables in ascending order, and which options of each are told apart."""

    variables: tuple[int, ...] = ()
    classes: tuple[Classes, ...] = ()

    @staticmethod
    def of(*variables: int) -> OptionScope:
        """Variables whose options are all told apart."""
        return OptionScope(variables, (None,) * len(variables))

    def plain(self) -> OptionScope:
        """The same variables with all options told apart."""
        return OptionScope.of(*self.variables)

    def shape(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """The length of each axis, given the number of options of every variable."""
        return tuple(
            lengths[v] if classes is None else 1 + max(classes)
            for v, classes in zip(self.variables, self.classes, strict=True)
        )

    def entries(self, lengths: Sequence[int]) -> int:
        """The number of entries of an array over this scope."""
        return math.prod(self.shape(lengths))


@frozen
class Scoped:
    """Values for every combination of options of a scope's variables; further axes may follow."""

    scope: OptionScope
    values: Array

    def over(self, scope: OptionScope) -> Array:
        """The values with an axis for each variable of a larger scope, of length 1 where they do not depend on it."""
        values, shape = self.values, [1] * len(scope.variables)
        for axis, (variable, mine) in enumerate(zip(self.scope.variables, self.scope.classes, strict=True)):
            place = scope.variables.index(variable)
            theirs = scope.classes[place]
            if mine is not None and mine != theirs:
                values = np.take(values, np.array(mine)[_first_of(theirs, len(mine))], axis=axis)
            shape[place] = values.shape[axis]
        return values.reshape((*shape, *self.values.shape[len(self.scope.variables) :]))

    def compressed(self) -> Scoped:
        """The same with options told apart only if the values differ, and without variables they do not depend on."""
        variables: list[int] = []
        classes: list[Classes] = []
        values = self.values
        for variable, mine in zip(self.scope.variables, self.scope.classes, strict=True):
            axis = len(variables)
            distinct, first, place = _distinct(values, axis)
            values = np.take(values, first, axis=axis)
            if distinct == 1:
                values = values.reshape((*values.shape[:axis], *values.shape[axis + 1 :]))
                continue
            variables.append(variable)
            if distinct == len(place):
                classes.append(mine)
            else:
                classes.append(tuple((place if mine is None else place[np.array(mine)]).tolist()))
        return Scoped(OptionScope(tuple(variables), tuple(classes)), values)


def _distinct(values: Array, axis: int) -> tuple[int, Ints, Ints]:
    """The number of distinct slices along an axis, the first of each in order, and which of them each slice is."""
    flat = np.ascontiguousarray(np.moveaxis(values, axis, 0)).reshape(values.shape[axis], -1)
    numbers: dict[bytes, int] = {}
    place = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in flat], np.int64)
    return len(numbers), np.unique(place, return_index=True)[1], place


def _first_of(classes: Classes, options: int) -> Ints:
    """The first option of each class."""
    return np.arange(options) if classes is None else np.unique(np.array(classes), return_index=True)[1]


def union(scopes: Iterable[OptionScope]) -> OptionScope:
    """All variables of some scopes; options are told apart if any scope does."""
    found: dict[int, Classes] = {}
    for scope in scopes:
        for variable, classes in zip(scope.variables, scope.classes, strict=True):
            found[variable] = _refined(found[variable], classes) if variable in found else classes
    return OptionScope(tuple(sorted(found)), tuple(found[v] for v in sorted(found)))


def _refined(one: Classes, other: Classes) -> Classes:
    if one is None or other is None or one == other:
        return None if one is None or other is None else one
    numbers: dict[tuple[int, int], int] = {}
    refined = tuple(numbers.setdefault(pair, len(numbers)) for pair in zip(one, other, strict=True))
    return None if len(numbers) == len(refined) else refined


def constant(values: Array) -> Scoped:
    """Values that depend on no variable."""
    return Scoped(OptionScope(), np.asarray(values))
