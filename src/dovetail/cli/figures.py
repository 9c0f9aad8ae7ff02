"""How hardware and framework figures are shown: quantities, network tiers, doubts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.output import print_table
from dovetail.errors import InputError, quoted
from dovetail.units import bytes_text, percent_text, seconds_text

if TYPE_CHECKING:
    from dovetail.hardware import Tier

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

#: More than anybody trains; larger is a slip.
MOST_TOKENS = 1e18
_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def quantity_text(number: float, unit: str) -> str:
    """A figure in decimal multiples of its unit, with the digits it was published with."""
    factor, prefix = next(((f, p) for f, p in _PREFIXES if number >= f), (1.0, ""))
    return f"{number / factor:.4g} {prefix}{unit}"


def parse_tokens(text: str) -> float:
    """A number of tokens as people write it: 15T, 300B, 1.5e12."""
    match = re.fullmatch(r"\s*(\d[\d_]*\.?\d*(?:[eE]\+?\d{1,2})?)\s*([kKMBGT]?)\s*", text[:64])
    number = float(match[1].replace("_", "")) * _COUNTS[match[2].upper()] if match else 0.0
    if not 1 <= number <= MOST_TOKENS:
        raise InputError("--tokens", f"is {quoted(text)}", "it should be a number such as 15T, 300B or 1.5e12")
    return number


def duration_text(seconds: float) -> str:
    """A long time for a reader: hours below two days, then days, then years."""
    hours = seconds / 3600
    if hours < 48:
        return f"{hours:.3g} h" if hours >= 1 else seconds_text(seconds)
    days = hours / 24
    return f"{days:,.3g} days" if days < 730 else f"{days / 365.25:,.1f} years"


def dollars_text(dollars: float) -> str:
    """Dollars for a reader, to three digits or so."""
    for factor, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if dollars >= factor:
            return f"{dollars / factor:,.4g}{suffix}USD"
    return f"{dollars:,.2f} USD"


def doubts_facts(doubts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """What is unsure, one line a field."""
    return [("doubts" if position == 0 else "", f"{field}: {why}") for position, (field, why) in enumerate(doubts)]


def print_tiers(tiers: Sequence[Tier]) -> None:
    """Network tiers as a table, innermost first."""
    if tiers:
        print_table(("tier", "chips", "topology", "per chip", "latency", "notes"), [_tier_row(tier) for tier in tiers])


def _tier_row(tier: Tier) -> tuple[str, ...]:
    from dovetail.hardware import MAX_CHIPS

    notes = [f"{tier.oversubscription:g}:1"] if tier.oversubscription > 1 else []
    notes += ["reduces"] if tier.in_network_reduction else []
    notes += ["routed"] if tier.routed else []
    return (
        tier.name,
        "any number" if tier.size == MAX_CHIPS else f"{tier.size:,}",
        f"{tier.topology} {' x '.join(map(str, tier.shape))}".strip(),
        quantity_text(tier.bytes_per_s, "B/s"),
        seconds_text(tier.latency_s),
        ", ".join(notes),
    )


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
