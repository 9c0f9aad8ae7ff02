"""Studies: loaded from a file, run anywhere, interrupted and resumed at any time."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from dovetail.documents import read_document
from dovetail.exploration.answering import Answering
from dovetail.exploration.events import Listener
from dovetail.exploration.executor import Executor
from dovetail.exploration.executors import EXECUTORS
from dovetail.exploration.memory import InMemoryStore
from dovetail.exploration.question import QuestionWorker
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.resolving import study_of
from dovetail.exploration.result import StudyResult
from dovetail.exploration.samplers import require_sampler
from dovetail.exploration.store import RunStore


class Study(ResolvedStudy):
    """A study and how to run it."""

    @staticmethod
    def load(path: Path | str) -> Study:
        """The study a file describes."""
        path = Path(path)
        resolved = study_of(read_document(path), str(path), path.parent)
        return Study(**{field.name: getattr(resolved, field.name) for field in fields(resolved)})

    def run(
        self,
        where: str | Path | None = None,
        *,
        resume: bool = False,
        recompute: bool = False,
        executor: str | None = None,
        address: str | None = None,
        workers: int | None = None,
        listener: Listener | None = None,
        simulate_top: int | None = None,
    ) -> StudyResult:
        """The best design or the Pareto front, saved in a run directory if one is named.

        `resume` goes on with the run in the directory, if the same code, calibration, data and versions computed it;
        with `recompute`, what something else computed is discarded. `executor`, `address` and `workers` override the
        study's: they change only the run time. `simulate_top`
        overrides it too, but is part of the question: that many leading designs are simulated, and the result says
        which of them is fastest when simulated.
        """
        if simulate_top is not None:
            return self.simulating(simulate_top).run(
                where,
                resume=resume,
                recompute=recompute,
                executor=executor,
                address=address,
                workers=workers,
                listener=listener,
            )
        require_sampler(self.search.method)  # before there is a run directory to resume
        place, asked = where if where is not None else self.output, self.executor
        store = InMemoryStore()
        if place is not None:
            store = RunStore.open(place, self.document, resume=resume, recompute=recompute)
        try:
            start, result, stopped = time.monotonic(), store.result(), None
            if result is None:
                with _executor(
                    self, executor or asked.name, address or asked.address, workers or asked.workers
                ) as made:
                    answering = Answering(self, store, made, listener)
                    result = answering.result()
                    stopped = answering.stopped
            timing = {"seconds": time.monotonic() - start}
            where = None if place is None else str(place)
            return StudyResult(self, result, where, tuple(store.repairs), timing, stopped)
        finally:
            store.close()


@contextmanager
def _executor(study: ResolvedStudy, name: str, address: str, workers: int | None) -> Generator[Executor]:
    made = EXECUTORS[name](QuestionWorker(study), address, workers)
    try:
        yield made
    finally:
        made.close()
