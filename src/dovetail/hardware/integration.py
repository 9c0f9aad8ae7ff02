"""Integration: how dies become one wafer, and what its links take in edge, energy, length and yield."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated

from pydantic import Field

from dovetail.documents import Spec
from dovetail.frozen import frozen
from dovetail.hardware.fields import Name, Text
from dovetail.hardware.technology import Coefficient, CoefficientSpec, End, EnergySpec, ShareSpec


@frozen
class Integration:
    """A way to join dies; every figure a coefficient with ends, as those of a technology."""

    name: str
    monolithic: bool
    """the dies stay on the wafer they were exposed on; otherwise good ones are picked and bonded (known good die)"""
    wire_reach_mm: Coefficient
    """from the centre of a die to that of its neighbour"""
    link_shoreline_mm_per_byte_per_s: Coefficient
    """edge of the die for each byte per second that is sent and received"""
    link_energy_j_per_byte: Coefficient
    link_yield: Coefficient
    """part of the links between two dies that work; a dead one is routed around"""
    bond_yield: Coefficient
    """of placing one die or stack; 1 where nothing is placed"""
    fatal_share: Coefficient
    """of the area outside cores: where a defect costs the die"""
    source: str = ""

    def numbers(self, end: End = "value") -> LinkNumbers:
        """The coefficients as plain numbers: at their values, all at the favourable end (low) or the other (high)."""
        return LinkNumbers(**{name: _at(getattr(self, name), name, end) for name in COEFFICIENTS})


@frozen
class LinkNumbers:
    """The coefficients of an integration at one end."""

    wire_reach_mm: float
    link_shoreline_mm_per_byte_per_s: float
    link_energy_j_per_byte: float
    link_yield: float
    bond_yield: float
    fatal_share: float


COEFFICIENTS = tuple(field.name for field in fields(LinkNumbers))

#: More of these is easier to build: their high end belongs to the others' low end.
_BETTER_HIGH = frozenset({"wire_reach_mm", "link_yield", "bond_yield"})


def _at(coefficient: Coefficient, name: str, end: End) -> float:
    if end == "value":
        return coefficient.value
    return coefficient.high if (end == "high") != (name in _BETTER_HIGH) else coefficient.low


class IntegrationSpec(Spec):
    """An integration file."""

    name: Name
    monolithic: bool
    wire_reach_mm: CoefficientSpec
    link_shoreline_mm_per_byte_per_s: CoefficientSpec
    link_energy_j_per_byte: EnergySpec
    link_yield: ShareSpec
    bond_yield: ShareSpec
    fatal_share: ShareSpec
    source: Annotated[Text, Field(min_length=1)]

    def integration(self) -> Integration:
        """The integration a file describes."""
        figures: dict[str, Coefficient] = {name: getattr(self, name).coefficient() for name in COEFFICIENTS}
        return Integration(name=self.name, monolithic=self.monolithic, source=self.source, **figures)
