"""Where a candidate stands: on which hardware, how many of it, and the network between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration import wafers
from dovetail.hardware import Chip, Cluster, Tier
from dovetail.hardware.cluster import check_chips
from dovetail.hardware.design import Designs
from dovetail.hardware.design_space.space import DesignSpace
from dovetail.hardware.network import fit_tiers
from dovetail.hardware.network_file import ClusterNetwork, network_tiers
from dovetail.hardware.wafer_design import WaferDesigns


@dataclass(frozen=True)
class Position:
    """The designs of one space in one number, with one network: a block of a study's candidates."""

    #: of the hardware: its space, or the chip of the catalogue it is
    name: str
    #: with all limits of the study
    space: DesignSpace
    #: chips or wafers
    count: int
    #: None: the links of each design
    tiers: tuple[Tier, ...] | None = None
    #: instead of tiers: a network that joins each design
    network: ClusterNetwork | None = None
    #: whether it is a chip to compare with: the one design of its space
    reference: bool = False
    #: whether the limits of the study can be told of it
    limited: bool = True

    @property
    def size(self) -> int:
        """Designs before any limit."""
        return self.space.size

    @property
    def of_wafers(self) -> bool:
        """Whether designs are wafers."""
        return self.space.wafer is not None

    @property
    def estimated(self) -> bool:
        """Whether plans take the energy of operations from the technology that its chips name."""
        return self.space.chip(0).technology is not None

    def working(self, designs: Designs) -> Floats:
        """Chips that plans use: all, or the dies planned of wafers."""
        count = np.asarray(float(self.count))
        return count * designs.planned_dies if isinstance(designs, WaferDesigns) else count

    def clusters(self, designs: Sequence[int] | Ints) -> list[Cluster]:
        """The clusters of designs."""
        if self.of_wafers:
            return wafers.clusters_of(self.space, designs, self.count)
        return [self.cluster(chip) for chip in self.space.chips(designs)]

    def cluster(self, chip: Chip) -> Cluster:
        """A cluster of a chip."""
        check_chips(self.count)
        if self.network is not None:
            tiers = network_tiers(self.network, chip, self.count, "cluster.chips")
        else:
            tiers = fit_tiers(chip.tiers if self.tiers is None else self.tiers, self.count, "cluster.chips")
        return Cluster(f"{self.count} {chip.name}", chip, self.count, tiers)

    @cached_property
    def bounding_cluster(self) -> Cluster:
        """The cluster of the base, with tiers beyond the links no slower than those of any design."""
        cluster = self.cluster(self.space.base)
        inner, outer = cluster.tiers[:1], cluster.tiers[1:]
        # a tier that takes the rate of the links varies with them
        free = tuple(replace(tier, bytes_per_s=math.inf) if tier.ports == "links" else tier for tier in outer)
        return replace(cluster, tiers=(*inner, *free))

    def linked(self, designs: Designs) -> Designs:
        """Designs with the links of the cluster's network, where that replaces their own."""
        own = self.tiers is None if self.network is None else self.network.takes_links
        tiers = self.bounding_cluster.tiers
        if own or not tiers:
            return designs
        rate = np.asarray(tiers[0].bytes_per_s)
        return designs.varied({"link_ports": np.ones(()), "link_port_bytes_per_s": rate})
