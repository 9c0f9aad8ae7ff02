"""Where the batches of a study run: what an executor promises, and the one of this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

#: Turns a task into a result; a module-level function or an object that can be sent to another machine.
Work = Callable[[Any], Any]


class Executor(Protocol):
    """Runs tasks somewhere; each one submitted is taken back exactly once, whatever fails on the way."""

    @property
    def workers(self) -> int:
        """Tasks that run at the same time."""
        ...

    @property
    def in_flight(self) -> int:
        """Tasks that may be submitted and not yet taken back; it may change while a study runs."""
        ...

    def submit(self, number: int, task: Any) -> None:
        """Hands a task over, under a number that no other task under way has."""
        ...

    def take(self) -> tuple[int, Any]:
        """Waits for any task that finished; its number and result. What the work raised is raised here."""
        ...

    def close(self) -> None:
        """Gives up what is under way; a second call does nothing."""
        ...


class Inline:
    """Runs tasks in this process, one after the other, in the order they were submitted."""

    workers = 1
    in_flight = 1

    def __init__(self, work: Work) -> None:
        self._work = work
        self._waiting: deque[tuple[int, Any]] = deque()

    def submit(self, number: int, task: Any) -> None:
        """Keeps the task until it is taken."""
        assert all(other != number for other, _ in self._waiting), f"task {number} is under way already"
        self._waiting.append((number, task))

    def take(self) -> tuple[int, Any]:
        """Runs the oldest task; one that is interrupted or fails stays under way."""
        assert self._waiting, "nothing is under way"
        number, task = self._waiting[0]
        result = self._work(task)
        self._waiting.popleft()
        return number, result

    def close(self) -> None:
        """Forgets what was not taken."""
        self._waiting.clear()
