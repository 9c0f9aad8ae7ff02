"""Chips: matrix and vector units, memories, links, silicon and price; published figures, and what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError, one_of, quoted
from dovetail.frozen import frozen
from dovetail.hardware.fields import (
    Bytes,
    BytesPerS,
    Count,
    Dollars,
    Doubts,
    DoubtTexts,
    Flops,
    Hertz,
    Name,
    SomeBytesPerS,
    SquareMillimetres,
    Text,
    Watts,
    doubts_of,
)
from dovetail.hardware.host import USUAL_HOST, Host, HostSpec
from dovetail.hardware.network import Tier, TierSpec

ChipKind = Literal["gpu", "systolic", "many_core"]
"""gpu: small matrix units in many cores; systolic: a few large arrays; many_core: a mesh of cores with own memory"""

Dataflow = Literal["weight", "output"]
"""which operand stays in a systolic array"""

LinkReach = Literal["board", "package"]

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4"]

EfficiencyName = Literal[
    "matrix.half", "matrix.fp8", "matrix.fp4", "attention_forward", "attention_backward", "memory", "link", "network",
    "launch_s", "collective_launch_s",
]  # fmt: skip
"""parts of its peaks a chip sustains, and seconds before a kernel and a collective begin"""

EFFICIENCY_NAMES: tuple[EfficiencyName, ...] = get_args(EfficiencyName)

USABLE_SHARE = 0.996
"""part of a GPU's HBM that programs get, where its file does not say: the median of those of 40 GB or more that do"""


@frozen
class Rates:
    """Dense peak FLOP/s (operations for int8) by the precision of the operands; None: the chip does not multiply it."""

    fp64: float | None = None
    fp32: float | None = None
    tf32: float | None = None
    bf16: float | None = None
    fp16: float | None = None
    fp8: float | None = None
    int8: float | None = None
    fp4: float | None = None

    def published(self) -> dict[str, float]:
        """The precisions there is a figure for."""
        rates = {name: getattr(self, name) for name in RATE_NAMES}
        return {name: rate for name, rate in rates.items() if rate is not None}


RATE_NAMES = tuple(Rates.__dataclass_fields__)


@frozen
class OnDie:
    """What the dies contain where some of it is disabled for yield; None: what works."""

    vector_cores: int | None = None
    """with their matrix units and memories"""
    shared_sram_bytes: float | None = None
    hbm_stacks: int | None = None
    link_ports: int | None = None


@frozen
class ChipCalibration:
    """What a chip was measured to sustain; overrides the figures of its generation."""

    values: tuple[tuple[str, float], ...]
    """by name, in the order of `EFFICIENCY_NAMES`; pairs, so that a chip can be hashed"""
    source: str = ""


@frozen
class Chip:
    """A package as its maker sells it; figures are peaks, per chip, in SI units."""

    name: str
    title: str
    kind: ChipKind
    year: int
    node: str
    """the process as marketed"""
    technology: str | None
    """the catalogue's technology nearest to it"""
    clock_hz: float
    """at which the matrix units reach their published peak"""
    tensor_cores: int
    """matrix units"""
    macs_per_core: int
    """bf16 (or fp16) multiply-accumulates of one matrix unit per cycle"""
    rows: int | None
    """of a systolic array: the reduced dim"""
    cols: int | None
    dataflow: Dataflow | None
    dense_flops: Rates
    vector_cores: int
    """cores with vector lanes and memory of their own: SMs, compute units, tensor cores of a TPU, tiles"""
    vector_lanes: int
    """float32 operations one of them starts per cycle"""
    core_sram_bytes: float
    """memory beside one vector core"""
    core_sram_bytes_per_s: float | None
    """of one vector core's memory"""
    shared_sram_bytes: float
    """memory all cores share"""
    shared_sram_bytes_per_s: float | None
    hbm_bytes: float
    hbm_bytes_per_s: float
    hbm_stacks: int | None
    link_ports: int | None
    """ports of the innermost tier"""
    tiers: tuple[Tier, ...]
    """the network it is sold with, innermost first"""
    dies: int
    area_mm2: float | None
    """of all its dies"""
    tdp_w: float | None
    price_usd: float | None
    rent_usd_per_h: float | None
    source: str
    doubts: Doubts = ()
    calibration: ChipCalibration | None = None
    """None: the figures of its generation hold"""
    register_bytes: float = 0.0
    """register files of one vector core"""
    link_reach: LinkReach = "board"
    """how far its own links go: to other packages, or a few millimetres inside a package or on a wafer"""
    shares_cores: bool = False
    """operators of a layer run side by side on parts of its cores; otherwise one after the other on all of them"""
    on_die: OnDie = OnDie()
    """what its dies have, over what works; of all dies together"""
    host: Host = USUAL_HOST
    """the CPUs and memory behind it"""
    hbm_usable_share: float | None = None
    """part of the HBM that the driver leaves to programs; None: no figure is known"""
    calibrated_as: Chip | None = None
    """the chip whose calibration it follows: a design that of its base; None: none but its own"""

    @property
    def measurements(self) -> tuple[ChipCalibration, ...]:
        """Its calibration, after those of the chips it follows."""
        followed = () if self.calibrated_as is None else self.calibrated_as.measurements
        return followed if self.calibration is None else (*followed, self.calibration)

    @property
    def hardware(self) -> Chip:
        """The chip without names, notes, prices and calibration: equal for equal hardware."""
        return replace(
            self,
            name="",
            title="",
            source="",
            doubts=(),
            price_usd=None,
            rent_usd_per_h=None,
            calibration=None,
            calibrated_as=None,
        )

    @property
    def macs_per_cycle(self) -> int:
        """bf16 (or fp16) multiply-accumulates the whole chip makes per cycle."""
        return self.tensor_cores * self.macs_per_core

    @property
    def link_bytes_per_s(self) -> float:
        """What the chip can send over its innermost links; 0 for a chip that stands alone."""
        return self.tiers[0].bytes_per_s if self.tiers else 0.0

    @property
    def sram_bytes(self) -> float:
        """All memory on the die."""
        return self.vector_cores * self.core_sram_bytes + self.shared_sram_bytes

    @property
    def memory_bytes(self) -> float:
        """Memory that state and activations share: HBM, or SRAM where there is none."""
        return self.hbm_bytes or self.sram_bytes

    @property
    def hbm_usable_bytes(self) -> float | None:
        """What a file says programs get of the HBM."""
        return None if self.hbm_usable_share is None else self.hbm_usable_share * self.hbm_bytes

    @property
    def usable_bytes(self) -> float:
        """Memory that programs get; all of it on chips other than GPUs, where no figure says what a driver takes."""
        usual = USABLE_SHARE if self.kind == "gpu" and self.hbm_bytes else 1.0
        return self.memory_bytes * (usual if self.hbm_usable_share is None else self.hbm_usable_share)

    @property
    def usable_basis(self) -> Literal["read", "assumed"]:
        """Whether the usable memory was read of this chip, or is assumed."""
        return "assumed" if self.hbm_usable_share is None else "read"

    def peak_flops(self, precision: str) -> float:
        """Published dense peak for operands of a precision."""
        rates = self.dense_flops.published()
        if precision not in rates:
            raise InputError(
                f"chip {self.name}: precision", f"{quoted(precision)} has no published peak", one_of(rates, precision)
            )
        return rates[precision]


class RatesSpec(Spec):
    """Dense peaks as a file has them."""

    fp64: Flops | None = None
    fp32: Flops | None = None
    tf32: Flops | None = None
    bf16: Flops | None = None
    fp16: Flops | None = None
    fp8: Flops | None = None
    int8: Flops | None = None
    fp4: Flops | None = None

    @model_validator(mode="after")
    def _trains(self) -> RatesSpec:
        if self.bf16 is None and self.fp16 is None:
            raise InputError("bf16", "is missing", "give the dense peak for bf16 or fp16")
        return self


class ChipCalibrationSpec(Spec):
    """Measured efficiencies as a file has them."""

    values: Annotated[dict[EfficiencyName, Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)]
    """parts of the published peaks, of the bandwidth of links and memory; launches in seconds"""
    source: Text = ""

    def calibration(self) -> ChipCalibration:
        """The same, hashable and in one order whatever the file's."""
        return ChipCalibration(tuple((n, self.values[n]) for n in EFFICIENCY_NAMES if n in self.values), self.source)


class OnDieSpec(Spec):
    """What the dies have, as a file has it."""

    vector_cores: Count | None = None
    shared_sram_bytes: Bytes | None = None
    hbm_stacks: Annotated[int, Field(ge=1, le=4096)] | None = None
    link_ports: Annotated[int, Field(ge=1, le=4096)] | None = None


class ChipSpec(Spec):
    """A chip file: quantities as numbers in SI or texts such as "80 GiB"."""

    name: Name
    title: Text = ""
    kind: ChipKind
    year: Annotated[int, Field(ge=1970, le=2100)]
    node: Text
    technology: Name | None = None
    clock_hz: Hertz
    tensor_cores: Count
    macs_per_core: Count | None = None
    rows: Annotated[int, Field(ge=1, le=2**16)] | None = None
    cols: Annotated[int, Field(ge=1, le=2**16)] | None = None
    dataflow: Dataflow | None = None
    dense_flops: RatesSpec
    vector_cores: Count
    vector_lanes: Count
    core_sram_bytes: Bytes = 0.0
    core_sram_bytes_per_s: SomeBytesPerS | None = None
    shared_sram_bytes: Bytes = 0.0
    shared_sram_bytes_per_s: SomeBytesPerS | None = None
    hbm_bytes: Bytes
    hbm_usable_bytes: Bytes | None = None
    hbm_bytes_per_s: BytesPerS
    hbm_stacks: Annotated[int, Field(ge=1, le=4096)] | None = None
    link_ports: Annotated[int, Field(ge=1, le=4096)] | None = None
    tiers: Annotated[tuple[TierSpec, ...], Field(strict=False, max_length=8)] = ()
    dies: Annotated[int, Field(ge=1, le=4096)] = 1
    area_mm2: SquareMillimetres | None = None
    tdp_w: Watts | None = None
    price_usd: Dollars | None = None
    rent_usd_per_h: Dollars | None = None
    register_bytes: Bytes = 0.0
    link_reach: LinkReach = "board"
    shares_cores: bool = False
    on_die: OnDieSpec = OnDieSpec.unchecked()
    host: HostSpec = HostSpec.unchecked()
    """left out: two CPUs with PCIe 5 for eight chips"""
    source: Text = ""
    doubts: DoubtTexts = Field(default_factory=dict)
    calibration: ChipCalibrationSpec | None = None
    """what this chip was measured to sustain; left out: as its generation does"""
    calibrated_as: Name | None = None
    """the chip whose calibration holds for this one: of the catalogue, or written out (which is read before this)"""

    @model_validator(mode="after")
    def _consistent(self) -> ChipSpec:
        if self.kind == "systolic":
            self._check_array()
        else:
            self._check_no_array()
        if (self.hbm_bytes == 0) != (self.hbm_bytes_per_s == 0):
            raise InputError("hbm_bytes_per_s", "contradicts hbm_bytes", "both should be 0 or neither")
        if self.hbm_bytes == 0 and self.core_sram_bytes == 0 and self.shared_sram_bytes == 0:
            raise InputError("hbm_bytes", "is 0 and so is all SRAM", "give the chip a memory")
        if self.hbm_usable_bytes is not None and not 0 < self.hbm_usable_bytes <= self.hbm_bytes:
            fix = f"it should be more than 0 and at most hbm_bytes, {self.hbm_bytes:g}"
            raise InputError("hbm_usable_bytes", f"is {self.hbm_usable_bytes:g}", fix)
        for name, made in self.on_die:
            works = getattr(self, name)
            if made is not None and (works is None or made < works):
                raise InputError(f"on_die.{name}", f"is {made:g}", f"it should be at least what works, {works}")
        doubts_of(self.doubts, type(self).model_fields)
        return self

    def _check_array(self) -> None:
        for name in ("rows", "cols", "dataflow"):
            if getattr(self, name) is None:
                raise InputError(name, "is missing", "a systolic chip has rows, cols and a dataflow")
        if self.macs_per_core is not None and self.macs_per_core > self._array:
            raise InputError("macs_per_core", f"is {self.macs_per_core}", f"the array holds rows x cols, {self._array}")

    def _check_no_array(self) -> None:
        if self.shares_cores:
            raise InputError("shares_cores", f"cannot be combined with kind {self.kind}", "only systolic chips have it")
        for name in ("rows", "cols", "dataflow"):
            if getattr(self, name) is not None:
                raise InputError(name, f"cannot be combined with kind {self.kind}", "only systolic chips have it")
        if self.macs_per_core is None:
            raise InputError("macs_per_core", "is missing", "add this field")

    @property
    def _array(self) -> int:
        return (self.rows or 0) * (self.cols or 0)

    def chip(self) -> Chip:
        """The chip a file describes."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        usable = fields.pop("hbm_usable_bytes")
        # `catalogue.chip_from` finds the chip of that name
        del fields["calibrated_as"]
        # to twelve digits, so that a chip written and read again is the same
        fields["hbm_usable_share"] = None if usable is None else round(usable / self.hbm_bytes, 12)
        fields["title"] = self.title or self.name
        fields["macs_per_core"] = self.macs_per_core or self._array
        fields["dense_flops"] = Rates(**dict(self.dense_flops))
        fields["tiers"] = tuple(tier.tier() for tier in self.tiers)
        fields["on_die"] = OnDie(**dict(self.on_die))
        fields["host"] = self.host.host()
        fields["doubts"] = tuple(self.doubts.items())
        fields["calibration"] = self.calibration.calibration() if self.calibration else None
        return Chip(**fields)
