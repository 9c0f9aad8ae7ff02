"""What wafers take: the dies' silicon on the room they have, edge, wires, power and yield, for arrays of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dovetail.arrays import TOLERANCE, Floats
from dovetail.hardware.integration import LinkNumbers
from dovetail.hardware.silicon import wafer_geometry
from dovetail.hardware.silicon.area import CORE_PARTS, area_parts
from dovetail.hardware.silicon.estimate import ESTIMATES, Silicon
from dovetail.hardware.silicon.power import PEAK, Activity, power_parts
from dovetail.hardware.silicon.wafer_yield import harvested_yield, sites_yield
from dovetail.hardware.wafer_design import WaferDesigns, wafer_design_of


@dataclass(frozen=True)
class WaferSilicon(Silicon):
    """The estimate of wafers; where the base's die has a published area or power, all scale with what was published."""

    designs: WaferDesigns
    anchored: bool = True
    """scaled with what was published of the base's die"""

    @cached_property
    def links(self) -> LinkNumbers:
        """The coefficients of the integration."""
        return self.designs.wafer.integration.numbers(self.end)

    @cached_property
    def die_share(self) -> Floats:
        """Silicon of a die over the room it has; above 1 its parts do not fit."""
        return self.die_area_mm2 / self.designs.die_mm2

    @cached_property
    def area_parts(self) -> dict[str, Floats]:
        """Square millimetres of one die by part."""
        return {name: self._anchors[0] * area for name, area in area_parts(self.designs, self.numbers).items()}

    @cached_property
    def reticle_share(self) -> Floats:
        """A die over what a scanner exposes at once, by its longer and shorter side."""
        return wafer_geometry.reticle_share(self.designs)

    @cached_property
    def grid_share(self) -> Floats:
        """The grid with its memory over the room of the wafer."""
        return wafer_geometry.grid_share(self.designs)

    @cached_property
    def shoreline_share(self) -> Floats:
        """Edge that links, memory and what leaves the wafer need, over what there is, where it is fullest."""
        return wafer_geometry.shoreline_share(self.designs, self.numbers, self.links)

    @cached_property
    def wire_share(self) -> Floats:
        """The longest wire over how far links reach."""
        return wafer_geometry.wire_mm(self.designs) / self.links.wire_reach_mm

    def power_parts(self, activity: Activity) -> dict[str, Floats]:
        """Watts of one die by part, with its memory; links by the energy of the integration."""
        parts = power_parts(self.designs, self.numbers, self.area_mm2, activity)
        parts["links"] = activity.links * self.designs.link_bytes_per_s * self.links.link_energy_j_per_byte
        return {name: watts if name == "memory" else self._anchors[1] * watts for name, watts in parts.items()}

    @cached_property
    def die_power_w(self) -> Floats:
        """Of one die at its peak without the memory beside it."""
        return self.peak_power_w - self.power_parts(PEAK)["memory"]

    @cached_property
    def wafer_power_w(self) -> Floats:
        """Of all dies that are not spare, at their peak, with memory and links."""
        return (self.designs.grid_dies - self.designs.spare_dies) * self.peak_power_w

    @cached_property
    def power_share(self) -> Floats:
        """The wafer's power over its limit."""
        return self.wafer_power_w / self.designs.power_limit_w

    @cached_property
    def die_yield(self) -> Floats:
        """Part of the dies that work, those with dead cores that are spare included."""
        made = self.designs.made("vector_cores")
        return self._harvested(np.floor((made - 1) * self.designs.vector_cores + TOLERANCE))

    @cached_property
    def unharvested_yield(self) -> Floats:
        """Part of the dies that would work if every core had to."""
        return self._harvested(np.zeros(()))

    @cached_property
    def site_yield(self) -> Floats:
        """Part of the places of a wafer with a die that works: made there, or picked and bonded with its stacks."""
        return self.die_yield if self.designs.wafer.integration.monolithic else self._bonded

    @cached_property
    def wafer_yield(self) -> Floats:
        """Part of the wafers with no more dead dies than spare ones."""
        return sites_yield(self.site_yield, self.designs.grid_dies, self.designs.spare_dies)

    @cached_property
    def monolithic_yield(self) -> Floats:
        """What the yield would be if the dies stayed where they were exposed."""
        return sites_yield(self.die_yield, self.designs.grid_dies, self.designs.spare_dies)

    @cached_property
    def known_good_yield(self) -> Floats:
        """What the yield would be if good dies were picked and bonded."""
        return sites_yield(self._bonded, self.designs.grid_dies, self.designs.spare_dies)

    @cached_property
    def yield_share(self) -> Floats:
        """What the yield must be over what it is; above 1 too few wafers come out."""
        with np.errstate(divide="ignore"):
            return self.designs.wafer.least_yield / self.wafer_yield

    def _harvested(self, spare_cores: Floats) -> Floats:
        parts, density = self.area_parts, self.numbers.defects_per_mm2
        cores = sum((parts[name] for name in CORE_PARTS), np.zeros(()))
        others = sum((area for name, area in parts.items() if name not in CORE_PARTS), np.zeros(()))
        fatal = density * self.links.fatal_share * others
        return harvested_yield(density * cores, fatal, spare_cores, self.numbers.defect_clustering)

    @cached_property
    def _bonded(self) -> Floats:
        monolithic = self.designs.wafer.integration.monolithic
        # what is never bonded has no figure of its own: the technology's
        each = self.numbers.bond_yield if monolithic else self.links.bond_yield
        return each ** (1 + self.designs.hbm_stacks)

    @cached_property
    def _anchors(self) -> tuple[float, float]:
        """Published area and power of the base's die over the estimates of them; 1 where nothing is published."""
        wafer = self.designs.wafer
        if not self.anchored or (wafer.die.area_mm2 is None and wafer.die.tdp_w is None):
            return 1.0, 1.0
        base = WaferSilicon(wafer_design_of(wafer), self.technology, self.end, anchored=False)
        estimated = base.area_mm2
        area = wafer.die.area_mm2 / float(estimated) if wafer.die.area_mm2 else 1.0
        parts = base.power_parts(PEAK)
        # leakage goes with the area that was published; memory stands beside the die
        parts["leakage"] = area * parts["leakage"]
        watts = float(sum((value for name, value in parts.items() if name != "memory"), np.zeros(())))
        return area, wafer.die.tdp_w / watts if wafer.die.tdp_w else 1.0


#: Figures of wafers that limits may name, beside those of their dies.
WAFER_ESTIMATES = (
    "die_share", "grid_share", "wire_share", "die_power_w", "wafer_power_w", "power_share", "unharvested_yield",
    "site_yield", "wafer_yield", "monolithic_yield", "known_good_yield", "yield_share",
)  # fmt: skip
assert not set(WAFER_ESTIMATES) & set(ESTIMATES)
