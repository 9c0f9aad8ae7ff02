"""Ctrl-C during a search: the best plan so far is kept."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from dovetail.cli.exit_codes import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from dovetail.search.progress import SearchProgress

T = TypeVar("T")

_NOTHING_YET = "dovetail: was interrupted before a plan was found; let it run longer."
_AT_ONCE = "dovetail: was interrupted twice, so the best plan so far is not printed; interrupt it once."
_ENDING = "interrupted: the best plan so far follows (interrupt again to leave at once)"


class Interrupt:
    """Takes Ctrl-C while a command searches.

    With a plan found, the first asks the search to end; without one, and the second time, it ends the process. An
    exception would not do: raised while a kernel is compiled or called it may be lost, or come out as another.
    """

    def __init__(self) -> None:
        #: the search has to end
        self.asked = False
        #: there is something to print
        self.has_plan = False
        #: an exception will do: what is under way is not needed for the answer
        self.raises = False
        self._before: object = None

    def __enter__(self) -> Self:
        # a process whose parent ignores Ctrl-C ignores it too, and only the main thread can take it
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)  # pyright: ignore[reportArgumentType]

    def until_asked(self, items: Iterable[T]) -> Iterator[T]:
        """The items up to an interrupt."""
        for item in items:
            if self.asked:
                return
            yield item

    def unless(self, extra: Callable[[], T]) -> T | None:
        """What is worth making only as long as nobody interrupts; the answer is there without it."""
        if self.asked:
            return None
        self.raises = self.has_plan = True
        try:
            return extra()
        except BaseException:
            if self.asked:
                return None
            raise
        finally:
            self.raises = False

    def notice(self, progress: SearchProgress) -> bool:
        """Learns of a first plan; returns whether the search has to end."""
        self.has_plan = self.has_plan or progress.plan is not None
        return self.asked

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked or not self.has_plan:
            leave(_AT_ONCE if self.asked else _NOTHING_YET)
        self.asked = True
        _write(_ENDING)
        if self.raises:
            raise KeyboardInterrupt


def leave(sentence: str) -> None:
    """Ends the process at once, wherever it is."""
    _write(sentence)
    os._exit(EXIT_INTERRUPTED)


def _write(sentence: str) -> None:
    """Over a line of progress, where there is one; past all buffers, since a write may be what was interrupted."""
    # the cursor may be hidden while a bar of progress is shown
    start = "\r\x1b[K\x1b[?25h" if sys.stderr.isatty() else ""
    os.write(2, f"{start}{sentence}\n".encode())
