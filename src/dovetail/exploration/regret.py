"""Least worst regret: the design that loses least, in its worst scenario, against the best design of that scenario.

The regret of a design in a scenario is how much more its figure is than that of the scenario's best design, as a
share. A lower bound of the figure bounds the regret; so designs are searched in the order of the largest of these
bounds over all scenarios, until the best worst regret found is no more than what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.arrays import TOLERANCE, Floats, Ints
from dovetail.digests import STUDY_PACKAGES, package_provenance
from dovetail.exploration.executor import Executor
from dovetail.exploration.memory import InMemoryStore
from dovetail.exploration.ordered import run_ordered
from dovetail.exploration.part_of_store import PartOfStore
from dovetail.exploration.question import AskedExecutor, StudyQuestion
from dovetail.exploration.resolved import ResolvedStudy, Scenario
from dovetail.exploration.result import open_points, point_of, space_words
from dovetail.exploration.scores import Scores
from dovetail.exploration.stopping import Reason, Stop, StoppableExecutor, StoppedError
from dovetail.exploration.store import Part, RunStore
from dovetail.exploration.tasks import CandidateBatch, Range
from dovetail.frozen import frozen
from dovetail.search.certificate import status_of

#: Designs whose bounds are found together.
_RANGE = 2**20


@frozen
class Optimum:
    """The best of a scenario."""

    scenario: Scenario
    code: int
    #: what it has proven: no design of the scenario has less
    figure: float
    point: dict[str, Any]

    @staticmethod
    def of(scenario: Scenario, document: dict[str, Any]) -> Optimum | None:
        """That of a scenario's own result."""
        best, (objective,) = document["best"], scenario.study.scored
        if best is None:
            return None
        shown = best["objectives"][objective.name]
        figure = shown if objective.better == "least" else 1 / shown
        return Optimum(scenario, scenario.study.code_of(best), figure, best)


class Regret:
    """One run of the question."""

    def __init__(
        self,
        study: ResolvedStudy,
        store: RunStore | InMemoryStore,
        executor: Executor,
        optima: Sequence[Optimum],
        stop: Stop,
    ) -> None:
        self._study, self._store, self._optima = study, store, optima
        self._stop, self._executor = stop, StoppableExecutor(executor, stop)
        self.stopped: Reason | None = None
        #: the candidate with the least worst ratio so far, and that
        self._best, self._worst = -1, np.inf
        #: candidate → its ratio to the best in each scenario, and whether all of them were found
        self._known: dict[int, tuple[Floats, bool]] = {}
        #: candidate → the lower bound of its worst ratio
        self._bounds: dict[int, float] = {}
        self._rows: dict[tuple[int, int], Part] = {}

    def result(self) -> dict[str, Any]:
        """The result as JSON; of a run that was stopped, what is known by then."""
        left, counts = 1.0, dict[str, int]()
        try:
            for code in dict.fromkeys(optimum.code for optimum in self._optima):
                self._plan(code)
            codes, bounds = self._bounded(self._worst)
            counts["physical"] = len(codes)
            for row in np.lexsort((codes, bounds)).tolist():
                code, left = int(codes[row]), float(bounds[row])
                if left >= self._worst:
                    break
                if code not in self._known:
                    self._plan(code)
            left = np.inf
        except StoppedError:
            self.stopped = self._stop.asked
        counts["searched"] = len(self._known)
        return self._document(self._best, self._worst, min(left, *self._bounds.values(), self._worst), counts)

    def _bounded(self, worst: float) -> tuple[Ints, Floats]:
        """Candidates that physics does not rule out, and bounds of their worst ratios."""
        codes, bounds = np.zeros(0, np.int64), np.zeros(0)
        for number, (optimum, study) in enumerate(zip(self._optima, self._studies, strict=True)):
            beat = np.array([[optimum.figure * worst]])
            here, least = self._physical(number, study, beat)
            ratios = Scores.of(study, here).points(study.mean.of(least))[:, 0] / optimum.figure
            if number == 0:
                codes, bounds = here, ratios
                continue
            # a design must be within the limits of every scenario
            codes, first, second = np.intersect1d(codes, here, assume_unique=True, return_indices=True)
            bounds = np.maximum(bounds[first], ratios[second])
        return codes, bounds

    def _physical(self, number: int, study: ResolvedStudy, beat: Floats) -> tuple[Ints, Floats]:
        ranges = study.ranges(_RANGE)
        parts: list[Part] = []

        def task_of(k: int, _: object) -> Range | None:
            return Range(k, *ranges[k], beat) if k < len(ranges) else None

        self._run(number, "physical", task_of, parts)
        names = [f"least_s.{job.name}" for job in study.jobs]
        rows = [np.stack([np.asarray(part.columns[name]) for name in names], axis=1) for part in parts]
        found = [np.asarray(part.columns["code"], np.int64) for part in parts]
        return np.concatenate(found), np.concatenate(rows)

    def _plan(self, code: int) -> None:
        """Plans a candidate in every scenario, as long as it can still have the least worst ratio."""
        ratios, found, least = np.zeros(len(self._optima)), True, 0.0
        for number, (optimum, study) in enumerate(zip(self._optima, self._studies, strict=True)):
            if not study.keeps(np.array([code]))[0]:
                self._known[code], self._bounds[code] = (np.full(len(self._optima), np.inf), False), np.inf
                return
            beat = np.array([[optimum.figure * self._worst]]) if np.isfinite(self._worst) else np.zeros((0, 1))
            part = self._searched(number, study, code, beat)
            unproven = open_points(study, part)
            if bool(np.asarray(part.columns["evaluated"])[0]):
                ratios[number] = float(np.asarray(part.columns[f"figure.{study.objectives[0]}"])[0]) / optimum.figure
                self._rows[code, number] = part
            else:
                found = False
            least = max(least, float(unproven[0, 0]) / optimum.figure if len(unproven) else float(ratios[number]))
            if not found:
                break
        self._known[code], self._bounds[code] = (ratios, found), least
        if found and ratios.max() < self._worst:
            self._best, self._worst = code, float(ratios.max())

    def _searched(self, number: int, study: ResolvedStudy, code: int, beat: Floats) -> Part:
        parts: list[Part] = []
        unknown = np.zeros((1, len(study.jobs)))

        def task_of(k: int, _: object) -> CandidateBatch | None:
            return CandidateBatch("sample", code, np.array([code]), unknown, beat) if k == code else None

        self._run(number, "sample", task_of, parts, code)
        return parts[0]

    def _run(self, number: int, level: str, task_of: Any, parts: list[Part], first: int = 0) -> None:
        store = PartOfStore(self._store, f"regret{number}")
        run_ordered(
            AskedExecutor(self._executor, StudyQuestion(scenario=number)),
            task_of,
            None,
            lambda _state, _number, part: parts.append(part),
            self._study.window,
            finished=lambda k: store.read(level, k),
            first=first,
            on_result=lambda _number, part: store.write(part),
        )

    @property
    def _studies(self) -> list[ResolvedStudy]:
        return [optimum.scenario.study for optimum in self._optima]

    def _document(self, best: int, worst: float, lowest: float, counts: dict[str, int]) -> dict[str, Any]:
        study, found = self._study, best >= 0
        least = min(lowest, worst)
        answer: dict[str, Any] | None = None
        if found:
            answer = point_of(study, best, self._rows[best, 0])
            ratios, _ = self._known[best]
            answer["worst_regret"] = worst - 1
            answer["regrets"] = {
                each.name: float(ratio) - 1 for each, ratio in zip(study.scenarios, ratios.tolist(), strict=True)
            }
        return {
            "study": study.name,
            "best": answer,
            "scenarios": [
                {
                    "name": optimum.scenario.name,
                    "best": optimum.point,
                    "chosen": point_of(optimum.scenario.study, best, self._rows[best, n]) if found else None,
                }
                for n, optimum in enumerate(self._optima)
            ],
            "certificate": {
                "status": status_of(answered=found, proven=least >= worst * (1 - TOLERANCE)),
                "lower_bound": least - 1 if np.isfinite(least) else None,
                "gap": 1 - least / worst if found else None,
                "space": f"{space_words(study)}; worst regret over {len(study.scenarios)} scenarios",
            },
            "counts": {"designs": study.size, **counts, "evaluated": sum(known for _, known in self._known.values())},
            "provenance": package_provenance(STUDY_PACKAGES),
        }
