"""What ends a study early: a time limit, Ctrl-C or SIGTERM, at a moment when nothing of its state is half changed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

from dovetail.exploration.executor import Executor
from dovetail.exploration.wrapped_executor import WrappedExecutor

#: What ended a study early.
Reason = Literal["time_limit", "interrupt"]

#: Seconds until we ask again: an exception raised while a kernel is compiled may be lost.
_AGAIN_S = 2.0


class StoppedError(BaseException):
    """Ends the batches under way; they are run again when the study is resumed."""


class Stop:
    """Whether a study has to end, and why.

    The state of a study changes between batches, so only waiting for a batch is interrupted; any other moment finds out
    by `asked`. Outside the main thread there are no signals: a time limit then ends a study after the batch under way.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self._ends_at = None if limit_s is None else time.monotonic() + limit_s
        self._reason: Reason | None = None
        self._raises = False

    @property
    def asked(self) -> Reason | None:
        """What the study has to end for; None as long as it may go on."""
        if self._reason is None and self._ends_at is not None and time.monotonic() >= self._ends_at:
            self._reason = "time_limit"
        return self._reason

    def interrupt(self) -> None:
        """Asks the study to end."""
        self._reason = self._reason or "interrupt"

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Inside, a stop raises an exception at once; whatever is raised after it was asked for is that too."""
        self._raises = True
        try:
            self._check()
            yield
        except Exception as error:
            if self._reason is None:
                raise
            raise StoppedError from error  # an exception inside a compiler comes out as another
        finally:
            self._raises = False

    @contextmanager
    def signals(self) -> Generator[None]:
        """Inside, Ctrl-C, SIGTERM and the end of the time stop the study; handlers of others stay as they are."""
        before = self._take_signals()
        if self._ends_at is not None and signal.SIGALRM in before:
            signal.setitimer(signal.ITIMER_REAL, max(self._ends_at - time.monotonic(), 1e-3), _AGAIN_S)
        try:
            yield
        finally:
            if signal.SIGALRM in before:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take_signals(self) -> dict[signal.Signals, Any]:
        """The signals that nobody else takes, each with its handler until now."""
        if threading.current_thread() is not threading.main_thread():
            return {}  # signals come to the main thread
        takes = {
            signal.SIGINT: (signal.default_int_handler, self._interrupted),
            signal.SIGTERM: (signal.SIG_DFL, self._interrupted),
            signal.SIGALRM: (signal.SIG_DFL, self._time),
        }
        free = {number: handler for number, (usual, handler) in takes.items() if signal.getsignal(number) == usual}
        return {number: signal.signal(number, handler) for number, handler in free.items()}

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        if self._reason == "interrupt":
            raise KeyboardInterrupt  # twice: leave at once
        self._reason = "interrupt"
        if signal.getsignal(signal.SIGALRM) == self._time:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
        self._time(0, None)

    def _time(self, _number: int, _frame: FrameType | None) -> None:
        if self._raises:
            self._check()

    def _check(self) -> None:
        if self.asked is not None:
            raise StoppedError


class StoppableExecutor(WrappedExecutor):
    """An executor whose tasks are left under way when the study has to end."""

    def __init__(self, executor: Executor, stop: Stop) -> None:
        super().__init__(executor)
        self._stop = stop

    def take(self) -> tuple[int, Any]:
        """Waits for a task to finish, or raises an exception if the study has to end."""
        with self._stop.waiting():
            return super().take()
