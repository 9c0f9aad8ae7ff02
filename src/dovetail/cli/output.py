"""How answers are printed: JSON for programs, tables for people."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from dovetail.errors import InputError

#: Shares below this are rounding errors and not shown.
SMALLEST_PART = 1e-9


def print_json(answer: Sequence[Any] | dict[str, Any]) -> None:
    """The answer as JSON; equal answers give equal bytes."""
    typer.echo(json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: the first column aligned left, figures aligned right."""
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
    """Names and values, one pair per line."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        typer.echo(f"{name:<{width}}  {value}")


def print_bars(parts: Mapping[str, float], text: Callable[[float], str], width: int = 40) -> None:
    """Parts of a whole as bars, largest first, without those that are zero up to rounding."""
    total = sum(parts.values()) or 1.0
    shown = sorted(((v, n) for n, v in parts.items() if v > SMALLEST_PART * total), reverse=True)
    label = max((len(name) for _, name in shown), default=0)
    for value, name in shown:
        bar = "█" * max(round(width * value / total), 1)
        typer.echo(f"  {name:<{label}}  {text(value):>10}  {value / total:6.1%}  {bar}")


def print_scale(rows: Sequence[tuple[str, float | None]], text: Callable[[float], str], width: int = 40) -> None:
    """Figures as bars of one scale; a dash where there is no figure."""
    most = max((value for _, value in rows if value is not None), default=0.0) or 1.0
    label = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        if value is None:
            typer.echo(f"  {name:>{label}}  {'-':>12}")
        else:
            typer.echo(f"  {name:>{label}}  {text(value):>12}  {'█' * max(round(width * value / most), 1)}")


def check_target(out: Path, *, force: bool) -> None:
    """Refuses a file that cannot be written, or that exists and may not be overwritten."""
    if not out.parent.is_dir():
        raise InputError(str(out), "is in a folder that does not exist", "name a file in an existing folder")
    if out.exists() and not force:
        raise InputError(str(out), "already exists", "name another file or add --force")


def wrapped(name: str, value: str, width: int = 100) -> list[tuple[str, str]]:
    """A long fact as several lines."""
    return [(name if position == 0 else "", line) for position, line in enumerate(textwrap.wrap(value, width))]
