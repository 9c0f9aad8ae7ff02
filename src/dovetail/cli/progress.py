"""How a long search reports its progress: a live view on a terminal, lines in a log, JSON for programs.

All of it goes to stderr, so that an answer on stdout stays an answer.
"""

from __future__ import annotations

import json as json_text
import math
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import typer

from dovetail.exploration.events import StudyProgress
from dovetail.units import dollars_text, duration_text, percent_text, quantity_text, seconds_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Clock = Callable[[], float]

_REFRESHES_PER_S = 4
_PLAIN_EVERY_S = 10.0
_JSON_EVERY_S = 0.5
_BAR = 24


class Display(Protocol):
    """Shows the progress of a search."""

    def __call__(self, progress: StudyProgress) -> None:
        """Takes notice."""
        ...

    def __enter__(self) -> Self:
        """Begins to show."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shows the last progress, and leaves the terminal as it was."""
        ...


def listener_for(json: bool) -> Display:
    """The view for whoever reads stderr: a program, a person at a terminal, or a log."""
    if json:
        return JsonLines()
    return LiveView() if sys.stderr.isatty() else PlainLines()


class LiveView:
    """A few lines on a terminal that refresh, and vanish at the end."""

    def __init__(self, clock: Clock = time.monotonic, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._clock = clock
        self._progress: StudyProgress | None = None
        self._heard_at = 0.0
        # the library asks four times a second at most, so time goes on while a long batch says nothing;
        # stdout is not its to redirect, for an answer there must not land on the terminal
        self._live = Live(
            get_renderable=self.view,
            console=console or Console(stderr=True, highlight=False),
            refresh_per_second=_REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
        )

    def __call__(self, progress: StudyProgress) -> None:
        """Shows this from the next refresh on."""
        self._heard_at = self._clock()
        self._progress = progress

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def view(self) -> RenderableType:
        """The lines on the terminal now."""
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        progress = self._progress
        if progress is None:
            return table
        for name, value in _facts(progress, self._clock() - self._heard_at):
            table.add_row(name, Text(value))
        return table


class PlainLines:
    """One line every ten seconds, and one whenever the level changes."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._pace = _Pace(_PLAIN_EVERY_S, clock)

    def __call__(self, progress: StudyProgress) -> None:
        """Writes a line if it is time."""
        if self._pace.due(progress):
            typer.echo(_line(progress), err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Adds nothing: the answer follows."""


class JsonLines:
    """One JSON object a line: two a second at most, each change of the level, and the last."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._pace = _Pace(_JSON_EVERY_S, clock)
        self._unwritten: StudyProgress | None = None

    def __call__(self, progress: StudyProgress) -> None:
        """Writes a line if it is time."""
        if self._pace.due(progress):
            self._write(progress)
        else:
            self._unwritten = progress

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unwritten is not None:
            self._write(self._unwritten)

    def _write(self, progress: StudyProgress) -> None:
        self._unwritten = None
        typer.echo(json_text.dumps(progress.as_json(), ensure_ascii=False, allow_nan=False), err=True)


class _Pace:
    """Whether a line is due: enough time after the last, or at another level."""

    def __init__(self, interval_s: float, clock: Clock) -> None:
        self._every_s, self._clock = interval_s, clock
        self._last_s = -math.inf
        self._level = ""

    def due(self, progress: StudyProgress) -> bool:
        """Says yes once."""
        now_s = self._clock()
        if progress.level == self._level and now_s - self._last_s < self._every_s:
            return False
        self._last_s, self._level = now_s, progress.level
        return True


def _facts(progress: StudyProgress, since_s: float) -> list[tuple[str, str]]:
    """Names and values for the live view, so long after they were said."""
    share = min(progress.counted / progress.total, 1.0) if progress.total else 1.0
    full = int(_BAR * share)
    left_s = 0.0 if progress.eta_s is None else progress.eta_s - since_s
    left = f", about {_clock_text(left_s)} left" if left_s >= 1 else ""
    return [
        ("level", f"{progress.level:<10}  {'━' * full}{'─' * (_BAR - full)}"),
        ("designs", f"{progress.counted:,} of {progress.total:,} ({_part_text(share)})"),
        ("pruned", _pruned_text(progress) or "none yet"),
        *([("left", text)] if (text := _left_text(progress)) else []),
        ("evaluated", f"{progress.evaluated:,} ({_batches_text(progress)}, {_workers_text(progress)})"),
        *_best_facts(progress),
        ("elapsed", f"{_clock_text(progress.elapsed_s + since_s)}{left}"),
    ]


def _best_facts(progress: StudyProgress) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if progress.incumbent is not None or not progress.front:
        facts.append(("best", _best_text(progress)))
    if progress.front > 1 or (progress.front and progress.incumbent is None):
        facts.append(("front", f"{_many(progress.front, 'design')} by {progress.objective}"))
    return facts


def _best_text(progress: StudyProgress) -> str:
    """The incumbent, and what is proved of it."""
    value = progress.incumbent
    parts = ["none yet" if value is None else f"{progress.objective} {_value_text(value, progress.unit)}"]
    if progress.bound is not None:
        parts.append(f"bound {_value_text(progress.bound, progress.unit)}")
    if progress.gap is not None and math.isfinite(progress.gap):
        parts.append(f"gap {percent_text(progress.gap)}")
    return ", ".join(parts)


def _line(progress: StudyProgress) -> str:
    """Everything on one line, for a log."""
    share = progress.counted / progress.total if progress.total else 1.0
    parts = [
        f"{_clock_text(progress.elapsed_s)} {progress.level}: "
        f"{progress.counted:,} of {progress.total:,} designs ({_part_text(share)})"
    ]
    if pruned := _pruned_text(progress):
        parts.append(f"pruned {pruned}")
    if left := _left_text(progress):
        parts.append(f"{left} left")
    parts.append(f"{progress.evaluated:,} evaluated")
    if progress.incumbent is not None:
        parts.append(_best_text(progress))
    if progress.front > 1 or (progress.front and progress.incumbent is None):
        parts.append(f"{_many(progress.front, 'design')} on the Pareto front")
    parts += [_batches_text(progress), _workers_text(progress)]
    if progress.eta_s is not None:
        parts.append(f"about {_clock_text(progress.eta_s)} left")
    return "; ".join(parts)


def _pruned_text(progress: StudyProgress) -> str:
    return ", ".join(f"{number:,} by {level}" for level, number in progress.pruned.items() if number)


def _left_text(progress: StudyProgress) -> str:
    """Designs that may still be better, and how fast they become fewer."""
    if progress.left is None:
        return ""
    rate = "" if progress.rate_per_s is None else f" ({quantity_text(progress.rate_per_s, 'designs/s')})"
    return f"{progress.left:,}{rate}"


def _batches_text(progress: StudyProgress) -> str:
    if progress.batches_total is None:
        return _many(progress.batches, "batch", "batches")
    return f"{progress.batches:,} of {_many(progress.batches_total, 'batch', 'batches')}"


def _workers_text(progress: StudyProgress) -> str:
    return _many(progress.workers, "worker")


def _many(number: int, one: str, more: str = "") -> str:
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


def _part_text(share: float) -> str:
    """A share of the designs: below 100 % while one is left."""
    return percent_text(min(share, 0.999) if share < 1 else 1.0)


def _value_text(value: float, unit: str) -> str:
    """A value of an objective, as the other commands show its unit."""
    if not math.isfinite(value):
        return "unknown"
    match unit:
        case "s":
            return duration_text(value) if value >= 3600 else seconds_text(value)
        case "USD":
            return dollars_text(value)
        case _:
            return quantity_text(value, unit).strip() if unit in _PREFIXED else f"{value:,.5g} {unit}".strip()


#: Units that take k, M, G, ... before them.
_PREFIXED = frozenset({"J", "W", "B", "B/s", "FLOP", "FLOP/s", "Hz"})


def _clock_text(seconds: float) -> str:
    """Hours, minutes and seconds as a clock shows them: of the same width while they run."""
    whole = max(int(seconds), 0)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
