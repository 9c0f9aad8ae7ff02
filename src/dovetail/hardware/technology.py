"""Technology: what a node's transistors, memories and wires cost in area, energy and money."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field, create_model, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware.fields import Dollars, Joules, Name, SquareMillimetres, Text

Status = Literal["read", "run", "memory", "derived", "assumed"]
"""read: in the source named; run: computed with the tool named; memory: recalled; derived: scaled from others"""


@frozen
class Coefficient:
    """A figure sources disagree on: the value to use, and the ends a study can run at."""

    value: float
    low: float
    high: float
    source: str
    status: Status


@frozen
class Technology:
    """A node; a coefficient nobody has published is None.

    The unit of a coefficient is the last part of its name: files give those in mm2, j and usd as numbers or as texts.
    """

    name: str
    node_nm: float

    # area
    mac_area_mm2: Coefficient | None = None
    """one bf16 multiplier and float32 adder with its registers and wires"""
    narrow_mac_share: Coefficient | None = None
    """what each halving of the operands' bits below 16 adds to a multiply-accumulate unit, of its area"""
    double_area_mm2: Coefficient | None = None
    """one float64 multiply-accumulate unit, beside the 16-bit ones"""
    vector_lane_area_mm2: Coefficient | None = None
    """one float32 lane with its part of registers, issue and load-store, where a core is lanes and little else"""
    gpu_core_area_mm2: Coefficient | None = None
    """schedulers, load-store, texture and special units of a GPU's core, without lanes, matrix units and memories"""
    gpu_lane_area_mm2: Coefficient | None = None
    """one float32 lane of a GPU, the arithmetic alone"""
    core_sram_area_mm2_per_byte: Coefficient | None = None
    """tens to thousands of kilobytes beside a core, and register files"""
    core_port_area_mm2_per_byte_per_s: Coefficient | None = None
    """banks and wires that give a core's memory its bandwidth"""
    sram_area_mm2_per_byte: Coefficient | None = None
    """large arrays, with their decoders and wires"""
    noc_area_mm2_per_byte_per_s: Coefficient | None = None
    """crossbar or mesh between cores, shared memory, memory controllers and links"""
    logic_transistors_per_mm2: Coefficient | None = None
    hbm_phy_area_mm2: Coefficient | None = None
    """of one HBM stack's 1,024 data bits"""
    hbm_controller_area_mm2: Coefficient | None = None
    """of one HBM stack"""
    link_area_mm2_per_byte_per_s: Coefficient | None = None
    """PHY and controller of serial links to other packages, per byte sent and received"""
    package_link_area_mm2_per_byte_per_s: Coefficient | None = None
    """the same for links of a few millimetres, inside a package or on a wafer"""
    host_area_mm2: Coefficient | None = None
    """host interface, PHY and controller"""
    other_area_share: Coefficient | None = None
    """of all the rest: pads, clocks, test, management, what is left white"""

    # edge of the die
    hbm_shoreline_mm: Coefficient | None = None
    """of one stack"""
    link_shoreline_mm_per_byte_per_s: Coefficient | None = None
    package_link_shoreline_mm_per_byte_per_s: Coefficient | None = None

    # energy and power
    nominal_clock_hz: Coefficient | None = None
    """at which the energies of logic hold"""
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
    package_link_energy_j_per_byte: Coefficient | None = None
    wire_energy_j_per_byte_mm: Coefficient | None = None
    """on-die network"""
    leakage_w_per_mm2: Coefficient | None = None
    clock_energy_share: Coefficient | None = None
    """clock tree, instructions and control, of the energy of what they drive"""

    # money
    wafer_price_usd: Coefficient | None = None
    defects_per_mm2: Coefficient | None = None
    defect_clustering: Coefficient | None = None
    """alpha of the negative binomial yield: the larger, the fewer defects share a die"""
    die_test_usd_per_mm2: Coefficient | None = None
    """finding the good dies of a wafer"""
    package_price_usd_per_mm2: Coefficient | None = None
    """substrate, interposer and assembly, per area of what stands on it"""
    bond_yield: Coefficient | None = None
    """of placing one die or stack on the package"""
    hbm_price_usd_per_byte: Coefficient | None = None
    system_price_usd_per_w: Coefficient | None = None
    """power delivery, cooling, rack"""
    system_price_usd_per_byte_per_s: Coefficient | None = None
    """switches, cables and network cards, per byte a chip's own links send"""
    system_price_usd: Coefficient | None = None
    """a chip's part of host and board"""

    def numbers(self, end: End = "value") -> Numbers:
        """The coefficients as plain numbers, at their values or all at one end."""
        return Numbers(self, end)


End = Literal["value", "low", "high"]

#: More of these is less silicon, power or money: their low end belongs to the others' high end.
BETTER_HIGH = frozenset({"logic_transistors_per_mm2", "nominal_clock_hz", "bond_yield"})


class Numbers:
    """A technology's coefficients at one end; one that is asked for and missing is the user's to give."""

    def __init__(self, technology: Technology, end: End) -> None:
        self._technology, self._end = technology, end

    def __getattr__(self, name: str) -> float:
        if name.startswith("_"):  # asked for before there is anything, when it is copied
            raise AttributeError(name)
        coefficient: object = getattr(self._technology, name)
        if not isinstance(coefficient, Coefficient):
            fix = "give it a value; a silicon estimate needs it"
            raise InputError(f"technology {self._technology.name}: {name}", "is missing", fix)
        opposite = {"low": coefficient.high, "high": coefficient.low}
        ends = {"value": coefficient.value, "low": coefficient.low, "high": coefficient.high}
        return opposite.get(self._end, coefficient.value) if name in BETTER_HIGH else ends[self._end]


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


class ShareSpec(CoefficientSpec):
    """A part of something."""

    value: Annotated[float, Field(ge=0.001, le=1)]
    low: Annotated[float, Field(ge=0.001, le=1)] | None = None
    high: Annotated[float, Field(ge=0.001, le=1)] | None = None


def _spec_of(name: str) -> Any:
    """How a file gives a coefficient: by the unit at the end of its name, before what it is given per."""
    units = {"mm2": AreaSpec, "j": EnergySpec, "usd": PriceSpec, "share": ShareSpec, "yield": ShareSpec}
    return units.get(name.partition("_per_")[0].rpartition("_")[2], CoefficientSpec)


_COEFFICIENTS: dict[str, Any] = {
    field.name: (_spec_of(field.name) | None, None) for field in fields(Technology) if "Coefficient" in str(field.type)
}


class _Named(Spec):
    """What a technology file has beside coefficients."""

    name: Name
    node_nm: Annotated[float, Field(gt=0, le=1000)]

    def technology(self) -> Technology:
        """The technology a file describes."""
        given: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        for name, value in given.items():
            if isinstance(value, CoefficientSpec):
                given[name] = value.coefficient()
        return Technology(**given)


#: A technology file.
TechnologySpec = create_model("TechnologySpec", __base__=_Named, **_COEFFICIENTS)
