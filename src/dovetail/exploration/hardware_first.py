"""Hardware first, plans after: what a search gains that chooses a chip without regard to how many train a model."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration.sampler import Score
from dovetail.exploration.unseen import Unseen
from dovetail.hardware.design_space import DesignSpace

#: Designs drawn at first, and the best ones whose neighbours are looked at together.
DRAWN, LEADING = 1024, 16


class HardwareFirst:
    """Designs in the order of what their operators take one after the other on one chip.

    Like Spotlight (Sakhuja, Shi and Lin, "Leveraging Domain Information for the Efficient Automated Design of Deep
    Learning Accelerators", HPCA 2023), which searches for hardware with the mapping of each operator, and knows of no
    plan: memory capacity, network, stages and replicas play no part. Its Bayesian search is here a sample and a climb
    from its best designs to better neighbours. Designs that were never scored follow at random.
    """

    def __init__(self, space: DesignSpace, num_objectives: int, seed: int, score: Score | None = None) -> None:
        del num_objectives  # one chip is compared by its time alone
        assert score is not None, "hardware is chosen by a score"
        self._space, self._seed, self._score = space, seed, score
        self._unseen = Unseen(space, seed)
        self._ranked: list[int] | None = None
        self._next = 0

    def ask(self, n: int) -> Ints:
        """The best by score that were neither asked nor told."""
        if self._ranked is None:
            self._ranked = self._by_score()
        taken: list[int] = []
        while len(taken) < n and self._next < len(self._ranked):
            design = self._ranked[self._next]
            self._next += 1
            if design not in self._unseen.seen:
                taken.append(design)
        self._unseen.leave_out(np.array(taken, np.int64))
        return np.concatenate([np.array(taken, np.int64), self._unseen.take(n - len(taken))])

    def tell(self, indices: Ints, objectives: Floats) -> None:
        """Skips these designs from now on: hardware is not chosen by what plans gain."""
        assert len(indices) == len(objectives), "a row of objectives for each design"
        self._unseen.leave_out(indices)

    def _by_score(self) -> list[int]:
        """A sample and what a climb from its best finds, by score; equal ones by number."""
        scores: dict[int, float] = {}
        new = Unseen(self._space, self._seed).take(DRAWN)
        expanded: set[int] = set()
        while len(new):
            scores.update(zip(new.tolist(), self._score(new).tolist(), strict=True))
            best = sorted(scores, key=lambda design: (scores[design], design))[:LEADING]
            base = [design for design in best if design not in expanded]
            expanded.update(base)
            near = self._neighbours(np.array(base, np.int64))
            new = near[[design not in scores for design in near.tolist()]]
        return sorted(scores, key=lambda design: (scores[design], design))

    def _neighbours(self, designs: Ints) -> Ints:
        """Designs within the limits that differ by one step of one axis."""
        shape = tuple(len(axis) for axis in self._space.axes)
        places = np.stack(np.unravel_index(designs, shape), axis=1) if shape else np.zeros((len(designs), 0), np.int64)
        steps = np.concatenate([np.eye(len(shape), dtype=np.int64), -np.eye(len(shape), dtype=np.int64)])
        near = (places[:, None] + steps).reshape(-1, len(shape))
        near = near[((near >= 0) & (near < np.array(shape, np.int64))).all(axis=1)]
        indices = np.unique(np.ravel_multi_index(tuple(near.T), shape)).astype(np.int64)
        return indices[self._space.keeps(indices)]
