"""A lower bound over everything a framework runs: interleaved stages may be partitioned in any way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.arrays import TOLERANCE
from dovetail.bounds.batch import Batch
from dovetail.plans.skeletons import PlanSkeletons
from dovetail.search.best_first import BestFirst
from dovetail.search.progress import NOTHING, OpenPlans, Progress
from dovetail.search.time_limit import OutOfTimeError


class AnyPartition(BestFirst):
    """Bounds of interleaved plans over all their partitions, with the tables of a finished search.

    The search tries partitions into chunks that are alike but the first and the last; a framework that takes a list of
    layers runs others too. Here they are bounded, not tried.
    """

    def __init__(self, finished: BestFirst, proven_s: float) -> None:
        self.__dict__.update(finished.__dict__)
        before = finished.progress
        self.progress = Progress(below_s=proven_s, top=2, best=before.best, counts=replace(before.counts))
        self._open = []
        self.lowest_s = proven_s

    @property
    def needed(self) -> bool:
        """Whether the framework runs partitions that the search does not try."""
        return self.space.partition == "any" and "interleaved" in self.space.pipeline_schedule

    def bound(self) -> float:
        """No plan takes less; where time runs out, as far as stage degrees alone tell."""
        bounds = self._pairs.seconds
        staged = np.array(self.space.pipeline_parallel) > 1
        selected = (bounds < self.lowest_s) & staged
        order = np.argsort(np.where(selected, bounds, np.inf), axis=None, kind="stable")
        order = order[np.isfinite(np.where(selected, bounds, np.inf).ravel()[order])]
        done = 0
        try:
            while done < len(order) and bounds.ravel()[order[done]] < self.lowest_s:
                opened = order[done : done + 512]
                chosen = np.zeros(bounds.size, np.bool_)
                chosen[opened[bounds.ravel()[opened] < self.lowest_s]] = True
                self.progress.below_s = self.lowest_s
                self._round(chosen.reshape(bounds.shape), NOTHING)
                done += 512
        except OutOfTimeError:
            return min(self.lowest_s, float(bounds.ravel()[order[done]]))
        return self.lowest_s

    def _open_skeletons(self, skeletons: PlanSkeletons, rest: OpenPlans) -> None:
        del rest
        skeletons = skeletons.take(skeletons.chunks > 1)
        if not len(skeletons):
            return
        batch = Batch(self.tables, skeletons)
        state_bytes = self._pairs.state_bytes(skeletons)
        bounds = batch.screen(state_bytes, self._leanest, self.lowest_s, listed=False)
        lowest = bounds.min(axis=1)
        order = np.argsort(lowest, kind="stable")
        for start in range(0, len(order), 64):
            rows = order[start : start + 64]
            rows = rows[lowest[rows] < self.lowest_s * (1 - TOLERANCE)]
            if not len(rows):
                return
            self._check_time()
            candidates = self._candidates(batch, rows, bounds, self.lowest_s)
            bound = batch.bound(candidates, self._leanest, self.lowest_s, listed=False)
            self.lowest_s = min(self.lowest_s, float(bound.min(initial=np.inf)))
