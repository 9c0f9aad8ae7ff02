"""What a study's answer is measured by, and how one more design is measured the same way: planned by the search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.exploration.best_plans import searched
from dovetail.exploration.free_plans import FreeStage, free_rows
from dovetail.exploration.objective import Objective
from dovetail.exploration.position import Position
from dovetail.exploration.regret import Optimum
from dovetail.exploration.resolved import ResolvedStudy
from dovetail.exploration.result import StudyResult
from dovetail.exploration.run_rows import Store, evaluated_rows, worst_ratios
from dovetail.hardware.design_space.expression import parse_expression

#: A position as it is changed, in the study or in one of its scenarios.
Changed = Callable[[Position], Position]

#: What the answer of a study with scenarios is measured by: one more than its worst regret.
WORST_RATIO = Objective(
    "worst_ratio", "worst ratio to a scenario's best", "x", "least", parse_expression("step_s", "worst_ratio", "number")
)


@dataclass(frozen=True)
class AskedStudy:
    """A study and its answer: every figure here is better when smaller."""

    result: StudyResult
    #: in the units of the answer; of a study with scenarios, in each of them
    studies: tuple[ResolvedStudy, ...]
    objectives: tuple[Objective, ...]
    #: the best figure of each scenario; of a study without them nothing
    optima: tuple[float, ...] = ()

    @staticmethod
    def of(result: StudyResult) -> AskedStudy:
        """That of a result."""
        study = result.answered
        if not study.scenarios:
            return AskedStudy(result, (study,), study.scored)
        optima = [Optimum.of(*each) for each in zip(study.scenarios, result.document["scenarios"], strict=True)]
        figures = tuple(optimum.figure for optimum in optima if optimum is not None)
        return AskedStudy(result, tuple(each.study for each in study.scenarios), (WORST_RATIO,), figures)

    @property
    def study(self) -> ResolvedStudy:
        """The study, as given."""
        return self.studies[0]

    @property
    def searches_per_design(self) -> int:
        """Plan searches that measure a design."""
        return len(self.studies) * len(self.study.jobs)

    def figures(self, point: Mapping[str, Any]) -> Floats:
        """Those of a point of the answer."""
        if self.optima:
            return np.array([1 + point["worst_regret"]])
        shown = [point["objectives"][each.name] for each in self.objectives]
        # what is shown of an objective is its figure, or one over it
        return np.array([each.shown(value) for each, value in zip(self.objectives, shown, strict=True)])

    def shown(self, figures: Floats) -> dict[str, float]:
        """Figures as a user sees them."""
        return {each.name: each.shown(float(value)) for each, value in zip(self.objectives, figures, strict=True)}

    def ratios(self, figures: Floats, others: Floats) -> dict[str, float]:
        """By how much the first are more than the others, as a part of these."""
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(figures == others, 0.0, figures / others - 1)
        return {each.name: float(part) for each, part in zip(self.objectives, parts, strict=True)}

    def evaluated(self, store: Store) -> tuple[Ints, Floats]:
        """Candidates of the run that have plans, and their figures."""
        return worst_ratios(self.study, store, self.optima) if self.optima else evaluated_rows(self.study, store)

    def planned(self, position: int, change: Changed, to_beat: Floats | None = None) -> Floats | None:
        """The figures of a position's only design after a change, with the best plans.

        None if no plan fits, or if none is better than figures to beat: of studies without scenarios.
        """
        figures: list[Floats] = []
        for study in self.studies:
            alone = replace(study, positions=(change(study.positions[position]),))
            found = _best_figures(alone, to_beat)
            if found is None:
                return None
            figures.append(found)
        if not self.optima:
            return figures[0]
        return np.max(np.stack(figures)[:, 0] / np.array(self.optima), keepdims=True)


def _best_figures(study: ResolvedStudy, to_beat: Floats | None) -> Floats | None:
    """The figures of the only design of a study with its best plans."""
    code, unknown = np.zeros(1, np.int64), np.zeros((1, len(study.jobs)))
    front = np.zeros((0, len(study.objectives))) if to_beat is None else to_beat[None]
    if study.mapping is None:
        (row,) = searched(study, code, unknown, front)
    else:
        (row,) = free_rows(study, code, unknown, front, FreeStage.FULL)
    return None if row.figures is None else np.array(row.figures)
