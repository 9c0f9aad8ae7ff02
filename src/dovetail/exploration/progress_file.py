"""How far a study is, for whoever watches its run: a file of its own, thinned so that it stays small."""

from __future__ import annotations

import time
from typing import Any

from dovetail.exploration.events import StudyProgress
from dovetail.exploration.folder import Folder
from dovetail.exploration.records import PROGRESS, DamagedError, fields, to_json

#: Reports that are saved; of more, each second goes.
MOST_REPORTS = 400
#: Seconds between two times the file is written.
WRITTEN_EACH_S = 2.0


class ProgressFile:
    """Reports from the start of a run on."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._history: list[dict[str, Any]] = []
        self._written_at = 0.0

    def note(self, progress: StudyProgress) -> None:
        """Adds a report, and writes the file now and then."""
        if len(self._history) >= MOST_REPORTS:
            # the first and the latest stay
            self._history = [*self._history[:-1:2], self._history[-1]]
        self._history.append(progress.as_json())
        if time.monotonic() - self._written_at >= WRITTEN_EACH_S:
            self.write()

    def write(self) -> None:
        """Writes what was reported, if anything was."""
        if self._history:
            self._folder.put(PROGRESS, to_json({"history": self._history}))
            self._written_at = time.monotonic()

    def read(self) -> list[dict[str, Any]]:
        """What another process reported; nothing where there is no such file."""
        try:
            return fields(self._folder.get(PROGRESS) or b"", history=list)["history"]
        except DamagedError:
            return []
