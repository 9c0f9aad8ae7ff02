"""`dovetail explore --explain`: why a study answers as it does, after the answer."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import typer

from dovetail.report.reason_tables import ReasonTable, point_name, reason_tables

if TYPE_CHECKING:
    from dovetail.explanation.study_reasons import StudyReasons
    from dovetail.exploration.result import StudyResult

#: Columns of the text, and rows of a table: all of them are in the run directory.
_NARROW, _WIDE = 80, 100
#: Of a column that is wrapped.
_LEAST = 22
_ROWS = 15
#: Of a front: points, their tables, and the rows of one.
_POINTS, _OF_FRONT, _FRONT_ROWS = 3, ("bottleneck", "runner-ups", "gains", "limits"), 5
_EVERY_S = 10.0


def reasons_of(result: StudyResult, where: str, most_searches: int, *, as_json: bool) -> StudyReasons | None:
    """The reasons of a result, saved in its run directory; None if they were interrupted."""
    from dovetail.explanation.study_reasons import study_reasons
    from dovetail.exploration.records import REASONS
    from dovetail.exploration.store import RunStore

    said_s = time.monotonic()

    def progress(done: int, most: int) -> None:
        nonlocal said_s
        if time.monotonic() - said_s < _EVERY_S:
            return
        said_s = time.monotonic()
        text = f"explaining: {done:,} of at most {most:,} plan searches"
        event = {"event": "explaining", "searches": done, "most": most}
        typer.echo(json.dumps(event) if as_json else text, err=True)

    try:
        reasons = study_reasons(result, most_searches=most_searches, on_progress=progress)
    except KeyboardInterrupt:
        return None
    RunStore.attach(where, REASONS, reasons.as_json)
    return reasons


def print_reasons(result: StudyResult, reasons: StudyReasons) -> None:
    """The reasons of the best design, or of the first points of a front."""
    from dovetail.explanation.asked_study import AskedStudy

    objectives = AskedStudy.of(result).objectives
    points = reasons.as_json["points"]
    for point in points[:_POINTS]:
        typer.echo(f"\nWhy {point_name(point)}")
        for table in reason_tables(objectives, point):
            if len(points) == 1:
                _print(table, _ROWS)
            elif table.key.startswith(_OF_FRONT):
                _print(table, 0 if table.key.startswith("bottleneck") else _FRONT_ROWS)
    if "front" in result.document:
        rest = f"{len(points) - _POINTS} more points and all" if len(points) > _POINTS else "All"
        typer.echo(f"\n{rest} parts, operators and rows: {result.run_dir}/reasons.json and dovetail report.")


def _print(table: ReasonTable, most: int) -> None:
    width = min(max(shutil.get_terminal_size().columns, _NARROW), _WIDE)
    typer.echo(f"\n{table.title}")
    for line in textwrap.wrap(_joined(table.lead), width - 2):
        typer.echo(f"  {_parted(line)}")
    if not table.rows or not most:
        return
    for line in _lines([table.columns, *table.rows[:most]], width):
        typer.echo(f"  {line}".rstrip())
    if len(table.rows) > most:
        typer.echo(f"  and {len(table.rows) - most} more")


def _joined(text: str) -> str:
    """Figures with their units as one word, which no line ends in."""
    return re.sub(r"(?<=\d) (?=[%A-Za-z])", "\N{NO-BREAK SPACE}", text)


def _parted(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def _lines(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows in columns, figures to the right; what does not fit the first or the last column goes on below."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    figures = [position > 0 and all(map(_is_figure, column[1:])) for position, column in enumerate(columns)]
    for wrapped in (len(widths) - 1, 0):
        beyond = sum(widths) + 2 * len(widths) - width
        if beyond > 0 and not figures[wrapped]:
            widths[wrapped] = min(widths[wrapped], max(widths[wrapped] - beyond, _LEAST))
    return [line for row in rows for line in _row(row, widths, figures)]


def _row(row: Sequence[str], widths: Sequence[int], figures: Sequence[bool]) -> list[str]:
    cells = [
        [_parted(line) for line in textwrap.wrap(_joined(text), width)] or [""]
        for text, width in zip(row, widths, strict=True)
    ]
    return [
        "  ".join(
            f"{text:>{width}}" if figure else f"{text:<{width}}"
            for text, width, figure in zip(line, widths, figures, strict=True)
        )
        for line in zip_longest(*cells, fillvalue="")
    ]


def _is_figure(text: str) -> bool:
    return not text or text[0] in "+-0123456789" or text == "no plan fits"
