"""A wafer file: the grid, its dies and memory, links, power, and a map of defects where one is known."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.hardware.chip import Chip
from dovetail.hardware.defect_file import MAX_SIDE, DefectsSpec
from dovetail.hardware.defects import check_defects
from dovetail.hardware.fields import (
    Bytes,
    BytesPerS,
    DoubtTexts,
    Millimetres,
    Name,
    Seconds,
    SomeBytesPerS,
    SomeMillimetres,
    Text,
    Watts,
    doubts_of,
)
from dovetail.hardware.integration import Integration
from dovetail.hardware.wafer import GAP_MM, STACK_ALONG_MM, STACK_DEPTH_MM, USABLE_MM, Wafer

_Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class WaferSpec(Spec):
    """A wafer file; `die` names a chip of the catalogue, or holds one, which is read before this."""

    name: Name
    title: Text = ""
    die: Name
    integration: Name
    rows: _Side
    cols: _Side
    die_width_mm: SomeMillimetres
    die_height_mm: SomeMillimetres
    width_mm: SomeMillimetres = USABLE_MM
    height_mm: SomeMillimetres = USABLE_MM
    gap_mm: Millimetres = GAP_MM
    stack_along_mm: SomeMillimetres = STACK_ALONG_MM
    stack_depth_mm: SomeMillimetres = STACK_DEPTH_MM
    d2d_bytes_per_s: SomeBytesPerS
    d2d_latency_s: Seconds = 200e-9
    edge_bytes_per_s: BytesPerS = 0.0
    edge_latency_s: Seconds = 0.0
    store_bytes: Bytes = 0.0
    store_bytes_per_s: BytesPerS = 0.0
    power_limit_w: Watts
    spare_dies: Annotated[int, Field(ge=0, lt=MAX_SIDE**2)] = 0
    least_yield: Annotated[float, Field(gt=0, le=1)] = 0.5
    defects: DefectsSpec = DefectsSpec.unchecked()
    source: Text = ""
    doubts: DoubtTexts = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> WaferSpec:
        if self.spare_dies >= self.rows * self.cols:
            fix = f"it should leave some of the {self.rows * self.cols} dies"
            raise InputError("spare_dies", f"is {self.spare_dies}", fix)
        if (self.store_bytes == 0) != (self.store_bytes_per_s == 0):
            raise InputError("store_bytes_per_s", "contradicts store_bytes", "both should be 0 or neither")
        check_defects(self.defects.defects(), self.rows, self.cols, "defects")
        doubts_of(self.doubts, type(self).model_fields)
        return self

    def wafer(self, die: Chip, integration: Integration) -> Wafer:
        """The wafer a file describes."""
        values: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        values |= {"title": self.title or self.name, "die": die, "integration": integration}
        values |= {"defects": self.defects.defects(), "doubts": tuple(self.doubts.items())}
        return Wafer(**values)
