"""What stands next to the best design of a study: chips to compare with, and what it loses in each scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.report.design_words import objective_text
from dovetail.report.reason_tables import ReasonTable
from dovetail.units import percent_text

if TYPE_CHECKING:
    from dovetail.exploration.objective import Objective
    from dovetail.exploration.result import StudyResult


def reference_table(result: StudyResult) -> ReasonTable | None:
    """A row for each chip: its figures, and what the best design gains over it in the first objective."""
    rows, best = result.document.get("references", []), result.document.get("best")
    if not rows:
        return None
    first, *_ = scored = result.study.scored
    networks = ["network"] if any("network" in row for row in rows) else []
    table = tuple(
        (
            row["chip"],
            f"{row['chips']:,}",
            *(row.get(name, "") for name in networks),
            *_figures(row, scored),
            _gain(row, best, first),
            _limits_text(row),
        )
        for row in rows
    )
    columns = ("chip", "chips", *networks, *(each.title for each in scored), "the best gains", "within limits")
    lead = "Chips as they are, each with its best plans in the same study."
    return ReasonTable("references", "Chips to compare with", lead, columns, table)


def regret_table(result: StudyResult) -> ReasonTable | None:
    """A row for each scenario: its best design, and what the chosen one loses there."""
    rows, best = result.document.get("scenarios", []), result.document.get("best")
    if not rows or best is None:
        return None
    (objective,) = result.study.scored
    table = tuple(
        (
            row["name"],
            design_text(result, row["best"]),
            objective_text(objective, row["best"]["objectives"][objective.name]),
            objective_text(objective, row["chosen"]["objectives"][objective.name]),
            percent_text(best["regrets"][row["name"]]),
        )
        for row in rows
    )
    columns = ("scenario", "its best design", objective.title, "of the chosen design", "regret")
    lead = f"The worst regret is {percent_text(best['worst_regret'])}."
    return ReasonTable("regret", "Scenarios", lead, columns, table)


def design_text(result: StudyResult, point: Mapping[str, Any]) -> str:
    """Which design of which space a point is, or which chip."""
    if "chip" in point:
        return f"{point['chip']}, as it is"
    name = point.get("space", result.study.explored[0].name)
    network = f" on {point['network']}" if "network" in point else ""
    return f"{point['design']:,} of {name}{network}"


def _figures(row: Mapping[str, Any], scored: Sequence[Objective]) -> list[str]:
    if row["objectives"] is None:
        return ["no plan fits", *("" for _ in scored[1:])]
    return [objective_text(each, row["objectives"][each.name]) for each in scored]


def _gain(row: Mapping[str, Any], best: Mapping[str, Any] | None, objective: Objective) -> str:
    if best is None or row["objectives"] is None:
        return ""
    here, there = best["objectives"][objective.name], row["objectives"][objective.name]
    return f"{here / there if objective.better == 'most' else there / here:.2f} x"


def _limits_text(row: Mapping[str, Any]) -> str:
    return {True: "yes", False: "no", None: "not known"}[row["within_limits"]]
