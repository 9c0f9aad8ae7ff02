"""The chips that are simulated: one for every stage of the pipeline, or each for itself; their ports and groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dovetail.arrays import Ints
from dovetail.cost.calibration import Efficiencies
from dovetail.cost.tier import TierArrays
from dovetail.cost.units import way_arrays
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.hardware.network import ways
from dovetail.plans.arrange import PIPELINE, Arrangement
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import handover, is_turned, num_wafers, on_tiles, stage_tiles
from dovetail.plans.wafer_tiles import snake
from dovetail.simulation.layer_steps import Message
from dovetail.simulation.network import Network, Routes

#: What a chip has for every tier: a port it sends through and one it receives through.
DIRECTIONS = ("out", "in")


@frozen
class Transfer:
    """From a chip to its fellow of another stage."""

    wait_s: float
    #: bytes on the busiest port for each byte that is sent
    times: float
    route: int


@dataclass(slots=True)
class Chips:
    """Chips of all stages, their ports as links, and the routes messages take.

    Folded, one chip of every stage stands for all of it: chips of a stage do the same at the same time, each with
    ports of its own. A message of a group then loads the ports of this chip as it loads those of any other.
    """

    plan: Plan
    cluster: Cluster
    #: of the network: tiers, and axes of routed grids
    ways: tuple[TierArrays, ...]
    arrangement: Arrangement
    exact: bool
    routes: Routes = field(default_factory=Routes)
    _groups: dict[tuple[str, ...], Ints] = field(default_factory=dict[tuple[str, ...], "Ints"])

    @staticmethod
    def of(plan: Plan, cluster: Cluster, arrangement: Arrangement, efficiencies: Efficiencies, *, exact: bool) -> Chips:
        """The chips of a plan on a cluster."""
        return Chips(plan, cluster, way_arrays(cluster, efficiencies), arrangement, exact)

    @property
    def stage_chips(self) -> int:
        """Chips of a stage."""
        return self.plan.data_parallel * self.plan.context_parallel * self.plan.tensor_parallel

    @property
    def simulated(self) -> int:
        """Chips of a stage that are simulated."""
        return self.stage_chips if self.exact else 1

    def port(self, stage: int, chip: int, way: int, direction: int) -> int:
        """The link that a simulated chip's port is; along an axis of a grid a port is both links of that axis."""
        return ((stage * self.simulated + chip) * len(self.ways) + way) * len(DIRECTIONS) + direction

    def groups(self, axes: tuple[str, ...]) -> Ints:
        """Of every simulated chip of a stage the group it is in, of those along axes."""
        if not self.exact:
            return np.zeros(1, np.int64)
        if axes not in self._groups:
            place, fixed, low = np.arange(self.stage_chips), np.zeros(self.stage_chips, np.int64), 1
            for axis, size in self.arrangement.axes.sizes.items():
                if axis not in axes:
                    fixed += place // low % size * low
                low *= size
            self._groups[axes] = np.unique(fixed, return_inverse=True)[1].reshape(-1)
        return self._groups[axes]

    def collective(self, message: Message, stage: int) -> tuple[list[int], float]:
        """The routes of a collective, one for each of its groups in a stage, and the bytes of its busiest port."""
        most = max(sent for _, sent in message.bytes_by_way)
        groups = self.groups(message.axes)
        turned = self._is_turned(stage)
        loads: list[dict[int, float]] = [{} for _ in range(int(groups.max()) + 1)]
        for chip, group in enumerate(groups.tolist()):
            for along, sent in message.bytes_by_way:
                # the rows of a turned tile are the columns of the wafer
                way = 1 - along if turned and along < 2 else along
                for direction in range(len(DIRECTIONS)):
                    loads[group][self.port(stage, chip, way, direction)] = sent / most
        return [self.routes.add(load) for load in loads], most

    def transfer(self, source: int, target: int) -> list[Transfer]:
        """From the chips of a stage to those of another.

        Folded, one chip stands for those whose ways are on different tiers, on the outermost of these.
        """
        if on_tiles(self.plan, self.cluster):
            return self._over_tiles(source, target)
        tiers = self._tiers_between(source, target)
        if not self.exact:
            tiers = tiers.max(keepdims=True)
        return [self._transfer(source, target, chip, tier) for chip, tier in enumerate(tiers.tolist())]

    def _over_tiles(self, source: int, target: int) -> list[Transfer]:
        """The same between tiles of wafers: over the links on the way, or off the wafer."""
        way = handover(self.plan, self.cluster, source, target)
        each = self.ways[0] if way.hops else self.ways[-1]
        # a link carries a message of each of its hops; and of a port's two links one is used
        times = 2.0 * way.messages if way.hops else 1.0
        used = self._axes_between(source, target) if way.hops else [len(self.ways) - 1]
        wait_s = max(way.hops, 1) * float(each.latency_s) + float(each.launch_s)
        transfers: list[Transfer] = []
        for chip in range(self.simulated):
            parts = {self.port(s, chip, w, d): 1.0 for w in used for d, s in enumerate((source, target))}
            transfers.append(Transfer(wait_s, times, self.routes.add(parts)))
        return transfers

    def _is_turned(self, stage: int) -> bool:
        if self.plan.layouts is None or not on_tiles(self.plan, self.cluster):
            return False
        return is_turned(stage_tiles(self.plan, self.cluster)[stage], self.plan.layouts)

    def _axes_between(self, source: int, target: int) -> list[int]:
        """The axes along which two tiles are apart."""
        tiles = stage_tiles(self.plan, self.cluster)
        one, other = tiles[source], tiles[target]
        apart = [axis for axis, distance in enumerate((one.row - other.row, one.col - other.col)) if distance]
        return apart or [0]

    def _transfer(self, source: int, target: int, chip: int, tier: int) -> Transfer:
        along = [n for n, way in enumerate(ways(self.cluster.tiers)) if way.tier == tier]
        first = self.ways[along[0]]
        if first.grid is None:
            parts = {self.port(source, chip, along[0], 0): 1.0, self.port(target, chip, along[0], 1): 1.0}
            return Transfer(float(first.latency_s + first.launch_s), 1.0, self.routes.add(parts))
        hops = dict(zip(along, self._hops(source, target, along), strict=True))
        # all chips of a stage send at once, so a link carries a message of each of its hops; and of a port's two links
        # one is used
        most = max(hops.values())
        loads = {way: n / most for way, n in hops.items() if n}
        parts = {self.port(s, chip, w, d): part for w, part in loads.items() for d, s in enumerate((source, target))}
        wait_s = sum(hops.values()) * float(first.latency_s) + float(first.launch_s)
        return Transfer(wait_s, 2.0 * most, self.routes.add(parts))

    def _hops(self, source: int, target: int, along: Sequence[int]) -> list[int]:
        """Links between stages along the axes of a grid, on which they follow each other in a snake."""
        joins, strides = (getattr(self.arrangement, field)[PIPELINE] for field in ("joins", "strides"))
        one, other = (snake(stage, [joins[way] for way in along]) for stage in (source, target))
        return [abs(a - b) * strides[way] for a, b, way in zip(one, other, along, strict=True)]

    def folds(self) -> bool:
        """Whether neighbouring stages are placed alike for all chips, so that one can stand for all."""
        if on_tiles(self.plan, self.cluster):
            return True
        p = self.plan.pipeline_parallel
        pairs = [(stage, (stage + 1) % p) for stage in range(p)] if p > 1 else []
        return all(np.ptp(self._tiers_between(*pair)) == 0 for pair in pairs)

    def across(self, stages: Sequence[int], way: int) -> list[int]:
        """Routes of collectives between the same chips of several stages."""
        return [
            self.routes.add({self.port(s, chip, way, d): 1.0 for s in stages for d in range(len(DIRECTIONS))})
            for chip in range(self.simulated)
        ]

    def network(self) -> Network:
        """All ports with their rates, and all routes that were asked for."""
        chips = self.plan.pipeline_parallel * self.simulated
        rates = [float(way.bytes_per_s * way.efficiency) for way in self.ways]
        ports = [rate for _ in range(chips) for rate in rates for _ in DIRECTIONS]
        return self.routes.network([*ports, *self._store_rates()])

    def _store_rates(self) -> list[float]:
        """Bytes a second of the store of every wafer, where the plan uses them."""
        if self.plan.wafer is None or not self.plan.wafer.store or self.cluster.store is None:
            return []
        return [self.cluster.store.bytes_per_s] * num_wafers(self.cluster)

    def store_route(self, wafers: Iterable[int]) -> int:
        """The route between dies and the stores of these wafers."""
        first = self.plan.pipeline_parallel * self.simulated * len(self.ways) * len(DIRECTIONS)
        return self.routes.add({first + wafer: 1.0 for wafer in wafers})

    def link_names(self) -> list[str]:
        """What every link is called."""
        names = [f"{name} {direction}" for name in self._way_names() for direction in DIRECTIONS]
        stores = [f"store {wafer}" for wafer in range(len(self._store_rates()))]
        return names * (self.plan.pipeline_parallel * self.simulated) + stores

    def _way_names(self) -> list[str]:
        tiers = self.cluster.tiers
        return [
            tiers[way.tier].name if way.axis is None else f"{tiers[way.tier].name} axis {way.axis}"
            for way in ways(tiers)
        ]

    def _tiers_between(self, source: int, target: int) -> Ints:
        """For every chip of a stage, the innermost tier that also holds its fellow of another stage."""
        one, other = self._positions(source), self._positions(target)
        tiers = np.full(len(one), len(self.cluster.tiers) - 1)
        for number, tier in reversed(list(enumerate(self.cluster.tiers))):
            tiers[one // tier.size == other // tier.size] = number
        return tiers

    def _positions(self, stage: int) -> Ints:
        """Where in the cluster the chips of a stage are."""
        replica_chips, place = self.plan.tensor_parallel * self.plan.context_parallel, np.arange(self.stage_chips)
        if not self.plan.stages_inside:
            return stage * self.stage_chips + place
        return (place // replica_chips * self.plan.pipeline_parallel + stage) * replica_chips + place % replica_chips
