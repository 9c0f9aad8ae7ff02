"""How answers reach the user: JSON as it is, tables for reading."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def print_json(answer: DataclassInstance | Sequence[Any] | dict[str, Any]) -> None:
    """The answer as JSON, the same bytes for the same answer."""
    if not isinstance(answer, Sequence | dict):
        answer = asdict(answer)
    typer.echo(json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: the first column to the left, figures to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Names and values, one pair a line."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        typer.echo(f"{name:<{width}}  {value}")
