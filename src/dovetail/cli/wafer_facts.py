"""A wafer that a study found, for a reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.cli.figures import quantity_text
from dovetail.units import bytes_text, percent_text

#: Variables that these lines tell.
SHOWN_VARIABLES = frozenset(
    {
        "grid_rows", "grid_cols", "die_width_mm", "die_height_mm", "spare_dies", "tensor_cores",
        "vector_cores", "clock_hz", "core_sram_bytes", "hbm_stacks", "link_port_bytes_per_s", "power_limit_w",
    }
)  # fmt: skip


def wafer_facts(wafer: Mapping[str, Any], silicon: Mapping[str, float]) -> list[tuple[str, str]]:
    """Grid, dies, cores, memories, links, power and yield, a line each."""
    dies, die_mm2 = wafer["rows"] * wafer["cols"], wafer["die_width_mm"] * wafer["die_height_mm"]
    grid = f"{wafer['rows']} x {wafer['cols']} dies of {wafer['die_width_mm']:g} x {wafer['die_height_mm']:g} mm"
    if wafer["spare_dies"]:
        rows = f"plans are for {wafer['planned_rows']} rows"
        grid += f", {wafer['spare_dies']} spare: {rows}"
    memory = "none: state is in SRAM"
    if wafer["hbm_stacks"]:
        stacks = f"{wafer['hbm_stacks']} {'stack' if wafer['hbm_stacks'] == 1 else 'stacks'} per die"
        each = f"{quantity_text(wafer['hbm_bytes'], 'B')} at {quantity_text(wafer['hbm_bytes_per_s'], 'B/s')}"
        memory = f"{stacks}, {each}; {quantity_text(dies * wafer['hbm_bytes'], 'B')} on the wafer"
    speed = f"{quantity_text(wafer['clock_hz'], 'Hz')}, {quantity_text(wafer['die_flops'], 'FLOPS')} per die"
    cores = f"{wafer['cores']:,}"
    if wafer["vector_cores"] != wafer["cores"]:
        cores += f" and {wafer['vector_cores']:,} for vectors"
    sram = f"{bytes_text(wafer['core_sram_bytes'])} per core, {bytes_text(wafer['die_sram_bytes'])} per die"
    limit = quantity_text(wafer["power_limit_w"], "W")
    return [
        ("grid", grid),
        ("silicon", f"{silicon['area_mm2']:,.0f} of {die_mm2:,.0f} mm2 of a die"),
        ("cores", f"{cores} per die at {speed}"),
        ("SRAM", sram),
        ("HBM", memory),
        ("D2D", f"{quantity_text(wafer['d2d_bytes_per_s'], 'B/s')} per edge of a die"),
        ("power", f"{quantity_text(silicon['wafer_power_w'], 'W')} at its peak, of {limit}"),
        ("yield", f"{percent_text(silicon['wafer_yield'])} of wafers"),
    ]
