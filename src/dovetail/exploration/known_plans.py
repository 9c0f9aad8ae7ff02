"""Plans found on one design, tried on others: what they take there, and where a climb over neighbours ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats, Ints, numbers
from dovetail.bounds.design_tables import DesignTables
from dovetail.exploration.best_plans import plan_of
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.hardware import Cluster, Tier
from dovetail.hardware.design_space.space import DesignSpace
from dovetail.plans.space import listed

#: Places along an axis to the neighbours of a design, and steps of a climb at most.
STRIDES, STEPS = (1, 2, 4), 64


class KnownPlans:
    """Plans, one of each job, priced on candidates of a study."""

    def __init__(self, study: ResolvedStudy, plans: Sequence[str], count: int) -> None:
        self._study, self._plans = study, tuple(plans)
        #: chips the plans are for
        self._count = count
        self._tables: dict[tuple[int, tuple[Tier, ...]], list[DesignTables]] = {}

    def least_s(self, codes: Ints) -> Floats:
        """The mean step time of candidates with these plans, or a little less; infinite where one does not fit."""
        study = self._study
        seconds = np.full((len(codes), len(study.jobs)), np.inf)
        for position, rows, designs in study.candidates(codes):
            if study.positions[position].count != self._count:
                continue
            clusters, alike = study.clusters(position, designs), dict[tuple[Tier, ...], list[int]]()
            for member, cluster in enumerate(clusters):
                alike.setdefault(cluster.tiers, []).append(member)
            for tiers, members in alike.items():
                key = position, tiers
                if key not in self._tables:
                    self._tables[key] = list(self._new_tables(clusters[members[0]]))
                chips = [clusters[member].chip for member in members]
                for job, tables in enumerate(self._tables[key]):
                    seconds[rows[members], job] = tables.least_seconds(chips)
        return study.mean.of(seconds)

    def climbed(self, code: int) -> tuple[float, int]:
        """From neighbour to neighbour as long as the plans take less; what they take at the end, and where that is."""
        least_s = float(self.least_s(np.array([code]))[0])
        position, design = divmod(code, self._study.space.size)
        for _ in range(STEPS):
            space = self._study.positions[position].space
            around = self._study.codes(position, _neighbours(space, design))
            seconds = self.least_s(around)
            if not len(around) or seconds.min() >= least_s:
                break
            least_s, design = float(seconds.min()), int(around[seconds.argmin()]) % self._study.space.size
        return least_s, position * self._study.space.size + design

    def _new_tables(self, cluster: Cluster) -> Iterator[DesignTables]:
        """Tables of each plan alone, for the network of a cluster."""
        study = self._study
        for text, each in zip(self._plans, study.jobs, strict=True):
            space, plan = study.plans.resolve(each.job, cluster, study.framework), plan_of(text, each.job, cluster)
            fields = {name: getattr(plan, name) for name in listed() if name != "partition"}
            alone = {name: (value,) for name, value in fields.items() if value in getattr(space, name)}
            yield DesignTables(each.job, cluster, study.framework, replace(space, **alone))


def _neighbours(space: DesignSpace, design: int) -> Ints:
    """Designs within the limits with another value of one variable, or with more of one and less of another."""
    sizes = np.array([len(axis) for axis in space.axes])
    places = np.array(np.unravel_index(design, sizes))
    one = np.eye(len(sizes), dtype=np.int64)
    moves = [sign * stride * row for row in one for stride in STRIDES for sign in (-1, 1)]
    moves += [
        up * one[i] - down * one[j]
        for i in range(len(sizes))
        for j in range(len(sizes))
        if i != j
        for up in STRIDES
        for down in STRIDES
    ]
    moved = np.unique(np.clip(places + np.array(moves, np.int64).reshape(-1, len(sizes)), 0, sizes - 1), axis=0)
    found: Ints = np.array(np.ravel_multi_index(tuple(moved.T), tuple(numbers(sizes))), np.int64)
    return found[space.keeps(found)]
