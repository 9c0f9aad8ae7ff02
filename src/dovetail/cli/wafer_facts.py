"""A wafer for a reader: one that a study found, and what of a wafer is dead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.units import bytes_text, percent_text, quantity_text

if TYPE_CHECKING:
    from dovetail.hardware import Wafer

#: Dies along a side of the largest grid that is drawn; a die and the link beside it take two characters.
LARGEST_DRAWN = 60

#: Variables that these lines tell.
SHOWN_VARIABLES = frozenset(
    {
        "grid_rows", "grid_cols", "die_width_mm", "die_height_mm", "spare_dies", "tensor_cores",
        "vector_cores", "clock_hz", "core_sram_bytes", "hbm_stacks", "link_port_bytes_per_s", "power_limit_w",
        "store_bytes", "store_bytes_per_s",
    }
)  # fmt: skip


def wafer_facts(wafer: Mapping[str, Any], silicon: Mapping[str, float]) -> list[tuple[str, str]]:
    """Grid, dies, cores, memories, links, power and yield, a line each."""
    dies, die_mm2 = wafer["rows"] * wafer["cols"], wafer["die_width_mm"] * wafer["die_height_mm"]
    grid = f"{wafer['rows']} x {wafer['cols']} dies of {wafer['die_width_mm']:g} x {wafer['die_height_mm']:g} mm"
    if wafer["spare_dies"]:
        rows = f"plans are for {wafer['planned_rows']} rows"
        grid += f", {wafer['spare_dies']} spare: {rows}"
    memory = "none"
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
    store = store_text(wafer.get("store_bytes", 0.0), wafer.get("store_bytes_per_s", 0.0))
    return [
        ("grid", grid),
        ("silicon", f"{silicon['area_mm2']:,.0f} of {die_mm2:,.0f} mm2 of a die"),
        ("cores", f"{cores} per die at {speed}"),
        ("SRAM", sram),
        ("HBM", memory),
        *([("store", store)] if store else []),
        ("D2D", f"{quantity_text(wafer['d2d_bytes_per_s'], 'B/s')} per edge of a die"),
        ("power", f"{quantity_text(silicon['wafer_power_w'], 'W')} at its peak, of {limit}"),
        ("yield", f"{percent_text(silicon['wafer_yield'])} of wafers"),
    ]


def store_text(size: float, rate: float) -> str:
    """Memory off the wafer; nothing where there is none."""
    return f"{quantity_text(size, 'B')} at {quantity_text(rate, 'B/s')}" if size else ""


def defects_text(wafer: Wafer) -> str:
    """How much of a wafer is dead, and what still works together; nothing where all does."""
    dead, links = len(wafer.defects.dead_dies), len(wafer.defects.dead_links)
    if not dead and not links:
        return ""
    reached = f"{len(wafer.connected_dies())} of {wafer.dies} dies reach each other"
    return f"{_counted(dead, 'dead die')}, {_counted(links, 'dead link')}; {reached}"


def defects_lines(wafer: Wafer) -> list[str]:
    """A damaged grid in characters: dies, the links that work between them, and what the signs mean.

    Nothing where all works, or where a grid is too large to read.
    """
    if not defects_text(wafer) or max(wafer.rows, wafer.cols) > LARGEST_DRAWN:
        return []
    working, joined, links = set(wafer.live_dies()), set(wafer.connected_dies()), set(wafer.links())
    lines: list[str] = []
    for row in range(wafer.rows):
        dies = ["o" if (row, c) in joined else "." if (row, c) in working else "x" for c in range(wafer.cols)]
        beside = ["-" if ((row, c), (row, c + 1)) in links else " " for c in range(wafer.cols - 1)]
        lines.append("".join(a + b for a, b in zip(dies, [*beside, ""], strict=True)))
        below = ["|" if ((row, c), (row + 1, c)) in links else " " for c in range(wafer.cols)]
        lines += [" ".join(below).rstrip()] if row + 1 < wafer.rows else []
    apart = ", . a die that works and does not reach them" if working - joined else ""
    legend = f"o a die of the largest part, x a dead die{apart}; - and | links that work"
    return [*(f"  {line}" for line in lines), legend]


def _counted(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"
