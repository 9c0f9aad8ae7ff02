"""Pairs of stage degrees and a stage count that a search has not opened, and which of them come next."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import TOLERANCE, Bools, Ints
from dovetail.bounds.degree_bounds import DegreeBounds
from dovetail.plans.plan import Plan
from dovetail.search.progress import OpenPlans

#: Pairs opened first, to have a plan to beat.
FIRST_ROUND = 64
#: Where more pairs are left, those near the best plan come next: a better one is often among them, and then most others
#: are never opened. Few are all opened at once, since their tables take least when they are made together.
FEW = 256
#: How far the degrees of pairs near a plan may be from its own together: one of them doubled or halved.
NEAR = 2.0


class OpenPairs:
    """Those below a limit, by number, the lowest bound first."""

    def __init__(self, pairs: DegreeBounds, plans: Ints, limit_s: float) -> None:
        self._pairs = pairs
        self._bounds, self._plans = pairs.seconds.ravel(), plans.ravel()
        self._order = np.argsort(self._bounds, kind="stable")
        self._opened = False
        self.prune(limit_s)

    def __len__(self) -> int:
        return len(self._order)

    @property
    def many(self) -> bool:
        """Whether they are opened in several rounds more, after the first."""
        return self._opened and len(self) > FEW

    @property
    def left(self) -> OpenPlans:
        """Their bounds and plans."""
        return OpenPlans(self._bounds[self._order], self._plans[self._order])

    @property
    def selected(self) -> Bools:
        """All of them, stage degrees × stage counts."""
        return self._mask(self._order)

    def prune(self, limit_s: float) -> None:
        """Those that cannot be below a limit are opened no more."""
        self._order = self._order[self._bounds[self._order] < limit_s]

    def take(self, best: Plan | None) -> Bools:
        """What is opened next, stage degrees × stage counts: the first few, those near the best plan, or all."""
        taken = self._order if self._opened else self._order[:FIRST_ROUND]
        if self.many and best is not None:
            near = self._order[self._near(best).ravel()[self._order]]
            taken = near if len(near) else taken
        self._opened = True
        selected = self._mask(taken)
        self._order = self._order[~selected.ravel()[self._order]]
        return selected

    def _mask(self, numbers: Ints) -> Bools:
        selected = np.zeros(self._bounds.shape, np.bool_)
        selected[numbers] = True
        return selected.reshape(self._pairs.seconds.shape)

    def _near(self, plan: Plan) -> Bools:
        degrees, stages = self._pairs.tables.columns, np.array(self._pairs.space.pipeline_parallel)
        away = np.abs(np.log(stages / plan.pipeline_parallel))
        for degree, own in (
            (degrees.tensor_parallel, plan.tensor_parallel),
            (degrees.context_parallel, plan.context_parallel),
            (degrees.expert_parallel, plan.expert_parallel),
            (degrees.expert_tensor_parallel, plan.expert_tensor_parallel),
        ):
            away = away + np.abs(np.log(degree / own))[:, None]
        return away <= np.log(NEAR) * (1 + TOLERANCE)
