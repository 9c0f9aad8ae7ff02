"""Arrays over the options of some variables that broadcast against arrays over others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dovetail.arrays import Array


@dataclass(frozen=True, slots=True)
class Scoped:
    """Values for every combination of options of these variables (in ascending order); further axes may follow."""

    scope: tuple[int, ...]
    values: Array

    def over(self, scope: tuple[int, ...]) -> Array:
        """The values with an axis for each variable of a larger scope, of length 1 where they do not depend on it."""
        lengths = dict(zip(self.scope, self.values.shape, strict=False))
        rest = self.values.shape[len(self.scope) :]
        return self.values.reshape(*(lengths.get(variable, 1) for variable in scope), *rest)

    def reduced(self) -> Scoped:
        """The same without variables the values do not depend on."""
        scope, values = list(self.scope), self.values
        for variable in self.scope:
            axis = scope.index(variable)
            first = np.take(values, [0], axis=axis)
            if (values == first).all():
                scope.remove(variable)
                values = np.take(values, 0, axis=axis)
        return Scoped(tuple(scope), values)


def union(scopes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """All variables of some scopes."""
    return tuple(sorted({variable for scope in scopes for variable in scope}))


def constant(values: Array) -> Scoped:
    """Values that depend on no variable."""
    return Scoped((), np.asarray(values))
