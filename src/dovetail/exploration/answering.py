"""How a study is answered: the questions that come first, and then its own."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from dovetail.digests import STUDY_PACKAGES, package_provenance
from dovetail.errors import InputError
from dovetail.exploration.drive import Drive
from dovetail.exploration.events import Listener
from dovetail.exploration.executor import Executor
from dovetail.exploration.free_drive import FreeDrive
from dovetail.exploration.memory import InMemoryStore
from dovetail.exploration.part_of_store import PartOfStore
from dovetail.exploration.question import AskedExecutor, StudyQuestion
from dovetail.exploration.regret import Optimum, Regret
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.result import space_words
from dovetail.exploration.sampled_drive import SampledDrive
from dovetail.exploration.store import RunStore


class Answering:
    """One run of a study."""

    def __init__(
        self, study: ResolvedStudy, store: RunStore | InMemoryStore, executor: Executor, listener: Listener | None
    ) -> None:
        self._study, self._store, self._executor, self._listener = study, store, executor, listener
        #: what ended the study early
        self.stopped: Literal["time_limit", "interrupt"] | None = None

    def result(self) -> dict[str, Any]:
        """Answers the study and saves the result."""
        if self._study.scenarios:
            return self._least_regret()
        question, told = StudyQuestion(), {}
        if self._study.relative_to is not None:
            units_s = self._units()
            if units_s is None:
                return self._nothing_found()
            question = StudyQuestion(units_s=units_s)
            names = [job.name for job in self._study.jobs]
            told = {"units_s": dict(zip(names, units_s, strict=True))}
        drive = self._drive(question)
        document = drive.result(told)
        self.stopped = drive.stopped
        return document

    def _drive(self, question: StudyQuestion, prefix: str | None = None) -> Drive:
        """What answers a question; its batches have names of their own if it is not the last."""
        study = question.of(self._study)
        store = self._store if prefix is None else PartOfStore(self._store, prefix)
        kind = SampledDrive if study.search.method != "exact" else Drive if study.mapping is None else FreeDrive
        return kind(study, store, AskedExecutor(self._executor, question), self._listener)

    def _units(self) -> tuple[float, ...] | None:
        """What step times are relative to, of each job; None if the study was stopped before that was known."""
        study = self._study
        if study.relative_to != "own":
            drive = self._drive(StudyQuestion(), "units")
            drive.compared()
            rows = [part for part in drive.references if _name(study, part.columns["code"]) == study.relative_to]
            return tuple(_least_s(rows, job.name, study) for job in study.jobs)
        units: list[float] = []
        for number, job in enumerate(study.jobs):
            drive = self._drive(StudyQuestion(job=number), f"own{number}")
            best = drive.result()["best"]
            self.stopped = drive.stopped
            if self.stopped is not None:
                return None
            if best is None:
                raise InputError(f"jobs.{job.name}", "fits on no design", "allow more memory, chips or kinds of plans")
            units.append(best["jobs"][job.name]["step_time_s"])
        return tuple(units)

    def _least_regret(self) -> dict[str, Any]:
        """The design whose worst regret over all scenarios is least."""
        study = self._study
        optima: list[Optimum] = []
        for number, scenario in enumerate(study.scenarios):
            drive = self._drive(StudyQuestion(scenario=number), f"best{number}")
            document = drive.result()
            self.stopped = drive.stopped
            if self.stopped is not None:
                return self._nothing_found()
            optimum = Optimum.of(scenario, document)
            if optimum is None:
                raise InputError(f"scenarios.{scenario.name}", "has no design that fits", "relax its limits")
            optima.append(optimum)
        regret = Regret(study, self._store, self._executor, optima)
        document = regret.result()
        self.stopped = regret.stopped
        if self.stopped is None:
            self._store.finish(document)
        return document

    def _nothing_found(self) -> dict[str, Any]:
        """What a study says that was stopped before its own question."""
        study = self._study
        answer: dict[str, Any] = {"best": None} if len(study.objectives) == 1 else {"front": []}
        bound = {"lower_bound": None} if len(study.objectives) == 1 else {}
        return {
            "study": study.name,
            **answer,
            "certificate": {"status": "feasible", **bound, "gap": None, "space": space_words(study)},
            "counts": {"designs": study.size, "searched": 0, "evaluated": 0},
            "provenance": package_provenance(STUDY_PACKAGES),
        }


def _name(study: ResolvedStudy, codes: Any) -> str:
    return study.located(int(np.asarray(codes)[0]))[0].name


def _least_s(rows: list[Any], job: str, study: ResolvedStudy) -> float:
    """The best step time of a job on a chip to compare with."""
    seconds = [float(np.asarray(part.columns[f"step_s.{job}"])[0]) for part in rows]
    found = [each for each in seconds if np.isfinite(each)]
    if not found:
        what = f"is {study.relative_to}, on which {job} does not fit"
        raise InputError("over_jobs.relative_to", what, "name a chip with more memory, or own")
    return min(found)
