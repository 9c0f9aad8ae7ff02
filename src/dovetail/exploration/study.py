"""Studies for whoever runs them: loaded from a file, run anywhere, interrupted and resumed at any moment."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from dovetail.documents import read_document
from dovetail.exploration.drive import Drive
from dovetail.exploration.events import Listener
from dovetail.exploration.executor import Executor
from dovetail.exploration.executors import EXECUTORS
from dovetail.exploration.fidelity import Worker
from dovetail.exploration.memory import Memory
from dovetail.exploration.resolved import ResolvedStudy, study_of
from dovetail.exploration.result import StudyResult
from dovetail.exploration.store import Store


class Study(ResolvedStudy):
    """What a study asks, and how to get the answer."""

    @staticmethod
    def load(path: Path | str) -> Study:
        """The study a file describes."""
        path = Path(path)
        found = study_of(read_document(path), str(path), path.parent)
        return Study(**{field.name: getattr(found, field.name) for field in fields(found)})

    def run(
        self,
        where: str | Path | None = None,
        *,
        resume: bool = False,
        executor: str | None = None,
        address: str | None = None,
        workers: int | None = None,
        listener: Listener | None = None,
        simulate_top: int | None = None,
    ) -> StudyResult:
        """The best design or the front, kept in a run directory, or where none is named nowhere.

        `executor`, `address` and `workers` stand in the place of what the study says: they change nothing but the time.
        So does `simulate_top`, which is part of the question: so many leading designs are replayed, and the result says
        which of all is fastest when simulated.
        """
        if simulate_top is not None:
            return self.simulating(simulate_top).run(
                where, resume=resume, executor=executor, address=address, workers=workers, listener=listener
            )
        place, asked = where if where is not None else self.output, self.executor
        store = Memory() if place is None else Store.open(place, self.document, resume=resume)
        try:
            start, known = time.monotonic(), store.result()
            if known is None:
                with _executor(
                    self, executor or asked.name, address or asked.address, workers or asked.workers
                ) as made:
                    known = Drive(self, store, made, listener).result()
            timing = {"seconds": time.monotonic() - start}
            return StudyResult(self, known, None if place is None else str(place), tuple(store.repairs), timing)
        finally:
            store.close()


@contextmanager
def _executor(study: ResolvedStudy, name: str, address: str, workers: int | None) -> Generator[Executor]:
    made = EXECUTORS[name](Worker(study), address, workers)
    try:
        yield made
    finally:
        made.close()
