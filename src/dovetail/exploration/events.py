"""Progress reports of a study while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from dovetail.frozen import frozen


@frozen
class StudyProgress:
    """How far a study is: numbers of designs, the best value so far and how much better any could be."""

    level: str
    """the fidelity level running now: "warm_start", "physical", "profile", "search" or "replay" """
    counted: int
    """designs of the space handled so far, at any level"""
    total: int
    """designs of the space before any limit"""
    pruned: Mapping[str, int]
    """level → designs it pruned"""
    evaluated: int
    """designs whose search was completed"""
    incumbent: float | None
    """the best value found; None before there is one, and with several objectives"""
    objective: str
    unit: str
    bound: float | None
    """a lower bound for all designs of the space"""
    gap: float | None
    """how much better than the incumbent a design could be, as a share of it"""
    front: int
    """points on the Pareto front"""
    batches: int
    batches_total: int | None
    """None while unknown"""
    workers: int
    elapsed_s: float
    eta_s: float | None
    """seconds to go at this level, at its rate so far"""
    left: int | None = None
    """designs that may still be better than the best, as far as they are looked at"""
    rate_per_s: float | None = None
    """designs a second that this level prunes or searches"""

    def as_json(self) -> dict[str, Any]:
        """The event as JSON for other programs; infinite values are null."""
        values = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return {"event": "progress", **values, "pruned": dict(self.pruned)}


class LevelRate:
    """How fast a level gets through designs."""

    def __init__(self) -> None:
        self._level = ""
        self._start_s = 0.0
        self._start_left = 0

    def per_second(self, level: str, left: int, now_s: float) -> float | None:
        """Designs a second since the level began; None where it just did."""
        if level != self._level:
            self._level, self._start_s, self._start_left = level, now_s, left
        seconds, done = now_s - self._start_s, self._start_left - left
        return done / seconds if seconds > 0 and done > 0 else None


#: Receives progress reports.
Listener = Callable[[StudyProgress], None]


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
