"""A run that is not saved: the interface of a store, for small studies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.exploration.store import Part


class InMemoryStore:
    """A store that only remembers the result, in this process."""

    #: whether what was written can be read again
    saves = False

    def __init__(self) -> None:
        self.repairs: list[str] = []
        self._result: dict[str, Any] | None = None

    def read(self, level: str, number: int) -> Part | None:
        """Always None: nothing is saved from an earlier run."""
        del level, number

    def write(self, part: Part) -> None:
        """Does nothing: the driver has the part."""

    def note_time(self, level: str, number: int, seconds: float) -> None:
        """Does nothing: times are not saved."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """Remembers the result."""
        self._result = dict(result)

    def result(self) -> dict[str, Any] | None:
        """The result, once there is one."""
        return self._result

    def close(self) -> None:
        """Does nothing."""
