"""Technology: what a node's transistors, memories and wires cost in area, energy and money."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.hardware.fields import Dollars, Joules, Name, SquareMillimetres, Text

Status = Literal["read", "run", "memory", "derived", "assumed"]
"""read: in the source named; run: computed with the tool named; memory: recalled; derived: scaled from others"""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A figure sources disagree on: the value to use, and the ends a study can run at."""

    value: float
    low: float
    high: float
    source: str
    status: Status


@dataclass(frozen=True, slots=True)
class Technology:
    """A node; a coefficient nobody has published is None."""

    name: str
    node_nm: float
    mac_area_mm2: Coefficient | None = None
    """one bf16 multiplier and float32 adder with its registers"""
    sram_area_mm2_per_byte: Coefficient | None = None
    """large arrays, with their decoders and wires"""
    logic_transistors_per_mm2: Coefficient | None = None
    hbm_phy_area_mm2: Coefficient | None = None
    """of one HBM stack's 1,024 data bits"""
    link_phy_area_mm2: Coefficient | None = None
    """of one port of a chip-to-chip link"""
    mac_energy_j: Coefficient | None = None
    """one bf16 multiplication and float32 addition, the datapath alone"""
    vector_energy_j: Coefficient | None = None
    """one float32 operation of a vector lane"""
    core_sram_energy_j_per_byte: Coefficient | None = None
    """tens of kilobytes beside a core"""
    shared_sram_energy_j_per_byte: Coefficient | None = None
    """tens of megabytes for the whole chip, the way there included"""
    hbm_energy_j_per_byte: Coefficient | None = None
    link_energy_j_per_byte: Coefficient | None = None
    """off the package, both ends"""
    wire_energy_j_per_byte_mm: Coefficient | None = None
    """on-die network"""
    wafer_price_usd: Coefficient | None = None
    defects_per_mm2: Coefficient | None = None
    hbm_price_usd_per_byte: Coefficient | None = None


class CoefficientSpec(Spec):
    """A coefficient as a file has it; `low` and `high` left out are the value."""

    value: Annotated[float, Field(gt=0, le=1e18)]
    low: Annotated[float, Field(gt=0, le=1e18)] | None = None
    high: Annotated[float, Field(gt=0, le=1e18)] | None = None
    source: Annotated[Text, Field(min_length=1)]
    status: Status

    @model_validator(mode="after")
    def _ordered(self) -> CoefficientSpec:
        made = self.coefficient()
        if not made.low <= made.value <= made.high:
            fix = f"it should lie between low, {made.low:g}, and high, {made.high:g}"
            raise InputError("value", f"is {made.value:g}", fix)
        return self

    def coefficient(self) -> Coefficient:
        """The coefficient with its ends filled in."""
        low = self.value if self.low is None else self.low
        high = self.value if self.high is None else self.high
        return Coefficient(self.value, low, high, self.source, self.status)


class AreaSpec(CoefficientSpec):
    """A coefficient in square millimetres."""

    value: SquareMillimetres
    low: SquareMillimetres | None = None
    high: SquareMillimetres | None = None


class EnergySpec(CoefficientSpec):
    """A coefficient in joules."""

    value: Joules
    low: Joules | None = None
    high: Joules | None = None


class PriceSpec(CoefficientSpec):
    """A coefficient in dollars."""

    value: Dollars
    low: Dollars | None = None
    high: Dollars | None = None


class TechnologySpec(Spec):
    """A technology file."""

    name: Name
    node_nm: Annotated[float, Field(gt=0, le=1000)]
    mac_area_mm2: AreaSpec | None = None
    sram_area_mm2_per_byte: AreaSpec | None = None
    logic_transistors_per_mm2: CoefficientSpec | None = None
    hbm_phy_area_mm2: AreaSpec | None = None
    link_phy_area_mm2: AreaSpec | None = None
    mac_energy_j: EnergySpec | None = None
    vector_energy_j: EnergySpec | None = None
    core_sram_energy_j_per_byte: EnergySpec | None = None
    shared_sram_energy_j_per_byte: EnergySpec | None = None
    hbm_energy_j_per_byte: EnergySpec | None = None
    link_energy_j_per_byte: EnergySpec | None = None
    wire_energy_j_per_byte_mm: EnergySpec | None = None
    wafer_price_usd: PriceSpec | None = None
    defects_per_mm2: CoefficientSpec | None = None
    hbm_price_usd_per_byte: PriceSpec | None = None

    def technology(self) -> Technology:
        """The technology a file describes."""
        given: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        for name, value in given.items():
            if isinstance(value, CoefficientSpec):
                given[name] = value.coefficient()
        return Technology(**given)
