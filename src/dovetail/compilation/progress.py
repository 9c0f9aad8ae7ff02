"""How far compiling is, for whoever waits for it, and the seconds it took."""

from __future__ import annotations

import time
from collections.abc import Callable

from dovetail.frozen import frozen


@frozen
class Compiling:
    """A kernel that is being compiled with those it calls; over when all are done."""

    name: str
    done: int
    total: int


class CompilationProgress:
    """What was compiled so far in this process; the compiler tells it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.listener: Callable[[Compiling], None] | None = None
        self._depth = 0
        self._began = 0.0
        self._now = Compiling("", 0, 0)

    def begin(self, name: str, total: int) -> None:
        """A kernel begins; those it calls do meanwhile."""
        if self._depth == 0:
            self._began = time.monotonic()
            self._now = Compiling(name, 0, total)
            self._tell()
        self._depth += 1

    def end(self, counts: bool) -> None:
        """A kernel, or what is none and does not count, is compiled; the seconds of the outermost are counted."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.monotonic() - self._began
            self._now = Compiling(self._now.name, self._now.total, self._now.total)
            self._tell()
        elif counts and self._now.done < self._now.total - 1:
            self._now = Compiling(self._now.name, self._now.done + 1, self._now.total)
            self._tell()

    def _tell(self) -> None:
        if self.listener is not None:
            self.listener(self._now)


PROGRESS = CompilationProgress()


def compiling_s() -> float:
    """Seconds in which kernels were compiled in this process: the first run of all has to, the others read them."""
    return PROGRESS.seconds


def watch(listener: Callable[[Compiling], None] | None) -> None:
    """Tells this listener of all that is compiled from now on."""
    PROGRESS.listener = listener
