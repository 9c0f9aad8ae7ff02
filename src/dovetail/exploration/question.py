"""Studies that follow from a study, for its own answer: one job alone, other units, another scenario."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dovetail.exploration.executor import Executor
from dovetail.exploration.fidelity import Worker
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.store import Part
from dovetail.exploration.wrapped_executor import WrappedExecutor
from dovetail.frozen import frozen


@frozen
class StudyQuestion:
    """What of a study is asked: a scenario by its number, a job by its number, units of its jobs."""

    scenario: int | None = None
    job: int | None = None
    units_s: tuple[float, ...] | None = None

    def of(self, study: ResolvedStudy) -> ResolvedStudy:
        """The study that answers it."""
        if self.scenario is not None:
            study = study.scenarios[self.scenario].study
        if self.units_s is not None:
            study = study.in_units(self.units_s)
        return study if self.job is None else study.of_job(self.job)


@frozen
class AskedTask:
    """A task of a question."""

    question: StudyQuestion
    task: Any


class QuestionWorker:
    """Runs tasks of a study and of those that follow from it."""

    def __init__(self, study: ResolvedStudy, computed_by: Mapping[str, str] | None = None) -> None:
        self._study, self._computed_by = study, computed_by
        self._of = lru_cache(maxsize=None)(self._new_worker)

    def __getstate__(self) -> tuple[ResolvedStudy, Mapping[str, str] | None]:
        return self._study, self._of(StudyQuestion()).computed_by

    def __setstate__(self, state: tuple[ResolvedStudy, Mapping[str, str] | None]) -> None:
        self.__init__(*state)

    def __call__(self, asked: Any) -> Part:
        """Runs a batch."""
        if not isinstance(asked, AskedTask):
            return self._of(StudyQuestion())(asked)
        return self._of(asked.question)(asked.task)

    def _new_worker(self, question: StudyQuestion) -> Worker:
        return Worker(question.of(self._study), self._computed_by)


class AskedExecutor(WrappedExecutor):
    """An executor whose tasks are of one question."""

    def __init__(self, executor: Executor, question: StudyQuestion) -> None:
        super().__init__(executor)
        self._question = question

    def submit(self, number: int, task: Any) -> None:
        """Submits a task."""
        super().submit(number, AskedTask(self._question, task))

    def close(self) -> None:
        """Leaves the executor open for other questions."""
