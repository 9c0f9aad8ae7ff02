"""Progress reports of a study's driver: how far it is, how good the best is, and how fast designs become fewer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dovetail.exploration.events import LevelRate, Listener, StudyProgress
from dovetail.exploration.pareto_front import ParetoFront
from dovetail.exploration.store import RunStore

if TYPE_CHECKING:
    from dovetail.exploration.drive import Drive


class DriveProgress:
    """Reports to a listener and to the run directory."""

    def __init__(self, listener: Listener | None) -> None:
        self._listener, self._rate, self._start_s = listener, LevelRate(), time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the study began."""
        return time.monotonic() - self._start_s

    def report(self, drive: Drive, level: str, front: ParetoFront, done: int, total: int | None) -> None:
        """Reports what is known after a number of batches of a level."""
        progress = self._after(drive, level, front, done, total)
        if isinstance(drive.store, RunStore):
            drive.store.progress.note(progress)
        if self._listener is not None:
            self._listener(progress)

    def _after(self, drive: Drive, level: str, front: ParetoFront, done: int, total: int | None) -> StudyProgress:
        objective, *others = drive.study.scored
        best = float(front.points.min()) if not others and len(front) else None
        bound = None if best is None or drive.bound is None else min(drive.bound, best)
        left = drive.study.size - sum(drive.pruned.values()) if drive.left is None else drive.left
        elapsed_s = self.elapsed_s
        rate = self._rate.per_second(level, left, elapsed_s)
        return StudyProgress(
            level=level,
            counted=drive.counted,
            total=drive.study.size,
            pruned=dict(drive.pruned),
            evaluated=drive.counts["evaluated"],
            incumbent=None if best is None else objective.shown(best),
            objective=objective.title,
            unit=objective.unit,
            bound=None if bound is None else objective.shown(bound),
            gap=None if bound is None or best is None else 1 - bound / best,
            front=len(front),
            batches=done,
            batches_total=total,
            workers=drive.executor.workers,
            elapsed_s=elapsed_s,
            eta_s=elapsed_s / done * (total - done) if total else left / rate if rate else None,
            left=left,
            rate_per_s=rate,
        )
