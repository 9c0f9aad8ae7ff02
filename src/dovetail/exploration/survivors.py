"""Candidates that a fidelity level leaves: a window of them in memory, all others in the parts of the run directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.errors import InputError
from dovetail.exploration.memory import InMemoryStore
from dovetail.exploration.part_of_store import PartOfStore
from dovetail.exploration.store import Part, RunStore

#: Candidates in memory at once: 16 MiB for one job. A whole number of batches, so that windows leave no odd ones.
WINDOW_ROWS = 2**20


class Survivors:
    """Candidates with their lower bounds in seconds, in the order of their parts.

    Up to a window of them stays in memory. Of more, a run directory has the only copy, and we read it back once.
    """

    def __init__(self, store: RunStore | InMemoryStore | PartOfStore, level: str, jobs: Sequence[str]) -> None:
        self._store = store
        self._level = level
        self._jobs = tuple(jobs)
        #: batches that left candidates, and those of them whose candidates are in memory
        self._numbers: list[int] = []
        self._held: dict[int, tuple[Ints, Floats]] = {}
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, part: Part) -> None:
        """Adds what a batch left."""
        codes, bounds_s = self._columns(part)
        if not len(codes):
            return
        self._rows += len(codes)
        self._numbers.append(part.number)
        if self._rows <= WINDOW_ROWS or not self._store.saves:
            self._held[part.number] = codes, bounds_s
        else:
            self._held.clear()

    def windows(self) -> Iterator[tuple[Ints, Floats]]:
        """All candidates, a window at a time: every window but the last is full."""
        codes, bounds_s = self._nothing
        for number in self._numbers:
            more_codes, more_s = self._of(number)
            codes, bounds_s = np.concatenate([codes, more_codes]), np.concatenate([bounds_s, more_s])
            while len(codes) >= WINDOW_ROWS:
                yield codes[:WINDOW_ROWS], bounds_s[:WINDOW_ROWS]
                codes, bounds_s = codes[WINDOW_ROWS:], bounds_s[WINDOW_ROWS:]
        if len(codes):
            yield codes, bounds_s

    def whole(self) -> tuple[Ints, Floats]:
        """All candidates at once, for levels that leave few."""
        parts = [self._nothing, *(self._of(number) for number in self._numbers)]
        return np.concatenate([codes for codes, _ in parts]), np.concatenate([bounds_s for _, bounds_s in parts])

    @property
    def _nothing(self) -> tuple[Ints, Floats]:
        return np.zeros(0, np.int64), np.zeros((0, len(self._jobs)))

    def _of(self, number: int) -> tuple[Ints, Floats]:
        if number in self._held:
            return self._held[number]
        part = self._store.read(self._level, number)
        if part is None:
            what = f"lost batch {number} of level {self._level} while the study ran"
            raise InputError("run directory", what, "run again with --resume: what is missing is computed again")
        return self._columns(part)

    def _columns(self, part: Part) -> tuple[Ints, Floats]:
        bounds = [np.asarray(part.columns[f"least_s.{job}"], np.float64) for job in self._jobs]
        return np.asarray(part.columns["code"], np.int64), np.stack(bounds, axis=1)
