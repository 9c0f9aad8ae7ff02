"""Objectives: what a design with its plans is judged by, and what each is at least before any plan is known.

All are figures to keep small. Each grows with the weighted step time T of the jobs in a straight line, or is not
touched by it: figure ≥ base + slope · T, with equality but for energy, whose dynamic part depends on the plan too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dovetail.arrays import Bools, Floats, Ints

#: How long a system is written off over, for tokens per dollar. A usual figure of data centres.
LIFE_S = 4 * 365.25 * 86400.0


@dataclass(frozen=True, slots=True)
class Objective:
    """How an objective is shown; `figure` is what is minimised."""

    title: str
    unit: str
    better: Literal["least", "most"]

    def shown(self, figure: float) -> float:
        """The value a user knows it by."""
        return figure if self.better == "least" else (1 / figure if figure else float("inf"))


OBJECTIVES: Mapping[str, Objective] = {
    "step_time": Objective("step time", "s", "least"),
    "tokens_per_joule": Objective("tokens per joule", "tokens/J", "most"),
    "tokens_per_dollar": Objective("tokens per dollar", "tokens/USD", "most"),
    "area": Objective("chip area", "mm2", "least"),
}


@dataclass(frozen=True, slots=True)
class Floors:
    """Candidates × objectives: figure ≥ base + slope · T."""

    base: Floats
    slope: Floats

    def points(self, weighted_s: Floats) -> Floats:
        """What the figures are at least at these step times; infinite where there is none."""
        with np.errstate(invalid="ignore"):
            found = self.base + self.slope * weighted_s[:, None]
        found[~np.isfinite(weighted_s)] = np.inf
        return found

    def latest(self, front: Floats) -> Floats:
        """The step time from which on each candidate cannot add to a front: the least over its points.

        A point beats a candidate when all its figures are as small: those that grow with time from some moment on,
        the others always or never.
        """
        found = np.full(len(self.base), np.inf)
        for point in front:
            with np.errstate(divide="ignore", invalid="ignore"):
                since = (point - self.base) / self.slope
            still = np.where(point <= self.base, -np.inf, np.inf)
            beaten = np.where(self.slope > 0, since, still).max(axis=1)
            found = np.minimum(found, beaten)
        return np.maximum(found, 0.0)

    def take(self, rows: Ints | Bools) -> Floors:
        """Some of them."""
        return Floors(self.base[rows], self.slope[rows])


@dataclass(frozen=True, slots=True)
class Prices:
    """What candidates cost whatever runs on them: arrays over candidates."""

    chips: Floats
    area_mm2: Floats
    #: of all chips
    system_usd: Floats
    #: joules of a step that no plan saves, weighted over jobs; and watts of all chips whatever runs
    least_j: Floats
    idle_w: Floats


def floors(objectives: Sequence[str], prices: Prices, tokens: float) -> Floors:
    """The lines of every objective, for so many tokens of a weighted step."""
    none = np.zeros_like(prices.area_mm2)
    lines = {
        "step_time": (none, none + 1.0),
        "tokens_per_joule": (prices.least_j / tokens, prices.idle_w / tokens),
        "tokens_per_dollar": (none, prices.system_usd / (LIFE_S * tokens)),
        "area": (prices.area_mm2, none),
    }
    chosen = [lines[name] for name in objectives]
    return Floors(np.stack([base for base, _ in chosen], axis=1), np.stack([slope for _, slope in chosen], axis=1))
