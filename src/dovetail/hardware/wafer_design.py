"""Wafers as variables: many wafers at once, every figure an array; a wafer of the catalogue is a design of no axes."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.hardware.defects import DefectMap
from dovetail.hardware.design import VARIABLES, Designs, design_of
from dovetail.hardware.wafer import EDGES, Wafer


@frozen
class WaferDesigns(Designs):
    """Wafers that differ in figures alone; a die's `link_port_bytes_per_s` is what one of its four edges sends."""

    wafer: Wafer
    """what all have in common: integration, room, stacks, what the wafers must yield"""
    grid_rows: Floats
    grid_cols: Floats
    die_width_mm: Floats
    die_height_mm: Floats
    edge_bytes_per_s: Floats
    """off the wafer"""
    power_limit_w: Floats
    spare_dies: Floats
    store_bytes: Floats
    """memory off the wafer that it streams from; 0 where there is none, as its rate then is"""
    store_bytes_per_s: Floats

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the arrays."""
        return (*VARIABLES, *WAFER_VARIABLES)

    @property
    def grid_dies(self) -> Floats:
        """Places of the grid."""
        return self.grid_rows * self.grid_cols

    @property
    def die_mm2(self) -> Floats:
        """The room on one die."""
        return self.die_width_mm * self.die_height_mm

    @property
    def wafer_flops(self) -> Floats:
        """16-bit peak of all dies but the spare ones."""
        return (self.grid_dies - self.spare_dies) * self.peak_flops("bf16")

    @property
    def wafer_hbm_bytes(self) -> Floats:
        """Of all dies but the spare ones."""
        return (self.grid_dies - self.spare_dies) * self.hbm_bytes

    @property
    def wafer_sram_bytes(self) -> Floats:
        """Of all dies but the spare ones."""
        per_die = self.vector_cores * self.core_sram_bytes + self.shared_sram_bytes
        return (self.grid_dies - self.spare_dies) * per_die

    @property
    def planned_rows(self) -> Floats:
        """Rows of the grid that plans are for: spare dies are taken to fill whole rows, which have none."""
        return self.grid_rows - np.ceil(self.spare_dies / self.grid_cols)

    @property
    def planned_dies(self) -> Floats:
        """Dies of these rows."""
        return self.planned_rows * self.grid_cols

    def wafer_at(self, position: int, name: str) -> Wafer:
        """One of them as a wafer without defects; what nobody has built has no published figure."""
        shape = self.shape
        row = {n: float(np.broadcast_to(self.value(n), shape).reshape(-1)[position]) for n in self.variables}
        return replace(
            self.wafer,
            name=name,
            title=name,
            die=self.chip(position, f"{name}-die"),
            rows=int(row["grid_rows"]),
            cols=int(row["grid_cols"]),
            die_width_mm=row["die_width_mm"],
            die_height_mm=row["die_height_mm"],
            d2d_bytes_per_s=row["link_port_bytes_per_s"],
            edge_bytes_per_s=row["edge_bytes_per_s"],
            power_limit_w=row["power_limit_w"],
            spare_dies=int(row["spare_dies"]),
            store_bytes=row["store_bytes"],
            store_bytes_per_s=row["store_bytes_per_s"],
            defects=DefectMap(),
            doubts=(),
        )


WAFER_VARIABLES = tuple(field.name for field in fields(WaferDesigns) if field.name not in ("base", "wafer", *VARIABLES))


def planned(wafer: Wafer) -> Wafer | None:
    """The grid that plans are for: without as many rows as its spare dies fill; None where no row is left."""
    rows = wafer.rows - math.ceil(wafer.spare_dies / wafer.cols)
    return replace(wafer, rows=rows, spare_dies=0, defects=DefectMap()) if rows else None


def wafer_design_of(wafer: Wafer) -> WaferDesigns:
    """A wafer as a design of no axes."""
    die = design_of(replace(wafer.die, link_ports=EDGES, link_reach="package"))
    values = {name: die.value(name) for name in VARIABLES}
    values |= {
        "link_ports": np.asarray(EDGES, np.float64),
        "link_port_bytes_per_s": np.asarray(wafer.d2d_bytes_per_s, np.float64),
    }
    of_wafer = {
        "grid_rows": wafer.rows,
        "grid_cols": wafer.cols,
        "die_width_mm": wafer.die_width_mm,
        "die_height_mm": wafer.die_height_mm,
        "edge_bytes_per_s": wafer.edge_bytes_per_s,
        "power_limit_w": wafer.power_limit_w,
        "spare_dies": wafer.spare_dies,
        "store_bytes": wafer.store_bytes,
        "store_bytes_per_s": wafer.store_bytes_per_s,
    }
    values |= {name: np.asarray(value, np.float64) for name, value in of_wafer.items()}
    return WaferDesigns(base=die.base, wafer=wafer, **values)
