"""Variables and figures of a design for a reader."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.units import bytes_text, count_text, percent_text, quantity_text, seconds_text

#: What each count of a study's result says of its designs, in the order they become fewer.
LEVELS = {
    "designs": "in the space",
    "kept": "within limits",
    "holding": "with memory for the state",
    "sampled": "sampled",
    "physical": "not pruned by physics",
    "alike": "of them like others",
    "blocks": "bounded by their blocks",
    "profile": "not pruned by profiles",
    "groups": "groups of designs bounded",
    "short": "searched briefly",
    "searched": "searched",
    "evaluated": "fully evaluated",
    "replayed": "simulated",
}

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


def objective_text(name: str, value: float) -> str:
    """The value of an objective for a reader."""
    # variables are told by commands that load no study
    from dovetail.exploration.objective import OBJECTIVES

    unit = OBJECTIVES[name].unit
    return seconds_text(value) if unit == "s" else f"{count_text(value) if value >= 1e4 else f'{value:,.4g}'} {unit}"


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
