"""`dovetail chips show --silicon`: the estimated area, power and cost of a chip next to its published figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import typer

import dovetail as dt
from dovetail.cli.output import print_bars, print_facts, print_json, print_table
from dovetail.errors import InputError, one_of
from dovetail.units import dollars_text

if TYPE_CHECKING:
    from dovetail.arrays import Array
    from dovetail.hardware import Chip, Coefficient, Technology
    from dovetail.hardware.silicon import Silicon

ENDS = ("value", "low", "high")


def show_silicon(chip: Chip, technology: str, as_json: bool) -> None:
    """The estimate of one chip with its range, next to the published figures."""
    from dovetail.hardware.design import design_of
    from dovetail.hardware.silicon import Silicon

    name = technology or chip.technology
    if name is None:
        what = f"is missing, and {chip.name} names none"
        raise InputError("--technology", what, one_of(dt.hardware.technology_names()))
    node = dt.hardware.technology(name)
    estimates = {end: Silicon(design_of(chip), node, end) for end in ENDS}
    if as_json:
        print_json(_fields(chip, node, estimates))
    else:
        _print(chip, node, estimates)


def _published(chip: Chip) -> dict[str, float | None]:
    return {"area_mm2": chip.area_mm2, "peak_power_w": chip.tdp_w, "cost_usd": chip.price_usd}


def _fields(chip: Chip, node: Technology, estimates: Mapping[str, Silicon]) -> dict[str, Any]:
    from dovetail.hardware.silicon import ESTIMATES, PEAK, TYPICAL

    value = estimates["value"]
    return {
        "name": chip.name,
        "technology": node.name,
        "estimate": {name: {end: float(getattr(e, name)) for end, e in estimates.items()} for name in ESTIMATES},
        "published": {"area_mm2": chip.area_mm2, "tdp_w": chip.tdp_w, "price_usd": chip.price_usd},
        "area_mm2_by_part": _plain(value.area_parts),
        "peak_power_w_by_part": _plain(value.power_parts(PEAK)),
        "cost_usd_by_part": _plain(value.cost_parts),
        "system_cost_usd_by_part": _plain(value.system_parts),
        "typical_power_w_by_part": _plain(value.power_parts(TYPICAL)),
        "coefficients": {name: asdict(coefficient) for name, coefficient in _coefficients(node).items()},
    }


def _plain(parts: Mapping[str, Array]) -> dict[str, float]:
    return {name: float(part) for name, part in parts.items()}


def _coefficients(node: Technology) -> dict[str, Coefficient]:
    values = {field.name: getattr(node, field.name) for field in fields(node)}
    return {name: value for name, value in values.items() if isinstance(value, dt.hardware.Coefficient)}


def _print(chip: Chip, node: Technology, estimates: Mapping[str, Silicon]) -> None:
    from dovetail.hardware.silicon import PEAK

    published = _published(chip)
    rows = [_row(name, label, text, estimates, published.get(name)) for name, (label, text) in _SHOWN.items()]
    typer.echo(f"{chip.name} ({chip.title}) in {node.name}: estimate, with all coefficients at their low and high ends")
    print_table(("", "estimate", "low", "high", "published"), rows)
    value = estimates["value"]
    typer.echo("area by part")
    print_bars(_plain(value.area_parts), _area)
    typer.echo("\npower by part, at its peak")
    print_bars(_plain(value.power_parts(PEAK)), _power)
    typer.echo("\ncost by part")
    print_bars(_plain(value.cost_parts), dollars_text)
    typer.echo()
    print_facts([*_impossible(value), ("cost", "to make one; a price adds margin and development")])


def _area(value: float) -> str:
    return f"{value:,.0f} mm2"


def _power(value: float) -> str:
    return f"{value:,.0f} W"


def _share(value: float) -> str:
    return f"{value:.0%}"


_SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {
    "area_mm2": ("area", _area),
    "die_area_mm2": ("one die", _area),
    "reticle_share": ("reticle used", _share),
    "shoreline_share": ("edge used", _share),
    "peak_power_w": ("peak power", _power),
    "typical_power_w": ("typical power", _power),
    "die_yield": ("die yield", _share),
    "cost_usd": ("cost", dollars_text),
    "system_cost_usd": ("with its system", dollars_text),
}


def _row(
    name: str, label: str, text: Callable[[float], str], estimates: Mapping[str, Silicon], published: float | None
) -> tuple[str, ...]:
    figures = [float(getattr(estimates[end], name)) for end in ENDS]
    comparison = ""
    if published is not None:
        off = f"{figures[0] / published - 1:+.1%}"
        comparison = f"price {text(published)}" if name == "cost_usd" else f"{text(published)} ({off})"
    return (label, *(text(value) for value in figures), comparison)


def _impossible(silicon: Silicon) -> list[tuple[str, str]]:
    """Reasons why the estimate says the chip cannot be made."""
    problems: list[tuple[str, str]] = []
    if float(silicon.reticle_share) > 1:
        problems.append(("reticle", "a die is larger than a scanner exposes at once, 858 mm2"))
    if float(silicon.shoreline_share) > 1:
        problems.append(("edge", "memory and links do not fit the edge of a die"))
    return problems
