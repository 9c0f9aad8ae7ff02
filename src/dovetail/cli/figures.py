"""How hardware and framework figures are shown: quantities, network tiers, doubts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.output import print_table
from dovetail.errors import InputError, quoted
from dovetail.units import quantity_text, seconds_text

if TYPE_CHECKING:
    from dovetail.hardware import Tier

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

#: More than anybody trains; larger is a slip.
MOST_TOKENS = 1e18
_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def parse_tokens(text: str) -> float:
    """A number of tokens as people write it: 15T, 300B, 1.5e12."""
    match = re.fullmatch(r"\s*(\d[\d_]*\.?\d*(?:[eE]\+?\d{1,2})?)\s*([kKMBGT]?)\s*", text[:64])
    number = float(match[1].replace("_", "")) * _COUNTS[match[2].upper()] if match else 0.0
    if not 1 <= number <= MOST_TOKENS:
        raise InputError("--tokens", f"is {quoted(text)}", "it should be a number such as 15T, 300B or 1.5e12")
    return number


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
