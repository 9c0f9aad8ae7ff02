"""When a search has to end: at a time limit, or when whoever started it says so."""

from __future__ import annotations

import time

from dovetail.compilation import compiling_s


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
            self._started = time.monotonic() - compiling_s()

    def end(self) -> None:
        """Ends the search whatever time is left."""
        self._ended = True

    @property
    def over(self) -> bool:
        """Whether the search has to end."""
        if self._ended or self.seconds is None or self._started is None:
            return self._ended
        return time.monotonic() - compiling_s() - self._started >= self.seconds
