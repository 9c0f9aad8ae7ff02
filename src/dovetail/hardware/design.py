"""Designs: many chips at once, every figure an array; a chip of the catalogue is a design of no axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.hardware.chip import Chip, OnDie, Rates

#: Narrow formats: their bits, and their rate over the 16-bit one where the base publishes none.
NARROW_RATES = {"fp8": (8, 2.0), "fp4": (4, 4.0)}


@frozen
class Designs:
    """Chips that differ in figures alone; arrays that broadcast with each other, in SI units."""

    base: Chip
    """what all have in common: kind, formats, the network beyond the chip's own links, technology"""
    tensor_cores: Floats
    rows: Floats
    """of one matrix unit; where that is no systolic array the squarest that holds its multiply-accumulates"""
    cols: Floats
    output_stationary: Floats
    """1 where the results stay in the array, 0 where the weights do"""
    narrowest_bits: Floats
    """of operands multiplied at a rate of their own: 8 doubles the 16-bit rate, 4 doubles it again"""
    vector_cores: Floats
    vector_lanes: Floats
    clock_hz: Floats
    core_sram_bytes: Floats
    core_sram_bytes_per_s: Floats
    """infinite where nothing is known to limit it, as `shared_sram_bytes_per_s`"""
    shared_sram_bytes: Floats
    shared_sram_bytes_per_s: Floats
    hbm_stacks: Floats
    hbm_stack_bytes: Floats
    hbm_stack_bytes_per_s: Floats
    link_ports: Floats
    link_port_bytes_per_s: Floats
    """what one port sends and at the same time receives"""
    dies: Floats

    @property
    def macs_per_cycle(self) -> Floats:
        """16-bit multiply-accumulates of the whole chip per cycle."""
        return self.tensor_cores * self.macs_per_core

    @property
    def macs_per_core(self) -> Floats:
        """Those of one matrix unit: its cells, or the part of them that the base needs for one 16-bit product each."""
        base = self.base
        cells = base.rows * base.cols if base.rows and base.cols else base.macs_per_core
        return self.rows * self.cols * (base.macs_per_core / cells)

    @property
    def hbm_bytes(self) -> Floats:
        """Capacity of all stacks."""
        return self.hbm_stacks * self.hbm_stack_bytes

    @property
    def hbm_bytes_per_s(self) -> Floats:
        """Bandwidth of all stacks."""
        return self.hbm_stacks * self.hbm_stack_bytes_per_s

    @property
    def link_bytes_per_s(self) -> Floats:
        """What a chip can send over its own links."""
        return self.link_ports * self.link_port_bytes_per_s

    @property
    def speedup(self) -> Floats:
        """Matrix rate over that of the base, at 16 bits."""
        return self.macs_per_cycle * self.clock_hz / (self.base.macs_per_cycle * self.base.clock_hz)

    def peak_flops(self, precision: str) -> Floats:
        """Dense peak for operands of a precision; a chip without it multiplies them at its half-precision rate."""
        rates = self.base.dense_flops.published()
        half = rates.get("bf16", rates.get("fp16", 0.0))
        if precision in NARROW_RATES:
            bits, times = NARROW_RATES[precision]
            published = rates.get(precision, times * half)
            return self.speedup * np.where(self.narrowest_bits <= bits, published, half)
        return self.speedup * rates.get(precision, half)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the arrays."""
        return VARIABLES

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the arrays together."""
        return np.broadcast_shapes(*(np.shape(self.value(name)) for name in self.variables))

    def value(self, name: str) -> Floats:
        """A variable by its name."""
        return getattr(self, name)

    def made(self, name: str) -> float:
        """How many times what works the dies have of something, as those of the base do."""
        on_die, works = getattr(self.base.on_die, name), getattr(self.base, name)
        return on_die / works if on_die else 1.0

    def varied(self, values: Mapping[str, Floats]) -> Designs:
        """The same designs with other values of some variables."""
        return replace(self, **{name: np.asarray(value, np.float64) for name, value in values.items()})

    def chip(self, position: int, name: str) -> Chip:
        """One of them as a chip; area, power and price are for a silicon model to say."""
        shape = self.shape
        row = {n: float(np.broadcast_to(self.value(n), shape).reshape(-1)[position]) for n in VARIABLES}
        one = self.varied({n: np.asarray(v) for n, v in row.items()})
        base = self.base
        return replace(
            base,
            name=name,
            title=name,
            tensor_cores=int(row["tensor_cores"]),
            macs_per_core=int(one.macs_per_core),
            clock_hz=row["clock_hz"],
            dense_flops=_rates(one),
            vector_cores=int(row["vector_cores"]),
            vector_lanes=int(row["vector_lanes"]),
            core_sram_bytes=row["core_sram_bytes"],
            core_sram_bytes_per_s=_finite(row["core_sram_bytes_per_s"]),
            shared_sram_bytes=row["shared_sram_bytes"],
            shared_sram_bytes_per_s=_finite(row["shared_sram_bytes_per_s"]),
            hbm_bytes=float(one.hbm_bytes),
            hbm_bytes_per_s=float(one.hbm_bytes_per_s),
            hbm_stacks=int(row["hbm_stacks"]) or None,
            hbm_usable_share=base.hbm_usable_share if one.hbm_bytes else None,
            link_ports=int(row["link_ports"]) if base.link_ports else None,
            tiers=_tiers(one),
            dies=int(row["dies"]),
            on_die=_on_die(one),
            calibrated_as=base,
            **_array_fields(one),
            **_UNKNOWN,
        )


ON_DIE = tuple(field.name for field in fields(OnDie))
VARIABLES = tuple(field.name for field in fields(Designs) if field.name != "base")

#: What a design that nobody built has no published figure for.
_UNKNOWN: dict[str, Any] = {
    "area_mm2": None, "tdp_w": None, "price_usd": None, "rent_usd_per_h": None, "doubts": (), "calibration": None,
}  # fmt: skip


def design_of(chip: Chip) -> Designs:
    """A chip as a design of no axes."""
    rows, cols = (chip.rows, chip.cols) if chip.rows and chip.cols else _squarest(chip.macs_per_core)
    bits = [width for name, (width, _) in NARROW_RATES.items() if name in chip.dense_flops.published()]
    stacks, ports = (chip.hbm_stacks or 1) if chip.hbm_bytes else 0, chip.link_ports or 1
    values = {
        "tensor_cores": chip.tensor_cores,
        "rows": rows,
        "cols": cols,
        "output_stationary": chip.dataflow == "output",
        "narrowest_bits": min(bits, default=16),
        "vector_cores": chip.vector_cores,
        "vector_lanes": chip.vector_lanes,
        "clock_hz": chip.clock_hz,
        "core_sram_bytes": chip.core_sram_bytes,
        "core_sram_bytes_per_s": chip.core_sram_bytes_per_s or math.inf,
        "shared_sram_bytes": chip.shared_sram_bytes,
        "shared_sram_bytes_per_s": chip.shared_sram_bytes_per_s or math.inf,
        "hbm_stacks": stacks,
        "hbm_stack_bytes": chip.hbm_bytes / max(stacks, 1),
        "hbm_stack_bytes_per_s": chip.hbm_bytes_per_s / max(stacks, 1),
        "link_ports": ports,
        "link_port_bytes_per_s": chip.link_bytes_per_s / ports,
        "dies": chip.dies,
    }
    return Designs(chip, **{name: np.asarray(value, np.float64) for name, value in values.items()})


def _squarest(macs: int) -> tuple[int, int]:
    """The factors of a number nearest to each other, the smaller first."""
    rows = next(n for n in range(math.isqrt(macs), 0, -1) if macs % n == 0)
    return rows, macs // rows


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rates(one: Designs) -> Rates:
    """Dense peaks of one design: those of its base in proportion, with the narrow formats it multiplies."""
    published = [name for name in one.base.dense_flops.published() if name not in NARROW_RATES]
    narrow = [name for name, (bits, _) in NARROW_RATES.items() if one.narrowest_bits <= bits]
    return Rates(**{name: float(one.peak_flops(name)) for name in (*published, *narrow)})


def _on_die(one: Designs) -> OnDie:
    """As much more than works as the base has."""
    made: dict[str, Any] = {name: one.made(name) * float(one.value(name)) for name in ON_DIE if one.made(name) > 1}
    return OnDie(**{name: amount if name.endswith("bytes") else round(amount) for name, amount in made.items()})


def _array_fields(one: Designs) -> dict[str, Any]:
    if one.base.kind != "systolic":
        return {}
    dataflow = "output" if one.output_stationary else "weight"
    return {"rows": int(one.rows), "cols": int(one.cols), "dataflow": dataflow}


def _tiers(one: Designs) -> tuple[Any, ...]:
    """The network of the base with this design's links as its innermost tier."""
    base = one.base.tiers
    return (replace(base[0], bytes_per_s=float(one.link_bytes_per_s)), *base[1:]) if base else ()
