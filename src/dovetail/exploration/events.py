"""What a search over designs says of itself while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search has come: numbers of designs, the best value known and how much better any could be."""

    level: str
    """what designs are looked at with now: "scout", "physical", "profile", "search" or "replay" """
    counted: int
    """designs of the space dealt with so far, by whatever level"""
    total: int
    """designs of the space before any limit"""
    pruned: Mapping[str, int]
    """level → designs it left out"""
    evaluated: int
    """designs that were searched to the end"""
    incumbent: float | None
    """the least value found; None before there is one, and where several objectives are minimised"""
    objective: str
    unit: str
    bound: float | None
    """no design of the space comes below"""
    gap: float | None
    """what the bound leaves open, as a part of the incumbent"""
    front: int
    """points on the front"""
    batches: int
    batches_total: int | None
    """None while nobody knows"""
    workers: int
    elapsed_s: float
    eta_s: float | None

    def as_json(self) -> dict[str, Any]:
        """For a program that reads along; what is not finite is null, as JSON knows no infinity."""
        values = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return {"event": "progress", **values, "pruned": dict(self.pruned)}


#: Whoever wants to know.
Listener = Callable[[Progress], None]


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
