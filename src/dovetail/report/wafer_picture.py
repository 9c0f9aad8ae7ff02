"""A plan on the dies of a wafer: stages, groups, how full links are, what is dead, left over and lent.

A link's load is the part of what it could carry in the step that it did carry. The simulation knows it by die and axis:
a die's two links along rows are one port, and so are those along columns, with one chip for all of a stage unless every
chip was simulated. Shown between two neighbours is the mean of both their ports along that axis, both directions
together; which of a die's two links carries more is not known, nor what dies without a stage pass on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.hardware import Cluster, DefectMap
from dovetail.hardware.defects import Position, check_defects, grid_links, grid_positions
from dovetail.plans.arrange import Arrangement
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import num_wafers, on_tiles, stage_tiles
from dovetail.plans.wafer_part import Loan
from dovetail.plans.wafer_tiles import DieTile, die_tiles, tile_dies, wafer_shape
from dovetail.report.step_breakdown import link_utilisation, store_shares
from dovetail.report.step_items import num_stages, stage_chips
from dovetail.simulation.simulate import Simulation

#: Of more wafers the first are shown.
MOST_WAFERS = 4


class Link(NamedTuple):
    """Two neighbours and how full the link between them is; None where nothing is known of it."""

    one: Position
    other: Position
    load: float | None


@frozen
class WaferPicture:
    """One of the wafers that a plan is on."""

    name: str
    wafer: int
    wafers: int
    shape: Position
    stages: int
    contexts: int
    #: whether stages are tiles with layouts, which may leave dies over
    tiled: bool
    #: by position; dies that are dead have no part in the plan
    dies: dict[Position, DieTile]
    defects: DefectMap
    #: by row, column and axis: along rows of the grid (from row to row) and along columns
    loads: Floats
    #: of stages on this wafer and on others
    loans: tuple[Loan, ...] = ()
    #: how full the link to the store is, where the plan uses one
    store_share: float | None = None

    @property
    def dead(self) -> frozenset[Position]:
        """Dies that do not work."""
        return frozenset(self.defects.dead_dies)

    @property
    def left_over(self) -> frozenset[Position]:
        """Dies that work and have no stage."""
        return frozenset(grid_positions(*self.shape)) - self.dead - self.dies.keys()

    def links(self) -> list[Link]:
        """Links that work between dies that work."""
        gone, dead = set(self.defects.dead_links), self.dead
        pairs = [pair for pair in grid_links(*self.shape) if pair not in gone and dead.isdisjoint(pair)]
        return [Link(one, other, self._load(one, other)) for one, other in pairs]

    def _load(self, one: Position, other: Position) -> float | None:
        if one not in self.dies or other not in self.dies:
            return None
        axis = int(one[0] == other[0])
        return float(self.loads[*one, axis] + self.loads[*other, axis]) / 2

    def dead_links(self) -> list[tuple[Position, Position]]:
        """Links that do not work although their dies do."""
        return [pair for pair in self.defects.dead_links if self.dead.isdisjoint(pair)]

    def has_border(self, one: Position, other: Position) -> bool:
        """Whether two dies are of different tensor groups."""
        first, second = self.dies.get(one), self.dies.get(other)
        return first is not None and second is not None and first.tensor_group != second.tensor_group


def wafer_pictures(simulation: Simulation, arrangement: Arrangement, cluster: Cluster) -> list[WaferPicture]:
    """The wafers of a simulated plan; whatever it has on dead dies is not shown."""
    plan, shape, wafers = simulation.plan, wafer_shape(cluster), num_wafers(cluster)
    defects = cluster.defects or (DefectMap(),) * wafers
    for each in defects:
        check_defects(each, *shape, "defects")
    dead = [set(each.dead_dies) for each in defects]
    loads = np.zeros((wafers, *shape, 2))
    dies: list[dict[Position, DieTile]] = [{} for _ in range(wafers)]
    by_chip = _axis_loads(simulation, link_utilisation(simulation))
    for die in _plan_dies(plan, arrangement, cluster):
        # folded, one chip is that of its whole stage
        loads[die.wafer, die.row, die.col] = by_chip[die.stage, die.chip % by_chip.shape[1]]
        if (die.row, die.col) not in dead[die.wafer]:
            dies[die.wafer][die.row, die.col] = die
    loans = () if plan.wafer is None else plan.wafer.loans
    stores = dict(enumerate(store_shares(simulation)))
    counts = num_stages(simulation), plan.context_parallel, on_tiles(plan, cluster)
    return [
        WaferPicture(cluster.name, n, wafers, shape, *counts, dies[n], defects[n], loads[n], loans, stores.get(n))
        for n in range(min(wafers, MOST_WAFERS))
    ]


def _plan_dies(plan: Plan, arrangement: Arrangement, cluster: Cluster) -> tuple[DieTile, ...]:
    """The dies of all stages."""
    if plan.layouts is None:
        return die_tiles(plan, arrangement, cluster)
    return tile_dies(stage_tiles(plan, cluster), plan.layouts)


def _axis_loads(simulation: Simulation, shares: Floats) -> Floats:
    # ports of a chip: ways from the inside out, the two axes of the grid first, each out and in; stores come behind all
    ports = shares[: simulation.tasks.port_links]
    return ports.reshape(num_stages(simulation), stage_chips(simulation), -1, 2)[:, :, :2].mean(axis=3)
