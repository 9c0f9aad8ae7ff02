"""What studies ask, answered by hand: every design of every kind of hardware planned, formulas computed with Python."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import dovetail as dt
from dovetail import frameworks, hardware
from dovetail.documents import validate
from dovetail.hardware import Chip, Cluster
from dovetail.hardware.catalogue import space_from
from dovetail.hardware.design_space.space import DesignSpace
from dovetail.hardware.network import TierSpec, fit_tiers
from dovetail.search import Space
from dovetail.step.evaluation import Evaluation

Document = Mapping[str, Any]

#: Formulas of the named objectives, as the reference page has them.
NAMED = {
    "step_time": "step_s",
    "tokens_per_joule": "tokens / energy_j",
    "tokens_per_dollar": "tokens / (total_price_usd * step_s / life_s + energy_j * usd_per_joule)",
    "tokens_per_s_per_w": "tokens_per_s / total_power_w",
    "tokens_per_s_per_mm2": "tokens_per_s / total_area_mm2",
    "area": "area_mm2",
}
MOST = ("tokens_per_joule", "tokens_per_dollar", "tokens_per_s_per_w", "tokens_per_s_per_mm2")
#: Figures of designs that formulas here use.
FIGURES = ("area_mm2", "peak_power_w", "cost_usd", "system_cost_usd", "hbm_stacks", "clock_hz")


@dataclass(frozen=True, slots=True)
class Planned:
    """A design in some number, with the fastest plan of every job."""

    kind: str
    design: int
    chips: int
    reference: bool
    within: bool
    figures: dict[str, float]
    plans: dict[str, Evaluation]

    @property
    def place(self) -> tuple[str, int, int]:
        """What tells it from others."""
        return self.kind, self.design, self.chips


def planned(study: Document, scenario: Document | None = None) -> list[Planned]:
    """All on which every job fits: designs within the limits, and chips to compare with."""
    found: list[Planned] = []
    for kind, space, followed, reference in _kinds(study, scenario or {}):
        for chips in _listed(study["cluster"]["chips"]):
            for design in range(space.size):
                designs = space.designs([design])
                figures = {name: float(space.values(name, designs).ravel()[0]) for name in FIGURES}
                chip = space.chip(design)
                if followed is not None:
                    chip = replace(chip, calibrated_as=hardware.chip(followed), calibration=None)
                within = bool(space.keeps([design])[0]) and _within(study, chip, chips, figures)
                plans = (
                    {_name(job): _plan(study, job, chip, chips) for job in study["jobs"]} if within or reference else {}
                )
                fit = {name: plan for name, plan in plans.items() if plan is not None}
                if len(fit) == len(study["jobs"]):
                    found.append(Planned(kind, design, chips, reference, within, figures, fit))
    return found


def _kinds(study: Document, scenario: Document) -> Iterator[tuple[str, DesignSpace, str | None, bool]]:
    """Name, designs, the chip whose calibration they follow if not their base, whether it is a chip to compare with."""
    changed = {name: scenario[name] for name in ("technology", "coefficients", "calibrated_as") if name in scenario}
    for part in _listed(study["hardware"]):
        fields = {"name": part.get("name", part["base"]), **part, **changed}
        followed = fields.pop("calibrated_as", None)
        yield fields["name"], space_from(fields, "oracle"), followed, False
    for name in study.get("candidates", ()):
        # the space of one design, which is the chip
        chip = hardware.chip(name)
        fields = {"name": name, "base": name, "vary": {"tensor_cores": [chip.tensor_cores]}, **changed}
        followed = fields.pop("calibrated_as", None)
        yield name, space_from(fields, "oracle"), followed, True


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _name(job: Document) -> str:
    return job.get("name", job["model"])


def _within(study: Document, chip: Chip, chips: int, figures: Mapping[str, float]) -> bool:
    limits = study.get("limits", {})
    peak_w = figures["peak_power_w"]
    taken = {
        "area_mm2": figures["area_mm2"],
        "power_w": peak_w,
        "cost_usd": figures["cost_usd"],
        "chips": chips,
        "total_power_w": chips * peak_w,
        "total_price_usd": chips * figures["system_cost_usd"],
        "rack_power_w": limits.get("rack_chips", 0) * peak_w,
        "domain_chips": _cluster(study, chip, chips).tiers[0].size,
    }
    return all(taken[name] <= most for name, most in limits.items() if name != "rack_chips")


def _cluster(study: Document, chip: Chip, chips: int) -> Cluster:
    asked = study["cluster"].get("tiers")
    tiers = chip.tiers if asked is None else tuple(validate(TierSpec, tier, "tier").tier() for tier in asked)
    return Cluster("oracle", chip, chips, fit_tiers(tiers, chips, "oracle"))


_PLANS: dict[str, Evaluation | None] = {}


def _plan(study: Document, asked: Document, chip: Chip, chips: int) -> Evaluation | None:
    """The fastest plan; the same one is planned once for all tests."""
    cluster = _cluster(study, replace(chip, name="oracle"), chips)
    job = {name: value for name, value in asked.items() if name not in ("name", "weight")}
    framework = study["cluster"]["framework"]
    key = repr((cluster, sorted(job.items()), framework, sorted(study["plans"].items())))
    if key not in _PLANS:
        options = {name: value for name, value in job.items() if name != "model"}
        space = Space(**{k: tuple(v) if isinstance(v, list) else v for k, v in study["plans"].items()})
        found = dt.plan(dt.Job(_model(job["model"]), **options), cluster, frameworks.load(framework), space=space)
        _PLANS[key] = found.evaluation
    return _PLANS[key]


@cache
def _model(name: str) -> Any:
    return dt.models.load(name)


def _tokens(job: Document) -> float:
    return float(job["seq_len"] * job["global_batch"])


def together(study: Document, values: Mapping[str, float], units: Mapping[str, float]) -> float:
    """One number of a value for each job, by the mean the study asks for."""
    total = sum(job.get("weight", 1.0) for job in study["jobs"])
    weights = {_name(job): job.get("weight", 1.0) / total for job in study["jobs"]}
    relative = {name: value / units.get(name, 1.0) for name, value in values.items()}
    if study.get("over_jobs", {}).get("mean") == "geometric":
        return math.prod(relative[name] ** weight for name, weight in weights.items())
    return sum(weight * relative[name] for name, weight in weights.items())


def units_of(study: Document, points: Sequence[Planned]) -> dict[str, float]:
    """What each job's figures are divided by."""
    asked = study.get("over_jobs", {}).get("relative_to")
    if asked is None:
        return {}
    counted = [point for point in points if (point.within if asked == "own" else point.kind == asked)]
    return {_name(job): min(point.plans[_name(job)].step_time_s for point in counted) for job in study["jobs"]}


def value_of(
    study: Document, objective: Any, point: Planned, units: Mapping[str, float], scenario: Document | None = None
) -> float:
    """An objective's value, as a user knows it."""
    prices = {"usd_per_kwh": 0.0, "pue": 1.0, "life_years": 4.0}
    prices |= (scenario or {}).get("prices") or study.get("prices", {})
    joules = {name: plan.energy_j for name, plan in point.plans.items()}
    assert all(each is not None for each in joules.values())
    step_s = together(study, {name: plan.step_time_s for name, plan in point.plans.items()}, units)
    tokens = together(study, {_name(job): _tokens(job) for job in study["jobs"]}, units)
    names = {
        **point.figures,
        "step_s": step_s,
        "energy_j": together(study, joules, units),  # type: ignore[arg-type]
        "tokens": tokens,
        "tokens_per_s": tokens / step_s,
        "chips": point.chips,
        "total_area_mm2": point.chips * point.figures["area_mm2"],
        "total_power_w": point.chips * point.figures["peak_power_w"],
        "total_price_usd": point.chips * point.figures["system_cost_usd"],
        "life_s": prices["life_years"] * 365.25 * 86400,
        "usd_per_joule": prices["usd_per_kwh"] * prices["pue"] / 3.6e6,
    }
    formula = NAMED[objective] if isinstance(objective, str) else objective["formula"]
    return float(eval(formula, {"sqrt": math.sqrt, "max": max, "min": min, "log2": math.log2}, names))  # noqa: S307


def cost_of(objective: Any, value: float) -> float:
    """The same as a figure that should be small."""
    most = objective in MOST if isinstance(objective, str) else objective["better"] == "most"
    return 1 / value if most else value


def name_of(objective: Any) -> str:
    """What results call it."""
    return objective if isinstance(objective, str) else objective["name"]


def worst_regrets(study: Document) -> dict[tuple[str, int, int], dict[str, float]]:
    """Regret in each scenario, of every design that fits and keeps the limits in all of them."""
    (objective,) = study["objectives"]
    asked = {"as given": {}, **{scenario["name"]: scenario for scenario in study["scenarios"]}}
    figures: dict[str, dict[tuple[str, int, int], float]] = {}
    for name, scenario in asked.items():
        points = [point for point in planned(study, scenario) if point.within]
        values = {point.place: value_of(study, objective, point, {}, scenario) for point in points}
        figures[name] = {place: cost_of(objective, value) for place, value in values.items()}
    common = set.intersection(*(set(costs) for costs in figures.values()))
    least = {name: min(costs.values()) for name, costs in figures.items()}
    return {place: {name: figures[name][place] / least[name] - 1 for name in figures} for place in common}
