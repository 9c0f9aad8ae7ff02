"""Objectives of a study: formulas of the step time and of what is fixed for a design.

A formula is one if its form shows that it rises, or falls, with the step time and the energy of a step: then a lower
bound of these bounds the objective. Every figure is minimised: the value, or one over a value that should be large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from dovetail.arrays import Floats
from dovetail.errors import InputError, quoted
from dovetail.frozen import frozen
from dovetail.hardware.design_space.expression import Expression, Lookup, parse_expression
from dovetail.hardware.design_space.monotone import trend

Better = Literal["least", "most"]

#: Names that change with the plan, and whether they rise or fall with the step time.
MOVING: Mapping[str, int] = {"step_s": 1, "energy_j": 1, "tokens_per_s": -1}
#: Names of a study besides those of its design spaces.
OF_STUDY = (
    "tokens", "chips", "area_mm2", "peak_power_w", "cost_usd", "system_cost_usd", "total_area_mm2", "total_power_w",
    "total_price_usd", "life_s", "usd_per_joule",
)  # fmt: skip


@frozen
class Objective:
    """What is asked of a design, and how it is displayed."""

    name: str
    title: str
    unit: str
    better: Better
    expression: Expression

    @property
    def timed(self) -> bool:
        """Whether it depends on the plan."""
        return any(name in MOVING for name in self.expression.names)

    @property
    def counts_energy(self) -> bool:
        """Whether the energy of a step is part of it."""
        return "energy_j" in self.expression.names

    def figure(self, lookup: Lookup) -> Floats:
        """What is minimised."""
        value = self.expression.number(lookup)
        if self.better == "least":
            return value
        with np.errstate(divide="ignore"):
            return 1 / value

    def shown(self, figure: float) -> float:
        """The value a user sees."""
        return figure if self.better == "least" else (1 / figure if figure else float("inf"))

    def best(self, shown: Iterable[float]) -> float:
        """The best of values a user sees."""
        return min(shown) if self.better == "least" else max(shown)


def formula_objective(name: str, text: str, unit: str = "", better: Better | None = None, title: str = "") -> Objective:
    """The objective of a formula; refused unless it is certain to rise or to fall with the step time."""
    where = f"objectives.{name}"
    expression = parse_expression(text, where, "number")
    certain = trend(expression, MOVING)
    if certain.direction is None or not certain.positive:
        what = f"{quoted(expression.text)} is not certain to rise or to fall with the step time, and to be positive"
        raise InputError(where, what, "use sums, products and quotients of step_s, energy_j or tokens_per_s")
    found: Better | None = {1: "least", -1: "most"}.get(certain.direction)  # type: ignore[assignment]
    if better is not None and found not in (None, better):
        way = "rises" if found == "least" else "falls"
        raise InputError(
            f"{where}.better", f"is {better}, and the formula {way} with the step time", f"set it to {found}"
        )
    return Objective(name, title or name.replace("_", " "), unit, found or better or "least", expression)


#: Dollars of a step: the system's price written off over its life, and what its energy costs where that has a price.
_CAPITAL = "total_price_usd * step_s / life_s"
_WITH_ENERGY = f"({_CAPITAL} + energy_j * usd_per_joule)"

#: name → formula, unit, title
_NAMED: Mapping[str, tuple[str, str, str]] = {
    "step_time": ("step_s", "s", "step time"),
    "tokens_per_joule": ("tokens / energy_j", "tokens/J", "tokens per joule"),
    "tokens_per_dollar": (f"tokens / ({_CAPITAL})", "tokens/USD", "tokens per dollar"),
    "tokens_per_s_per_w": ("tokens_per_s / total_power_w", "tokens/s/W", "tokens per second and watt"),
    "tokens_per_s_per_mm2": ("tokens_per_s / total_area_mm2", "tokens/s/mm2", "tokens per second and mm2"),
    "area": ("area_mm2", "mm2", "chip area"),
}

OBJECTIVES: Mapping[str, Objective] = {
    name: formula_objective(name, text, unit, title=title) for name, (text, unit, title) in _NAMED.items()
}


def named_objective(name: str, *, energy_priced: bool) -> Objective:
    """An objective by its name; a dollar pays for energy too where a study says what it costs."""
    if name == "tokens_per_dollar" and energy_priced:
        _, unit, title = _NAMED[name]
        return formula_objective(name, f"tokens / {_WITH_ENERGY}", unit, title=title)
    return OBJECTIVES[name]
