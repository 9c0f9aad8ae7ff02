"""Which designs to evaluate if a space is too large to enumerate: we ask a sampler, and tell it the results.

A sampler's answers depend only on its seed, on what it was told and in which order, and on what it was asked and not
told. So a sampler that is told the results of an earlier run, in the same order, continues where that run stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dovetail.arrays import Floats, Ints
from dovetail.hardware.design_space import DesignSpace

Score = Callable[[Ints], Floats]
"""how good designs are before any plan is searched: the lower the better"""


class Sampler(Protocol):
    """Chooses designs of a space from the results of others."""

    def ask(self, n: int) -> Ints:
        """The next designs to evaluate, none twice and none told before; fewer if the space is exhausted."""
        ...

    def tell(self, indices: Ints, objectives: Floats) -> None:
        """Results of designs, a row each, inf if nothing fits; they need not have been asked for."""
        ...


class SamplerFactory(Protocol):
    """Makes the sampler of a space for a number of objectives; the same seed makes the same."""

    def __call__(self, space: DesignSpace, num_objectives: int, seed: int, score: Score | None = None) -> Sampler:
        """A sampler that knows of no results yet."""
        ...
