"""Which candidates come next: in the order of their bounds, and wafers one network after the other."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration.pareto import dominated
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.wafers import network_key, wafer_designs


def network_of(study: ResolvedStudy, codes: Ints) -> tuple[Floats, ...]:
    """Everything the networks of wafers depend on, an array of each, and the number of wafers."""
    positions, designs = np.divmod(codes, study.space.size)
    return (*network_key(wafer_designs(study.space, designs)), positions.astype(np.float64))


class OpenCandidates:
    """Candidates in the order of their bounds, given out once each, skipping those a front beats."""

    #: Candidates compared with the front at once: few for each that is asked for, more where those were in vain.
    TRIED, AHEAD = 16, 4096
    #: Candidates compared with the front to count those left.
    COUNTED = 2**16

    def __init__(self, points: Floats) -> None:
        self._points = points
        self._next = 0

    @property
    def lowest(self) -> float | None:
        """The lowest bound, in the first objective, of the candidates not given out."""
        return float(self._points[self._next, 0]) if self._next < len(self._points) else None

    def left(self, front: Floats) -> int:
        """How many are not given out that the front does not beat, of many the first."""
        ahead = self._points[self._next : self._next + self.COUNTED]
        return int((~dominated(ahead, front)).sum()) + max(len(self._points) - self._next - self.COUNTED, 0)

    def following(self, number: int, front: Floats) -> Ints:
        """The next candidates that the front does not beat."""
        rows_given: list[int] = []
        tried = self.TRIED * number
        while len(rows_given) < number and self._next < len(self._points):
            ahead = self._points[self._next : self._next + min(tried, self.AHEAD)]
            tried *= 2
            (rows,) = np.nonzero(~dominated(ahead, front))
            taken = rows[: number - len(rows_given)]
            rows_given += (self._next + taken).tolist()
            self._next += int(taken[-1]) + 1 if len(rows_given) == number else len(ahead)
        return np.array(rows_given, np.int64)
