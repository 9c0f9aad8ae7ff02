"""What stands beside the best design of a study: chips to compare with, and what it loses in each scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from dovetail.cli.output import print_table
from dovetail.report.design_words import objective_text
from dovetail.units import percent_text

if TYPE_CHECKING:
    from dovetail.exploration.result import StudyResult


def print_references(result: StudyResult) -> None:
    """A row for each chip: its figures, and what the best design gains over it in the first objective."""
    rows, best = result.document.get("references", []), result.document.get("best")
    if not rows:
        return
    first, *_ = scored = result.study.scored
    networks = any("network" in row for row in rows)
    table = [
        [
            row["chip"],
            f"{row['chips']:,}",
            *([row.get("network", "")] if networks else []),
            *_figures(row, scored),
            _gain(row, best, first),
            _limits_text(row),
        ]
        for row in rows
    ]
    print_table(
        (
            "chip",
            "chips",
            *(["network"] if networks else []),
            *(each.title for each in scored),
            "the best gains",
            "within limits",
        ),
        table,
    )
    typer.echo("")


def print_regrets(result: StudyResult) -> None:
    """A row for each scenario: its best design, and what the chosen one loses there."""
    rows, best = result.document.get("scenarios", []), result.document.get("best")
    if not rows or best is None:
        return
    (objective,) = result.study.scored
    table = [
        [
            row["name"],
            design_text(result, row["best"]),
            objective_text(objective, row["best"]["objectives"][objective.name]),
            objective_text(objective, row["chosen"]["objectives"][objective.name]),
            percent_text(best["regrets"][row["name"]]),
        ]
        for row in rows
    ]
    print_table(("scenario", "its best design", objective.title, "of the chosen design", "regret"), table)
    typer.echo(f"The worst regret is {percent_text(best['worst_regret'])}.\n")


def design_text(result: StudyResult, point: Mapping[str, Any]) -> str:
    """Which design of which space a point is, or which chip."""
    if "chip" in point:
        return f"{point['chip']}, as it is"
    name = point.get("space", result.study.explored[0].name)
    network = f" on {point['network']}" if "network" in point else ""
    return f"{point['design']:,} of {name}{network}"


def _figures(row: Mapping[str, Any], scored: Any) -> list[str]:
    if row["objectives"] is None:
        return ["no plan fits", *("" for _ in scored[1:])]
    return [objective_text(each, row["objectives"][each.name]) for each in scored]


def _gain(row: Mapping[str, Any], best: Mapping[str, Any] | None, objective: Any) -> str:
    if best is None or row["objectives"] is None:
        return ""
    here, there = best["objectives"][objective.name], row["objectives"][objective.name]
    return f"{here / there if objective.better == 'most' else there / here:.2f} x"


def _limits_text(row: Mapping[str, Any]) -> str:
    return {True: "yes", False: "no", None: "not known"}[row["within_limits"]]
