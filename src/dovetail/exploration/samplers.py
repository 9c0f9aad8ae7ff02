"""The samplers a study can name, and the uniform random one."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.arrays import Floats, Ints
from dovetail.errors import require_package
from dovetail.exploration.sampler import Sampler
from dovetail.exploration.unseen import Unseen
from dovetail.hardware.design_space import DesignSpace


class Uniform:
    """Designs within the limits in random order, each once: the baseline."""

    def __init__(self, space: DesignSpace, num_objectives: int, seed: int) -> None:
        del num_objectives  # the order does not depend on objectives
        self._unseen = Unseen(space, seed)

    def ask(self, n: int) -> Ints:
        """The next designs that were neither asked nor told."""
        return self._unseen.take(n)

    def tell(self, indices: Ints, objectives: Floats) -> None:
        """Skips these designs from now on."""
        assert len(indices) == len(objectives), "a row of objectives for each design"
        self._unseen.leave_out(indices)


def _evolutionary(space: DesignSpace, num_objectives: int, seed: int) -> Sampler:
    require_sampler("evolutionary")
    from dovetail.exploration.evolutionary import Evolutionary  # its library takes a second to import

    return Evolutionary(space, num_objectives, seed)


#: name in a study file → sampler of a space, with a number of objectives and a seed
SAMPLERS: dict[str, Callable[[DesignSpace, int, int], Sampler]] = {"evolutionary": _evolutionary, "random": Uniform}


def require_sampler(method: str) -> None:
    """Raises an error if the sampler of this name needs a package that is not installed."""
    if method == "evolutionary":
        require_package("optuna", "search.method", "for evolutionary")
