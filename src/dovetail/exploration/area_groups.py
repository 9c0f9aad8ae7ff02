"""PHAZE's own search: all designs of an area, from the largest down, until smaller areas have stopped to gain."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.errors import InputError
from dovetail.exploration.sampler import Score
from dovetail.hardware.design_space import DesignSpace

#: Designs whose areas lie in one range of so many mm² are compared as one.
GROUP_MM2 = 0.01
#: The search ends when the best of so many groups in a row does not get better from one to the next.
GROUPS = 5
#: Every design is ordered, so all are in memory.
MOST = 10**7

#: A space may define the area that orders it; else it is the silicon estimate.
OWN_AREA, AREA = "phaze_area_mm2", "area_mm2"


class AreaGroups:
    """The heuristic of PHAZE: groups of equal area, the largest first, with hysteresis as its end.

    Wang, Tarnawski, Phanishayee and Mahajan, "Integrated Hardware Architecture and Device Placement Search", ICML 2024.
    It compares by the first objective, and needs no chance. What we ask for is what it would evaluate whatever the
    results: the groups that are left until it could end.
    """

    def __init__(self, space: DesignSpace, num_objectives: int, seed: int, score: Score | None = None) -> None:
        del num_objectives, seed, score
        self._designs, group = _ordered(space)
        self._starts = np.concatenate([[0], np.nonzero(np.diff(group))[0] + 1, [len(group)]]) if len(group) else [0]
        self._seen: set[int] = set()
        self._told: dict[int, float] = {}
        self._complete = 0
        """groups whose designs were all told"""
        self._best = np.inf
        """of the last of them"""
        self._in_a_row = 0
        """groups in a row, up to the last, whose best is not better than that of the one before"""

    def ask(self, n: int) -> Ints:
        """The next designs in order, of the groups that are searched whatever comes; none once the search has ended."""
        left = GROUPS - 1 - self._in_a_row + (self._complete == 0)
        end = self._starts[min(self._complete + left, len(self._starts) - 1)]
        taken: list[int] = []
        for design in self._designs[self._starts[self._complete] : end].tolist():
            if len(taken) == n:
                break
            if design not in self._seen:
                taken.append(design)
        self._seen.update(taken)
        return np.array(taken, np.int64)

    def tell(self, indices: Ints, objectives: Floats) -> None:
        """Completes groups in order, as far as their designs were told."""
        assert len(indices) == len(objectives), "a row of objectives for each design"
        for index, row in zip(np.asarray(indices).tolist(), np.asarray(objectives, np.float64), strict=True):
            fits = bool((row < np.inf).all())
            self._told[index] = float(row[0]) if fits else np.inf
            self._seen.add(index)
        while self._complete + 1 < len(self._starts) and self._in_a_row < GROUPS - 1:
            group = self._designs[self._starts[self._complete] : self._starts[self._complete + 1]].tolist()
            if any(design not in self._told for design in group):
                break
            best = min(self._told[design] for design in group)
            first = self._complete == 0
            self._in_a_row = 0 if first or best < self._best else self._in_a_row + 1
            self._best = best
            self._complete += 1


def _ordered(space: DesignSpace) -> tuple[Ints, Ints]:
    """The designs within the limits, the largest first, and the group of each; in a group those with the most cores."""
    if space.size > MOST:
        what = f"phaze orders every design by area, and {space.name} has {space.size:,}"
        raise InputError("search.method", what, f"narrow the space to {MOST:,} designs, or choose another method")
    name = OWN_AREA if OWN_AREA in space.formulas.defined else AREA
    parts = [(batch.index, space.values(name, batch.designs)) for batch in space.batches()]
    index = np.concatenate([np.zeros(0, np.int64), *(index for index, _ in parts)])
    area = np.concatenate([np.zeros(0), *(area for _, area in parts)])
    group = np.floor(area / GROUP_MM2).astype(np.int64)
    order = np.lexsort((-index, -group))
    return index[order], group[order]
