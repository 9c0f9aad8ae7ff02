"""A part of a run for one of several questions: its levels under names of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.exploration.memory import InMemoryStore
from dovetail.exploration.store import Part, RunStore


class PartOfStore:
    """The interface of a store over the levels whose names begin with a prefix; the result stays with who asked."""

    def __init__(self, store: RunStore | InMemoryStore, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    @property
    def saves(self) -> bool:
        """Whether what was written can be read again."""
        return self._store.saves

    def read(self, level: str, number: int) -> Part | None:
        """A finished batch of an earlier run."""
        part = self._store.read(f"{self._prefix}_{level}", number)
        return None if part is None else Part(level, part.number, part.columns, part.facts)

    def write(self, part: Part) -> None:
        """Saves a batch."""
        self._store.write(Part(f"{self._prefix}_{part.level}", part.number, part.columns, part.facts))

    def note_time(self, level: str, number: int, seconds: float) -> None:
        """Records how long something took."""
        self._store.note_time(f"{self._prefix}_{level}", number, seconds)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Does nothing: the run goes on with other questions."""
