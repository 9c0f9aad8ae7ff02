"""The silicon estimate of many designs, each figure made when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dovetail.arrays import Floats
from dovetail.hardware.design import Designs
from dovetail.hardware.silicon.area import RETICLE_MM2, area_parts, shoreline_mm
from dovetail.hardware.silicon.cost import die_yield, package_parts, system_parts
from dovetail.hardware.silicon.power import PEAK, TYPICAL, Activity, power_parts
from dovetail.hardware.technology import End, Numbers, Technology


@dataclass(frozen=True)
class Silicon:
    """Area, edge, power and cost of designs in a technology, at its values or with all coefficients at one end."""

    designs: Designs
    technology: Technology
    end: End = "value"

    @cached_property
    def numbers(self) -> Numbers:
        """The coefficients."""
        return self.technology.numbers(self.end)

    @cached_property
    def area_parts(self) -> dict[str, Floats]:
        """Square millimetres of all dies by part."""
        return area_parts(self.designs, self.numbers)

    @cached_property
    def area_mm2(self) -> Floats:
        """Of all dies together."""
        return _total(self.area_parts)

    @cached_property
    def die_area_mm2(self) -> Floats:
        """Of one die."""
        return self.area_mm2 / self.designs.dies

    @cached_property
    def reticle_share(self) -> Floats:
        """A die over what a scanner exposes at once; above 1 it cannot be made."""
        return self.die_area_mm2 / RETICLE_MM2

    @cached_property
    def shoreline_share(self) -> Floats:
        """Edge that memory and links need over that of a square die; above 1 they do not fit."""
        return shoreline_mm(self.designs, self.numbers) / (4 * np.sqrt(self.die_area_mm2))

    def power_parts(self, activity: Activity) -> dict[str, Floats]:
        """Watts by part at an activity."""
        return power_parts(self.designs, self.numbers, self.area_mm2, activity)

    @cached_property
    def peak_power_w(self) -> Floats:
        """What a design power has to hold."""
        return _total(self.power_parts(PEAK))

    @cached_property
    def typical_power_w(self) -> Floats:
        """Of a training step."""
        return _total(self.power_parts(TYPICAL))

    @cached_property
    def die_yield(self) -> Floats:
        """Part of the dies that work."""
        return die_yield(self.designs, self.numbers, self.area_parts)

    @cached_property
    def package_parts(self) -> dict[str, Floats]:
        """Dollars of a package by part: dies, memory, package, bonding."""
        return package_parts(self.designs, self.numbers, self.die_area_mm2, self.die_yield)

    @cached_property
    def cost_usd(self) -> Floats:
        """To make a package: dies, memory, assembly; a price is what a seller asks."""
        return _total(self.package_parts)

    @cached_property
    def cost_parts(self) -> dict[str, Floats]:
        """The same with the dies by their parts, each at its part of their area."""
        package = dict(self.package_parts)
        per_mm2 = package.pop("dies") / self.area_mm2
        return {**{name: area * per_mm2 for name, area in self.area_parts.items()}, **package}

    @cached_property
    def system_parts(self) -> dict[str, Floats]:
        """Dollars of a chip with what stands around it, by part."""
        return system_parts(self.designs, self.numbers, self.cost_usd, self.peak_power_w)

    @cached_property
    def system_cost_usd(self) -> Floats:
        """With a chip's part of what stands around it."""
        return _total(self.system_parts)

    def parts(self) -> dict[str, dict[str, Floats]]:
        """Figure → part → its value; the parts of a figure add up to it."""
        return {
            "area_mm2": self.area_parts,
            "peak_power_w": self.power_parts(PEAK),
            "cost_usd": self.cost_parts,
            "system_cost_usd": self.system_parts,
        }


def _total(parts: Mapping[str, Floats]) -> Floats:
    return sum(parts.values(), np.zeros(()))


#: Figures of an estimate that limits and objectives may name.
ESTIMATES = (
    "area_mm2", "die_area_mm2", "reticle_share", "shoreline_share", "peak_power_w", "typical_power_w", "die_yield",
    "cost_usd", "system_cost_usd",
)  # fmt: skip
