"""A run that is kept nowhere: what a store offers, for studies small enough to forget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.exploration.store import Part


class Memory:
    """Parts and result of a run in this process."""

    def __init__(self) -> None:
        self.repairs: list[str] = []
        self._result: dict[str, Any] | None = None

    def read(self, level: str, number: int) -> Part | None:
        """Nothing is left of an earlier run."""
        del level, number

    def write(self, part: Part) -> None:
        """The driver has it."""

    def note_time(self, level: str, number: int, seconds: float) -> None:
        """Nobody will ask."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """Keeps the result."""
        self._result = dict(result)

    def result(self) -> dict[str, Any] | None:
        """The result, once there is one."""
        return self._result

    def close(self) -> None:
        """Nothing is held."""
