"""Limits of a study as formulas of its design space."""

from __future__ import annotations

from dataclasses import replace

from dovetail.exploration.study_file import LimitsPart
from dovetail.hardware.design_space.expression import Expression, parse_expression
from dovetail.hardware.design_space.space import DesignSpace

#: Limit → the estimate of a chip it bounds; limits of all chips are divided by their number.
_LIMITED = {
    "area_mm2": "area_mm2",
    "power_w": "peak_power_w",
    "cost_usd": "cost_usd",
    "total_power_w": "peak_power_w",
    "total_price_usd": "system_cost_usd",
}
#: The same for a wafer: figures of a die times its dies, spare ones included; spare dies need no power.
_LIMITED_WAFERS = {
    "area_mm2": "grid_dies * die_mm2",
    "power_w": "wafer_power_w",
    "cost_usd": "grid_dies * cost_usd",
    "total_power_w": "wafer_power_w",
    "total_price_usd": "grid_dies * system_cost_usd",
}


def limit_expressions(space: DesignSpace, limits: LimitsPart, count: int) -> dict[str, Expression]:
    """Limit of a study → the condition on its designs, for a number of chips or wafers."""
    expressions = {
        limit: parse_expression(
            f"{name} <= {value / (count if limit.startswith('total') else 1)!r}", limit, "condition"
        )
        for limit, name in (_LIMITED if space.wafer is None else _LIMITED_WAFERS).items()
        if (value := getattr(limits, limit)) is not None
    }
    if limits.rack_power_w is not None and limits.rack_chips is not None:
        most_w = limits.rack_power_w / min(limits.rack_chips, count)
        expressions["rack_power_w"] = parse_expression(f"peak_power_w <= {most_w!r}", "rack_power_w", "condition")
    if limits.least_yield is not None:
        text = f"wafer_yield >= {limits.least_yield!r}"
        expressions["least_yield"] = parse_expression(text, "least_yield", "condition")
    return expressions


def limited(space: DesignSpace, limits: LimitsPart, count: int) -> DesignSpace:
    """The space with the limits of a study as further limits, for a number of chips or wafers."""
    added = tuple(limit_expressions(space, limits, count).values())
    for expression in added:
        space.formulas.check_names(expression, "limits")
    return replace(space, limits=(*space.limits, *added))
