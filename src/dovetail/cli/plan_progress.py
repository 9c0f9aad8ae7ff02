"""How far the search for a plan is: one line on a terminal that is written over, and goes with the answer."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from dovetail.units import percent_text, seconds_text

if TYPE_CHECKING:
    from dovetail.search.progress import SearchProgress

_CLEAR = "\r\x1b[K"


class PlanProgress:
    """Shows the best plan so far, the bound, the gap and how many plans are open; nothing where nobody watches."""

    def __init__(self, *, as_json: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty() and not (as_json and not sys.stdout.isatty())

    def __call__(self, progress: SearchProgress) -> None:
        """Writes the line anew."""
        if self._shown:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(_CLEAR + progress_text(progress)[:width])
            self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()


def progress_text(progress: SearchProgress) -> str:
    """How far a search is, in a line."""
    if not progress.counted:
        return "preparing the search"
    best = "none yet" if progress.step_time_s is None else seconds_text(progress.step_time_s)
    parts = [f"best {best}", f"bound {seconds_text(progress.lower_bound_s)}"]
    if progress.gap is not None:
        parts.append(f"gap {percent_text(progress.gap)}")
    return ", ".join([*parts, f"{progress.open:,} of {progress.counted:,} {progress.counts} open"])
