"""Studies: loaded from a file, run anywhere, interrupted and resumed at any time."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

from dovetail.documents import read_document
from dovetail.exploration.drive import Drive
from dovetail.exploration.events import Listener
from dovetail.exploration.executor import Executor
from dovetail.exploration.executors import EXECUTORS
from dovetail.exploration.fidelity import Worker
from dovetail.exploration.free_drive import FreeDrive
from dovetail.exploration.group_drive import GroupDrive
from dovetail.exploration.groups import groupable, too_many_to_profile
from dovetail.exploration.memory import InMemoryStore
from dovetail.exploration.resolved import ResolvedStudy, study_of
from dovetail.exploration.result import StudyResult
from dovetail.exploration.sampled_drive import SampledDrive
from dovetail.exploration.samplers import require_sampler
from dovetail.exploration.stopping import Stop
from dovetail.exploration.store import RunStore


class Study(ResolvedStudy):
    """A study and how to run it."""

    @staticmethod
    def load(path: Path | str) -> Study:
        """The study a file describes."""
        path = Path(path)
        resolved = study_of(read_document(path), str(path), path.parent)
        return Study(**{field.name: getattr(resolved, field.name) for field in fields(resolved)})

    def time_limited(self, seconds: float | None) -> Study:
        """The same study with another time limit, or with none."""
        return replace(self, search=self.search.model_copy(update={"time_limit_s": seconds}))

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

        A time limit, Ctrl-C or SIGTERM ends the run with what it has; `stopped` of the result then says which.
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
                stop = Stop(self.search.time_limit_s)
                with (
                    stop.signals(),
                    _executor(self, executor or asked.name, address or asked.address, workers or asked.workers) as made,
                ):
                    drive = _drive(self)(self, store, made, listener, stop)
                    result, stopped = drive.result(), drive.stopped
            timing = {"seconds": time.monotonic() - start}
            where = None if place is None else str(place)
            return StudyResult(self, result, where, tuple(store.repairs), timing, stopped)
        finally:
            store.close()


def _drive(study: ResolvedStudy) -> type[Drive]:
    if study.search.method != "exact":
        return SampledDrive
    if study.mapping is not None:
        return FreeDrive
    simulates = study.search.simulate_top is not None
    return GroupDrive if not simulates and groupable(study.space) and too_many_to_profile(study) else Drive


@contextmanager
def _executor(study: ResolvedStudy, name: str, address: str, workers: int | None) -> Generator[Executor]:
    made = EXECUTORS[name](Worker(study), address, workers)
    try:
        yield made
    finally:
        made.close()
