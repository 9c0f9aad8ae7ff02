"""What stands beside the best design of a study: chips to compare with, and what it loses in each scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dovetail.cli.output import print_table
from dovetail.report.comparison_tables import reference_table, regret_table

if TYPE_CHECKING:
    from dovetail.exploration.result import StudyResult


def print_references(result: StudyResult) -> None:
    """A row for each chip to compare with."""
    table = reference_table(result)
    if table is not None:
        print_table(table.columns, table.rows)
        typer.echo("")


def print_regrets(result: StudyResult) -> None:
    """A row for each scenario."""
    table = regret_table(result)
    if table is not None:
        print_table(table.columns, table.rows)
        typer.echo(f"{table.lead}\n")
