"""What every variable of a design is worth: the design with a little more of it, planned anew by the search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from dovetail.arrays import Floats
from dovetail.explanation.asked_study import AskedStudy, Changed
from dovetail.explanation.design_changes import DesignChange, Step, alone, design_changes
from dovetail.explanation.limit_use import LimitUse, broken_limits
from dovetail.exploration.position import Position
from dovetail.exploration.result import SILICON
from dovetail.exploration.wafers import SILICON as WAFER_SILICON
from dovetail.frozen import frozen

#: Gains below this part of an objective are not worth a word.
WORTH = 0.001
#: Told how many searches are done, and how many there will be at most.
OnProgress = Callable[[int, int], None]


@frozen
class VariableGain:
    """A changed design with its own best plans."""

    name: str
    step: Step
    #: variable → its value before and after
    values: Mapping[str, tuple[float, float]]
    #: whether it is a design of the study's space
    in_space: bool
    #: None if no plan fits
    objectives: Mapping[str, float] | None
    #: objective → how much better, as a part: 0.1 is a tenth more work in the time, or for the joule
    gains: Mapping[str, float] | None
    #: estimate of the silicon → what the changed design has more of it
    more: Mapping[str, float]
    #: limits it breaks
    breaks: tuple[str, ...]

    @property
    def words(self) -> str:
        """The change in a few words."""
        return f"{self.name} {self.step}"

    @property
    def largest_gain(self) -> float:
        """In the objective that gains most."""
        return max(self.gains.values(), default=0.0) if self.gains else 0.0

    @property
    def as_json(self) -> dict[str, Any]:
        """Its fields."""
        values = {name: {"before": before, "after": after} for name, (before, after) in self.values.items()}
        return {**asdict(self), "values": values, "breaks": list(self.breaks)}


@frozen
class VariableGains:
    """Those of a design."""

    changes: tuple[VariableGain, ...]
    #: changes that were not looked at, for their searches were more than allowed
    left_out: tuple[str, ...]

    @property
    def as_json(self) -> dict[str, Any]:
        """Its fields."""
        return {"changes": [each.as_json for each in self.changes], "left_out": list(self.left_out)}


class Planner:
    """Plans designs around those of a study, at most so many searches in all, and remembers those of its space."""

    def __init__(
        self,
        asked: AskedStudy,
        evaluated: Mapping[int, Floats],
        most_searches: int,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.asked = asked
        #: candidate → its figures
        self.evaluated = dict(evaluated)
        self._most, self._on_progress = most_searches, on_progress
        self.searches = 0

    @property
    def may_search(self) -> bool:
        """Whether one more design may be planned."""
        return self.searches + self.asked.searches_per_design <= self._most

    def planned(self, position: int, change: Changed, to_beat: Floats | None = None) -> Floats | None:
        """The figures of a changed design, as `AskedStudy.planned` has them."""
        figures = self.asked.planned(position, change, to_beat)
        self.searches += self.asked.searches_per_design
        if self._on_progress is not None:
            self._on_progress(self.searches, self._most)
        return figures

    def gains(self, point: Mapping[str, Any]) -> VariableGains:
        """What the changes of a point gain over its figures."""
        changes, left_out = list[VariableGain](), list[str]()
        for change in design_changes(self.asked.study, self.asked.study.code_of(point)):
            gain = self._gain(point, change)
            if gain is None:
                left_out.append(change.words)
            else:
                changes.append(gain)
        return VariableGains(tuple(changes), tuple(left_out))

    def _gain(self, point: Mapping[str, Any], change: DesignChange) -> VariableGain | None:
        asked, study = self.asked, self.asked.study
        before, design = study.located(study.code_of(point))
        after = _changed(study.positions[change.position], design, change)
        breaks = broken_limits(study, after, after.space.designs([0]))
        after_figures = None if change.code is None else self.evaluated.get(change.code)
        if after_figures is None:
            if not self.may_search:
                return None
            changed = partial(_changed, design=design, change=change)
            after_figures = self.planned(change.position, changed)
            if change.code is not None and after_figures is not None and not breaks:
                self.evaluated[change.code] = after_figures
        return VariableGain(
            change.name,
            change.step,
            change.values,
            change.code is not None,
            None if after_figures is None else asked.shown(after_figures),
            None if after_figures is None else asked.ratios(asked.figures(point), after_figures),
            _more(replace(before, space=alone(before.space, design)), after),
            breaks,
        )


def _changed(position: Position, design: int, change: DesignChange) -> Position:
    """A position whose only design is one of its own, changed; other numbers and networks are those of positions."""
    return replace(position, space=change.of(position.space, design))


def _more(before: Position, after: Position) -> dict[str, float]:
    """What estimates of the changed design are more."""
    if before.space.formulas.technology is None:
        return {}
    here, there = before.space.designs([0]), after.space.designs([0])
    names = WAFER_SILICON if before.of_wafers else SILICON
    ends = {n: (before.space.values(n, here), after.space.values(n, there)) for n in names}
    return {name: float(np.ravel(new)[0] - np.ravel(old)[0]) for name, (old, new) in ends.items()}


def with_stops(limits: tuple[LimitUse, ...], gains: VariableGains) -> tuple[LimitUse, ...]:
    """Limits with the changes that would gain but break them."""
    worth = [each for each in gains.changes if each.largest_gain >= WORTH]
    return tuple(replace(use, stops=tuple(each.words for each in worth if use.name in each.breaks)) for use in limits)
