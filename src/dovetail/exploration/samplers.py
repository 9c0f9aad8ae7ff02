"""The samplers a study can name: a table, and the plain one that draws at random."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.arrays import Floats, Ints
from dovetail.exploration.sampler import Sampler
from dovetail.exploration.unseen import Unseen
from dovetail.hardware.design_space import DesignSpace


class Uniform:
    """Kept designs in a random order, each once: the plain reference."""

    def __init__(self, space: DesignSpace, num_objectives: int, seed: int) -> None:
        del num_objectives  # every order is as good as any other
        self._unseen = Unseen(space, seed)

    def ask(self, n: int) -> Ints:
        """The next designs of the order that were neither asked nor told."""
        return self._unseen.take(n)

    def tell(self, indices: Ints, objectives: Floats) -> None:
        """Leaves these designs out from now on."""
        assert len(indices) == len(objectives), "a row of objectives for each design"
        self._unseen.leave_out(indices)


def _evolutionary(space: DesignSpace, num_objectives: int, seed: int) -> Sampler:
    from dovetail.exploration.evolutionary import Evolutionary  # which needs a second to import its library

    return Evolutionary(space, num_objectives, seed)


#: name in a study file → sampler of a space, with a number of objectives and a seed
SAMPLERS: dict[str, Callable[[DesignSpace, int, int], Sampler]] = {"evolutionary": _evolutionary, "random": Uniform}
