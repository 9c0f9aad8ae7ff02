"""When a search has to end: at a time limit, or when whoever started it says so."""

from __future__ import annotations

import time

from numba.core import event


class OutOfTimeError(Exception):
    """Ends a search in the middle; whatever it was at stays open."""


class TimeLimit:
    """Counts the seconds of a search once its tables stand; those in which kernels are compiled do not count."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._started: float | None = None
        self._ended = False

    def start(self) -> None:
        """Begins to count; a search that is a part of another goes on with what is left."""
        if self._started is None:
            self._started = time.monotonic() - _COMPILING.seconds

    def end(self) -> None:
        """Ends the search whatever time is left."""
        self._ended = True

    @property
    def over(self) -> bool:
        """Whether the search has to end."""
        if self._ended or self.seconds is None or self._started is None:
            return self._ended
        return time.monotonic() - _COMPILING.seconds - self._started >= self.seconds


class _Compiling(event.Listener):
    """The seconds in which kernels were compiled: the first run of all has to, the others read what it stored."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0
        self._began = 0.0

    def on_start(self, event: event.Event) -> None:  # noqa: ARG002
        """Kernels that call others compile these meanwhile."""
        if self._depth == 0:
            self._began = time.monotonic()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:  # noqa: ARG002
        """The outermost counts."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.monotonic() - self._began


_COMPILING = _Compiling()
event.register("numba:compile", _COMPILING)  # pyright: ignore[reportUnknownMemberType]
