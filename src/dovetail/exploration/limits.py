"""Limits and objectives of a study as formulas of its design space."""

from __future__ import annotations

from dataclasses import replace

from dovetail.errors import InputError
from dovetail.exploration.study_file import LimitsPart
from dovetail.hardware.design_space.expression import parse_expression
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


def limited(space: DesignSpace, limits: LimitsPart, count: int) -> DesignSpace:
    """The space with the limits of a study as further limits, for a number of chips or wafers."""
    added = [
        parse_expression(f"{name} <= {value / (count if limit.startswith('total') else 1)!r}", limit, "condition")
        for limit, name in (_LIMITED if space.wafer is None else _LIMITED_WAFERS).items()
        if (value := getattr(limits, limit)) is not None
    ]
    if limits.least_yield is not None:
        added.append(parse_expression(f"wafer_yield >= {limits.least_yield!r}", "least_yield", "condition"))
    for expression in added:
        space.formulas.check_names(expression, "limits")
    return replace(space, limits=(*space.limits, *added))


#: Objective → the estimate it needs of a design.
_ESTIMATED = {"area": "area_mm2", "tokens_per_dollar": "system_cost_usd", "tokens_per_joule": "peak_power_w"}


def check_estimate(space: DesignSpace, objective: str) -> None:
    """Raises an error if the technology has no figures for an objective."""
    if objective in _ESTIMATED:
        try:
            space.values(_ESTIMATED[objective], space.designs([0]))
        except InputError as error:
            raise InputError(f"objectives.{objective}", f"needs an estimate: {error.what}", error.fix) from None
