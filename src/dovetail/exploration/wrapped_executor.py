"""An executor that runs its tasks on another one: for who changes what is submitted, or how long it is waited for."""

from __future__ import annotations

from typing import Any

from dovetail.exploration.executor import Executor


class WrappedExecutor:
    """Passes everything on."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def workers(self) -> int:
        """Tasks that run at the same time."""
        return self._executor.workers

    @property
    def in_flight(self) -> int:
        """How many tasks may be submitted and not yet returned."""
        return self._executor.in_flight

    def submit(self, number: int, task: Any) -> None:
        """Submits a task."""
        self._executor.submit(number, task)

    def take(self) -> tuple[int, Any]:
        """Waits for a task to finish."""
        return self._executor.take()

    def close(self) -> None:
        """Drops pending tasks."""
        self._executor.close()
