"""The simplest plan within the tie margin of the fastest: what is recommended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.arrays import Bools, Floats, numbers
from dovetail.bounds.batch import Batch, Candidates, Evaluated
from dovetail.plans.plan import Plan
from dovetail.plans.skeletons import PlanSkeletons
from dovetail.search.best_first import BestFirst
from dovetail.search.progress import NOTHING, OpenPlans, Progress, simplicity
from dovetail.search.time_limit import OutOfTimeError

GIB = 2**30


def complexity(plan: Plan, headroom_bytes: float) -> tuple[object, ...]:
    """How plans within the tie margin are ordered, the simplest first.

    Fewer degrees above 1 among TP, CP, PP and EP; no uneven or empty chunks; fewer virtual stages; recompute none, then
    full, then selective, then lists; more headroom, in whole GiB; then as plans of equal time are ordered.
    """
    degrees = (plan.tensor_parallel, plan.context_parallel, plan.pipeline_parallel, plan.expert_parallel)
    return (
        sum(degree > 1 for degree in degrees),
        len(set(plan.layers_per_stage)) > 1,
        plan.virtual_stages,
        _rank(plan.recompute if plan.recompute_by_block is None else ("by block",), plan.recompute_share),
        -int(headroom_bytes // GIB),
        simplicity(plan),
    )


def _rank(choice: str | tuple[str, ...], share: float) -> int:
    words = ("none", "full", "selective")
    if choice == ():
        return 0
    # a share of the layers is one number more to set
    return words.index(choice) if choice in words and share == 1 else len(words)


class Simplest(BestFirst):
    """The search for the simplest plan of a space that takes no longer than some seconds, with the tables of another.

    Numbers of degrees above 1 are gone through from the least on, plans without virtual stages first.
    """

    def __init__(self, finished: BestFirst, within_s: float, usable_bytes: float) -> None:
        self.__dict__.update(finished.__dict__)
        before = finished.progress
        self.progress = Progress(below_s=within_s, top=2, best=before.best, counts=replace(before.counts))
        self._open = []
        self._usable_bytes = usable_bytes
        self._interleaved = False
        self._ranks = np.array([_rank(*policy) for policy in self.tables.policies], np.int64)
        self.simplest: tuple[tuple[object, ...], Plan] | None = None

    def search(self, fastest: Plan, headroom_bytes: float) -> Plan:
        """The simplest plan; the fastest itself where nothing simpler takes no longer, or time runs out."""
        self.simplest = (complexity(fastest, headroom_bytes), fastest)
        self._pairs.refine(self.progress.below_s)
        bounds, limit_s = self._pairs.seconds, self.progress.below_s
        degrees = self.tables.columns
        above = sum((np.asarray(part) > 1).astype(np.int64) for part in (
            degrees.tensor_parallel, degrees.context_parallel, degrees.expert_parallel
        ))  # fmt: skip
        stages = np.array(self.space.pipeline_parallel) > 1
        counts = np.asarray(above)[:, None] + stages
        try:
            for count in range(int(self.simplest[0][0]) + 1):  # pyright: ignore[reportArgumentType]
                for self._interleaved in (False, True):
                    selected = (counts == count) & (bounds < limit_s)
                    if self._could_be_simpler(count) and selected.any():
                        self._round(selected, NOTHING)
        except OutOfTimeError:
            pass
        return self.simplest[1]

    def _could_be_simpler(self, count: int) -> bool:
        assert self.simplest is not None
        return (count, False, self._interleaved) <= self.simplest[0][:3]

    def _open_skeletons(self, skeletons: PlanSkeletons, rest: OpenPlans) -> None:
        kept = skeletons.take((skeletons.chunks > 1) == self._interleaved)
        if len(kept):
            super()._open_skeletons(kept, rest)

    def _offer(self, batch: Batch, candidates: Candidates, evaluated: Evaluated, exact: Floats, fits: Bools) -> None:
        """Takes the simplest; of plans that cannot be simpler by what their rows say nothing more is made."""
        (rows,) = np.nonzero(fits & (exact < self.progress.below_s))
        uneven = np.array([len(set(layers)) > 1 for layers in self.tables.partitions.layers], np.bool_)
        headroom = np.floor((self._usable_bytes - evaluated.peak_bytes[rows]) / GIB)
        of = evaluated.candidate[rows]
        order = np.lexsort((
            exact[rows],
            -headroom,
            self._ranks[candidates.policy[of]],
            batch.skeletons.chunks[candidates.skeleton[of]],
            uneven[evaluated.partition[rows]],
        ))  # fmt: skip
        for position in numbers(order):
            row = int(rows[position])
            plan = self._plan(
                batch.skeletons,
                candidates,
                int(evaluated.candidate[row]),
                self.tables.partitions.layers[int(evaluated.partition[row])],
            )
            key = complexity(plan, self._usable_bytes - float(evaluated.peak_bytes[row]))
            assert self.simplest is not None
            if key[:5] > self.simplest[0][:5]:
                break
            if key < self.simplest[0]:
                self.simplest = (key, plan)

    def _sort_out(
        self,
        batch: Batch,
        candidates: Candidates,
        lowest: Floats,
        plans: Evaluated,
        exact: Floats,
        fits: Bools,
    ) -> None:
        """Partitions that are solved for are no simpler than those that are listed."""
        del batch, candidates, lowest, plans, exact, fits
