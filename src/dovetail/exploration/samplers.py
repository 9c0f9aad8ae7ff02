"""The samplers a study can name, and the uniform random one."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.arrays import Floats, Ints
from dovetail.errors import require_package
from dovetail.exploration.area_groups import AreaGroups
from dovetail.exploration.hardware_first import HardwareFirst
from dovetail.exploration.sampler import Sampler, SamplerFactory, Score
from dovetail.exploration.unseen import Unseen
from dovetail.hardware.design_space import DesignSpace


class Uniform:
    """Designs within the limits in random order, each once: the baseline."""

    def __init__(self, space: DesignSpace, num_objectives: int, seed: int, score: Score | None = None) -> None:
        del num_objectives, score  # the order does not depend on them
        self._unseen = Unseen(space, seed)

    def ask(self, n: int) -> Ints:
        """The next designs that were neither asked nor told."""
        return self._unseen.take(n)

    def tell(self, indices: Ints, objectives: Floats) -> None:
        """Skips these designs from now on."""
        assert len(indices) == len(objectives), "a row of objectives for each design"
        self._unseen.leave_out(indices)


def _evolutionary(space: DesignSpace, num_objectives: int, seed: int, score: Score | None = None) -> Sampler:
    del score
    require_sampler("evolutionary")
    from dovetail.exploration.evolutionary import Evolutionary  # its library takes a second to import

    return Evolutionary(space, num_objectives, seed)


#: name in a study file → what makes the sampler
SAMPLERS: Mapping[str, SamplerFactory] = {
    "evolutionary": _evolutionary,
    "random": Uniform,
    "phaze": AreaGroups,
    "hardware_first": HardwareFirst,
}
#: Samplers that compare designs one by one, and must know how slow the slower ones are.
WANTS_FIGURES = ("phaze",)


def require_sampler(method: str) -> None:
    """Raises an error if the sampler of this name needs a package that is not installed."""
    if method == "evolutionary":
        require_package("optuna", "search.method", "for evolutionary")
