"""Where the batches of a study run: the executor protocol, and the executor of this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

#: Turns a task into a result; a module-level function or an object that can be sent to another machine.
Work = Callable[[Any], Any]


class Executor(Protocol):
    """Runs tasks somewhere; every submitted task is returned exactly once, whatever fails on the way."""

    @property
    def workers(self) -> int:
        """Tasks that run at the same time."""
        ...

    @property
    def in_flight(self) -> int:
        """How many tasks may be submitted and not yet returned; it may change while a study runs."""
        ...

    def submit(self, number: int, task: Any) -> None:
        """Submits a task under a number that no other pending task has."""
        ...

    def take(self) -> tuple[int, Any]:
        """Waits for a task to finish; returns its number and result, or raises what the work raised."""
        ...

    def close(self) -> None:
        """Drops pending tasks; a second call does nothing."""
        ...


class Inline:
    """Runs tasks in this process, one after the other, in the order they were submitted."""

    workers = 1
    in_flight = 1

    def __init__(self, work: Work) -> None:
        self._work = work
        self._waiting: deque[tuple[int, Any]] = deque()

    def submit(self, number: int, task: Any) -> None:
        """Queues the task until it is taken."""
        assert all(other != number for other, _ in self._waiting), f"task {number} is already pending"
        self._waiting.append((number, task))

    def take(self) -> tuple[int, Any]:
        """Runs the oldest task; an interrupted or failed one stays pending."""
        assert self._waiting, "no task is pending"
        number, task = self._waiting[0]
        result = self._work(task)
        self._waiting.popleft()
        return number, result

    def close(self) -> None:
        """Drops what was not taken."""
        self._waiting.clear()
