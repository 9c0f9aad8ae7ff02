"""Which designs to look at where a space is too large to look at all: a sampler is asked, and told what came out.

What a sampler answers depends on its seed, on what it was told, in which order, and on what it was asked and not told.
One that is told the results of an earlier run, in the same order, therefore goes on where that run stopped.
"""

from __future__ import annotations

from typing import Protocol

from dovetail.arrays import Floats, Ints


class Sampler(Protocol):
    """Chooses designs of a space by what is known of others."""

    def ask(self, n: int) -> Ints:
        """The next designs to evaluate, none twice and none told before; fewer where the space holds no more."""
        ...

    def tell(self, indices: Ints, objectives: Floats) -> None:
        """What designs came to, a row each, inf where nothing fits; they need not have been asked for."""
        ...
