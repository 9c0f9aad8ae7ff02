"""The Pareto front of a study while it runs: undominated points and their candidates."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration.pareto import dominated, pareto
from dovetail.exploration.store import Part
from dovetail.frozen import frozen


@frozen
class ParetoFront:
    """Points in the order of their candidates; a single point with one objective."""

    points: Floats
    codes: Ints

    @staticmethod
    def empty(objectives: int) -> ParetoFront:
        """The front before any result."""
        return ParetoFront(np.zeros((0, objectives)), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.codes)

    def joined(self, points: Floats, codes: Ints) -> ParetoFront:
        """The front with further points; the first candidate of equal ones stays."""
        # most batches of a long study add nothing, which takes a fraction of the time to see
        beaten = dominated(points, self.points, strict=True)
        if beaten.all():
            return self
        points, codes = points[~beaten], codes[~beaten]
        candidates, whose = np.concatenate([self.points, points]), np.concatenate([self.codes, codes])
        order = np.argsort(whose, kind="stable")
        members = order[pareto(candidates[order])]
        return ParetoFront(candidates[members], whose[members])

    def with_part(self, part: Part, objectives: tuple[str, ...]) -> ParetoFront:
        """The front with the results of a batch of searched candidates."""
        done = np.asarray(part.columns["evaluated"], np.bool_)
        points = np.stack([np.asarray(part.columns[f"figure.{name}"])[done] for name in objectives], axis=1)
        return self.joined(points, np.asarray(part.columns["code"])[done])


def gap_between(open_points: Floats, front: Floats) -> float:
    """How much better than a front the open points could be: the share to take off the front to beat them all."""
    if not len(open_points) or not len(front):
        return 0.0 if not len(open_points) else 1.0
    worst = 0.0
    for point in open_points:
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.where(front > 0, 1 - point / front, 0.0)
        worst = max(worst, float(part.max(axis=1).min()))
    return min(max(worst, 0.0), 1.0)
