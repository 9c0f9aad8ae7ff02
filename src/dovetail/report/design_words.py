"""Variables and figures of a design for a reader."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.units import bytes_text, percent_text, quantity_text

_UNITS = {
    "wafer_power_w": " W",
    "power_limit_w": " W",
    "area_mm2": " mm2",
    "peak_power_w": " W",
    "cost_usd": " USD",
    "system_cost_usd": " USD",
}


def variables_text(values: Mapping[str, float]) -> str:
    """Variables of a design and their values, in a line."""
    return ", ".join(f"{variable_label(name)} {variable_text(name, value)}" for name, value in values.items())


def variable_label(name: str) -> str:
    """What a variable is called where its value is shown."""
    return "dataflow" if name == "output_stationary" else name


def variable_text(name: str, value: float) -> str:
    """A value of a variable or figure for a reader."""
    if name == "output_stationary":
        return "output" if value else "weight"
    if name.endswith("_bytes_per_s"):
        return quantity_text(value, "B/s")
    if name.endswith("_bytes"):
        return bytes_text(value)
    if name.endswith("_hz"):
        return quantity_text(value, "Hz")
    if name.endswith(("_share", "_yield")):
        return percent_text(value)
    if name.endswith("_mm"):
        return f"{value:g} mm"
    if name in ("peak_flops", "wafer_flops"):
        return quantity_text(value, "FLOPS")
    return f"{value:,.0f}{_UNITS[name]}" if name in _UNITS else f"{value:,.15g}"
