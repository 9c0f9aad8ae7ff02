"""The chips that are simulated: one for every stage of the pipeline, or each for itself; their ports and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dovetail.cost.calibration import Efficiencies
from dovetail.cost.collective import TierArrays
from dovetail.cost.units import tier_arrays
from dovetail.hardware import Cluster
from dovetail.layout.axes import AtomicAxes
from dovetail.placement.plan import Plan
from dovetail.simulation.layer_steps import Message
from dovetail.simulation.network import Ints, Network, Routes

#: What a chip has for every tier: a port it sends through and one it receives through.
DIRECTIONS = ("out", "in")


@dataclass(slots=True)
class Chips:
    """Chips of all stages, their ports as links, and the routes messages take.

    Folded, one chip of every stage stands for all of it: chips of a stage do the same at the same time, each with
    ports of its own. A message of a group then loads the ports of this chip as it loads those of any other.
    """

    plan: Plan
    cluster: Cluster
    tiers: tuple[TierArrays, ...]
    axes: AtomicAxes
    exact: bool
    routes: Routes = field(default_factory=Routes)
    _groups: dict[tuple[str, ...], Ints] = field(default_factory=dict[tuple[str, ...], "Ints"])

    @staticmethod
    def of(plan: Plan, cluster: Cluster, axes: AtomicAxes, efficiencies: Efficiencies, *, exact: bool) -> Chips:
        """The chips of a plan on a cluster."""
        tiers = tuple(tier_arrays(cluster.chip, tier, efficiencies) for tier in cluster.tiers)
        return Chips(plan, cluster, tiers, axes, exact)

    @property
    def stage_chips(self) -> int:
        """Chips of a stage."""
        return self.plan.data_parallel * self.plan.context_parallel * self.plan.tensor_parallel

    @property
    def simulated(self) -> int:
        """Chips of a stage that are simulated."""
        return self.stage_chips if self.exact else 1

    def port(self, stage: int, chip: int, tier: int, direction: int) -> int:
        """The link that a simulated chip's port is."""
        return ((stage * self.simulated + chip) * len(self.tiers) + tier) * len(DIRECTIONS) + direction

    def groups(self, axes: tuple[str, ...]) -> Ints:
        """Of every simulated chip of a stage the group it is in, of those along axes."""
        if not self.exact:
            return np.zeros(1, np.int64)
        if axes not in self._groups:
            place, fixed, low = np.arange(self.stage_chips), np.zeros(self.stage_chips, np.int64), 1
            for axis, size in self.axes.sizes.items():
                if axis not in axes:
                    fixed += place // low % size * low
                low *= size
            self._groups[axes] = np.unique(fixed, return_inverse=True)[1].reshape(-1)
        return self._groups[axes]

    def collective(self, message: Message, stage: int) -> tuple[list[int], float]:
        """The routes of a collective, one for each of its groups in a stage, and the bytes of its busiest port."""
        most = max(sent for _, sent in message.bytes_by_tier)
        groups = self.groups(message.axes)
        loads: list[dict[int, float]] = [{} for _ in range(int(groups.max()) + 1)]
        for chip, group in enumerate(groups.tolist()):
            for tier, sent in message.bytes_by_tier:
                for direction in range(len(DIRECTIONS)):
                    loads[group][self.port(stage, chip, tier, direction)] = sent / most
        return [self.routes.add(load) for load in loads], most

    def transfer(self, source: int, target: int) -> tuple[Ints, list[int]]:
        """From the chips of a stage to those of another: the tier of every message, and its route.

        Folded, chips whose ways lie on different tiers are stood for by one on the outermost of these.
        """
        tiers = self._tiers_between(source, target)
        if not self.exact:
            tiers = tiers.max(keepdims=True)
        return tiers, [
            self.routes.add({self.port(source, chip, tier, 0): 1.0, self.port(target, chip, tier, 1): 1.0})
            for chip, tier in enumerate(tiers.tolist())
        ]

    def folds(self) -> bool:
        """Whether neighbouring stages lie alike for all chips, so that one can stand for all."""
        p = self.plan.pipeline_parallel
        pairs = [(stage, (stage + 1) % p) for stage in range(p)] if p > 1 else []
        return all(np.ptp(self._tiers_between(*pair)) == 0 for pair in pairs)

    def across(self, stages: Sequence[int], tier: int) -> list[int]:
        """Routes of collectives between the same chips of several stages."""
        return [
            self.routes.add({self.port(s, chip, tier, d): 1.0 for s in stages for d in range(len(DIRECTIONS))})
            for chip in range(self.simulated)
        ]

    def network(self) -> Network:
        """All ports with their rates, and all routes that were asked for."""
        chips = self.plan.pipeline_parallel * self.simulated
        rates = [float(tier.bytes_per_s * tier.efficiency) for tier in self.tiers]
        return self.routes.network(rate for _ in range(chips) for rate in rates for _ in DIRECTIONS)

    def link_names(self) -> list[str]:
        """What every link is called."""
        names = [f"{tier.name} {direction}" for tier in self.cluster.tiers for direction in DIRECTIONS]
        return names * (self.plan.pipeline_parallel * self.simulated)

    def _tiers_between(self, source: int, target: int) -> Ints:
        """For every chip of a stage, the innermost tier that also holds its fellow of another stage."""
        one, other = self._positions(source), self._positions(target)
        found = np.full(len(one), len(self.cluster.tiers) - 1)
        for number, tier in reversed(list(enumerate(self.cluster.tiers))):
            found[one // tier.size == other // tier.size] = number
        return found

    def _positions(self, stage: int) -> Ints:
        """Where in the cluster the chips of a stage are."""
        copy, place = self.plan.tensor_parallel * self.plan.context_parallel, np.arange(self.stage_chips)
        if not self.plan.stages_inside:
            return stage * self.stage_chips + place
        return (place // copy * self.plan.pipeline_parallel + stage) * copy + place % copy
