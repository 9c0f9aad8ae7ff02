"""Objectives of a design with its plans, and their lower bounds before any plan is known.

All figures are minimised. Each is linear in the weighted step time T of the jobs, or independent of it:
figure ≥ base + slope · T, with equality except for energy, whose dynamic part depends on the plan too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from dovetail.arrays import Bools, Floats, Ints
from dovetail.frozen import frozen

#: Depreciation time of a system, for tokens per dollar. A usual figure for data centres.
LIFE_S = 4 * 365.25 * 86400.0


@frozen
class Objective:
    """How an objective is displayed; its `figure` is minimised."""

    title: str
    unit: str
    better: Literal["least", "most"]

    def shown(self, figure: float) -> float:
        """The value a user sees."""
        return figure if self.better == "least" else (1 / figure if figure else float("inf"))

    def best(self, shown: Iterable[float]) -> float:
        """The best of values a user sees."""
        return min(shown) if self.better == "least" else max(shown)


OBJECTIVES: Mapping[str, Objective] = {
    "step_time": Objective("step time", "s", "least"),
    "tokens_per_joule": Objective("tokens per joule", "tokens/J", "most"),
    "tokens_per_dollar": Objective("tokens per dollar", "tokens/USD", "most"),
    "area": Objective("chip area", "mm2", "least"),
}


@frozen
class ObjectiveBounds:
    """Lower bounds, candidates × objectives: figure ≥ base + slope · T."""

    base: Floats
    slope: Floats

    def points(self, weighted_s: Floats) -> Floats:
        """Lower bounds of the figures at these step times; infinite if a step time is."""
        with np.errstate(invalid="ignore"):
            figures = self.base + self.slope * weighted_s[:, None]
        figures[~np.isfinite(weighted_s)] = np.inf
        return figures

    def latest(self, front: Floats) -> Floats:
        """The step time from which each candidate cannot improve a front: the minimum over the front's points.

        A point beats a candidate if all its figures are at most as large: for figures that grow with time, from some
        step time on; for the others, always or never.
        """
        latest = np.full(len(self.base), np.inf)
        for point in front:
            with np.errstate(divide="ignore", invalid="ignore"):
                since = (point - self.base) / self.slope
            still = np.where(point <= self.base, -np.inf, np.inf)
            beaten = np.where(self.slope > 0, since, still).max(axis=1)
            latest = np.minimum(latest, beaten)
        return np.maximum(latest, 0.0)

    def take(self, rows: Ints | Bools) -> ObjectiveBounds:
        """The bounds of some candidates."""
        return ObjectiveBounds(self.base[rows], self.slope[rows])


@frozen
class Prices:
    """Costs of candidates that do not depend on the plan, as arrays."""

    chips: Floats
    area_mm2: Floats
    #: the price of all chips
    system_usd: Floats
    #: joules of a step that every plan spends, weighted over jobs; and watts of all chips whatever runs
    least_j: Floats
    idle_w: Floats


def objective_bounds(objectives: Sequence[str], prices: Prices, tokens: float) -> ObjectiveBounds:
    """The lower bounds of objectives, given the tokens of a weighted step."""
    none = np.zeros_like(prices.area_mm2)
    lines = {
        "step_time": (none, none + 1.0),
        "tokens_per_joule": (prices.least_j / tokens, prices.idle_w / tokens),
        "tokens_per_dollar": (none, prices.system_usd / (LIFE_S * tokens)),
        "area": (prices.area_mm2, none),
    }
    by_objective = [lines[name] for name in objectives]
    return ObjectiveBounds(
        np.stack([base for base, _ in by_objective], axis=1), np.stack([slope for _, slope in by_objective], axis=1)
    )
