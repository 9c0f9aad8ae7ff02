"""Studies answered without exploring: the best plans of every design within the limits, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dovetail as dt
from dovetail import frameworks
from dovetail.documents import validate
from dovetail.hardware import Chip, Cluster
from dovetail.hardware.catalogue import space_from
from dovetail.hardware.network import TierSpec, fit_tiers
from dovetail.search import Space

Document = Mapping[str, Any]
Figures = dict[str, float]

#: Over which a system is written off.
FOUR_YEARS_S = 4 * 365.25 * 24 * 3600
#: Better when smaller; the others when larger.
SMALL = ("step_time", "area")


@dataclass(frozen=True, slots=True)
class Tried:
    """What a design with so many chips comes to with its fastest plans."""

    design: int
    chips: int
    values: dict[str, float]
    """of every objective, as a user knows it"""
    step_s: dict[str, float]
    """of every job"""

    def costs(self, objectives: Sequence[str]) -> tuple[float, ...]:
        """What is better when smaller."""
        return tuple(self.values[name] if name in SMALL else 1 / self.values[name] for name in objectives)


@dataclass(frozen=True, slots=True)
class Answers:
    """All there is to know of a study."""

    kept: int
    """designs within the limits, with each number of chips"""
    tried: list[Tried]
    """those on which every job has a plan that fits"""


def every_design(study: Document) -> Answers:
    """Every design of a study with a space of its own, written out."""
    space = space_from({"name": "designs", **study["hardware"]}, "oracle")
    kept = 0
    tried: list[Tried] = []
    for chips in _counts(study):
        for design in range(space.size):
            designs = space.designs([design])
            chip = space.chip(design)
            price = float(space.values("system_cost_usd", designs)[0])
            cost = float(space.values("cost_usd", designs)[0])
            if not space.keeps([design])[0] or not _within(study.get("limits", {}), chip, chips, cost, price):
                continue
            kept += 1
            found = _tried(study, chip, chips, price)
            if found is not None:
                tried.append(Tried(design, chips, *found))
    return Answers(kept, tried)


def _counts(study: Document) -> Iterator[int]:
    chips = study["cluster"]["chips"]
    most = study.get("limits", {}).get("chips", float("inf"))
    yield from sorted(count for count in ([chips] if isinstance(chips, int) else chips) if count <= most)


def _within(limits: Document, chip: Chip, chips: int, cost_usd: float, price_usd: float) -> bool:
    assert chip.area_mm2 is not None
    assert chip.tdp_w is not None
    taken = {
        "area_mm2": chip.area_mm2,
        "power_w": chip.tdp_w,
        "cost_usd": cost_usd,
        "total_power_w": chips * chip.tdp_w,
        "total_price_usd": chips * price_usd,
    }
    return all(taken[name] <= most for name, most in limits.items() if name != "chips")


def _tried(study: Document, chip: Chip, chips: int, price_usd: float) -> tuple[Figures, Figures] | None:
    """Objectives, and step times of jobs; None where a job has no plan that fits."""
    total = sum(job.get("weight", 1.0) for job in study["jobs"])
    step_s = tokens = joules = 0.0
    by_job: dict[str, float] = {}
    for asked in study["jobs"]:
        model = dt.models.load(asked["model"])
        options = {name: asked[name] for name in ("precision", "optimizer") if name in asked}
        job = dt.Job(model, seq_len=asked["seq_len"], global_batch=asked["global_batch"], **options)
        best = dt.plan(job, cluster_of(study, chip, chips), _framework(study), space=_plans(study)).evaluation
        if best is None:
            return None
        assert best.energy_j is not None
        part = asked.get("weight", 1.0) / total
        step_s += part * best.step_time_s
        joules += part * best.energy_j
        tokens += part * asked["seq_len"] * asked["global_batch"]
        by_job[asked.get("name", asked["model"])] = best.step_time_s
    assert chip.area_mm2 is not None
    dollars = chips * price_usd * step_s / FOUR_YEARS_S
    values = {"step_time": step_s, "tokens_per_joule": tokens / joules, "tokens_per_dollar": tokens / dollars}
    return {**values, "area": chip.area_mm2}, by_job


def cluster_of(study: Document, chip: Chip, chips: int) -> Cluster:
    """So many of a chip, with the network the study says or the chip has."""
    asked = study["cluster"].get("tiers")
    tiers = chip.tiers if asked is None else tuple(validate(TierSpec, tier, "tier").tier() for tier in asked)
    return Cluster("oracle", chip, chips, fit_tiers(tiers, chips, "oracle"))


def _framework(study: Document) -> Any:
    return frameworks.load(study["cluster"].get("framework", "megatron"))


def _plans(study: Document) -> Space:
    asked: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in study["plans"].items()}
    return Space(**asked)
