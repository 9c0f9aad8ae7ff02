"""Wafers: a grid of dies with memory beside them, the links between neighbours, and what of it is dead."""

from __future__ import annotations

from dataclasses import field, replace

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware.chip import Chip
from dovetail.hardware.cluster import Cluster, Store
from dovetail.hardware.defects import DefectMap, Link, Position, check_defects, components, grid_links, grid_positions
from dovetail.hardware.fields import Doubts
from dovetail.hardware.integration import Integration
from dovetail.hardware.network import MAX_CHIPS, Tier

#: A square that a wafer of 300 mm holds (Theseus; the side of Cerebras' wafers).
USABLE_MM = 215.0
#: Between the dies of a wafer (wafer templates).
GAP_MM = 0.8
#: One HBM stack: along the edge of the die it stands at, and away from it.
STACK_ALONG_MM = 10.0
STACK_DEPTH_MM = 11.0

#: Edges of a die, each with a link to a neighbour.
EDGES = 4


@frozen
class Wafer:
    """A grid of equal dies on one wafer; lengths in millimetres, rates in one direction."""

    name: str
    die: Chip
    """one die with the memory beside it; its own network does not count here"""
    integration: Integration
    rows: int
    cols: int
    die_width_mm: float
    die_height_mm: float
    d2d_bytes_per_s: float
    """what a die sends, and at the same time receives, over one of its four edges"""
    d2d_latency_s: float
    """one hop, from a die to its neighbour"""
    power_limit_w: float
    """what the wafer can be supplied with and cooled by"""
    title: str = ""
    width_mm: float = USABLE_MM
    """of the part of the wafer that dies and memory may take"""
    height_mm: float = USABLE_MM
    gap_mm: float = GAP_MM
    stack_along_mm: float = STACK_ALONG_MM
    """of one HBM stack, along the edge of its die; stacks stand in columns east of the die, then west"""
    stack_depth_mm: float = STACK_DEPTH_MM
    edge_bytes_per_s: float = 0.0
    """off the wafer, all its rim together"""
    edge_latency_s: float = 0.0
    store_bytes: float = 0.0
    """memory off the wafer that it streams from"""
    store_bytes_per_s: float = 0.0
    spare_dies: int = 0
    """dies that may be dead: the wafer is sold with as many less"""
    least_yield: float = 0.5
    """part of the wafers that must come out as sold for it to be worth making"""
    defects: DefectMap = field(default_factory=DefectMap)
    source: str = ""
    doubts: Doubts = ()

    def __post_init__(self) -> None:
        where = f"wafer {self.name}"
        if self.rows < 1 or self.cols < 1 or self.rows * self.cols > MAX_CHIPS:
            fix = f"it should have 1 to {MAX_CHIPS} dies"
            raise InputError(f"{where}: rows, cols", f"are {self.rows} and {self.cols}", fix)
        if not 0 <= self.spare_dies < self.dies:
            fix = f"it should be from 0 to {self.dies - 1}"
            raise InputError(f"{where}: spare_dies", f"is {self.spare_dies}", fix)
        check_defects(self.defects, self.rows, self.cols, f"{where}: defects")

    @property
    def dies(self) -> int:
        """Places of the grid, dead or not."""
        return self.rows * self.cols

    @property
    def hbm_stacks(self) -> int:
        """Beside each die."""
        return (self.die.hbm_stacks or 1) if self.die.hbm_bytes else 0

    def live_dies(self) -> tuple[Position, ...]:
        """The dies that work, row by row."""
        dead = set(self.defects.dead_dies)
        return tuple(die for die in grid_positions(self.rows, self.cols) if die not in dead)

    def links(self) -> tuple[Link, ...]:
        """The links that work, between dies that work."""
        dead, gone = set(self.defects.dead_dies), set(self.defects.dead_links)
        pairs = grid_links(self.rows, self.cols)
        return tuple((a, b) for a, b in pairs if a not in dead and b not in dead and (a, b) not in gone)

    def connected_dies(self) -> tuple[Position, ...]:
        """The largest set of working dies that reach each other; of equal ones the first; row by row."""
        parts = components(self.live_dies(), self.links())
        return max(parts, key=len, default=())

    def with_defects(self, defects: DefectMap) -> Wafer:
        """The same wafer with another map of defects."""
        return replace(self, defects=defects)

    def cluster(self, wafers: int = 1) -> Cluster:
        """The grid as a cluster of its dies: a mesh of them, and edge links between several wafers, all damaged alike.

        It counts every die of the grid, dead or not: plans use none of the dead ones.
        """
        if wafers < 1 or wafers * self.dies > MAX_CHIPS:
            raise InputError("wafers", f"is {wafers}", f"it should be from 1 to {MAX_CHIPS // self.dies}")
        if wafers > 1 and not self.edge_bytes_per_s:
            raise InputError(f"wafer {self.name}: edge_bytes_per_s", "is 0", "several wafers need links between them")
        shape, rate = (self.rows, self.cols), EDGES * self.d2d_bytes_per_s
        mesh = Tier("d2d", self.dies, "mesh", rate, self.d2d_latency_s, shape=shape, routed=True)
        # each die has its part of what leaves the wafer
        edge = Tier("edge", wafers * self.dies, "switch", self.edge_bytes_per_s / self.dies, self.edge_latency_s)
        tiers = (*([mesh] if self.dies > 1 else []), *([edge] if wafers > 1 else []))
        chip = replace(self.die, tiers=tiers, link_ports=EDGES, link_reach="package")
        name = self.name if wafers == 1 else f"{self.name}-{wafers}"
        store = Store(self.store_bytes, self.store_bytes_per_s) if self.store_bytes else None
        defects = (self.defects,) * wafers if self.defects != DefectMap() else ()
        return Cluster(name, chip, wafers * self.dies, tiers, self.source, store=store, defects=defects)
