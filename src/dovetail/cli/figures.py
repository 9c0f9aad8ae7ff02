"""How hardware and framework figures are shown: quantities, network tiers, doubts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.output import print_table
from dovetail.units import seconds_text

if TYPE_CHECKING:
    from dovetail.hardware import Tier

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def quantity_text(number: float, unit: str) -> str:
    """A figure in decimal multiples of its unit, with the digits it was published with."""
    factor, prefix = next(((f, p) for f, p in _PREFIXES if number >= f), (1.0, ""))
    return f"{number / factor:.4g} {prefix}{unit}"


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
    return (
        tier.name,
        "any number" if tier.size == MAX_CHIPS else f"{tier.size:,}",
        f"{tier.topology} {' x '.join(map(str, tier.shape))}".strip(),
        quantity_text(tier.bytes_per_s, "B/s"),
        seconds_text(tier.latency_s),
        ", ".join(notes),
    )
