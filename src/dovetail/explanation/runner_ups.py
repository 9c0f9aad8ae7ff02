"""Runner-ups: the designs of a study that come next after one, what they lose, and in which variables they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from dovetail.arrays import Floats
from dovetail.explanation.asked_study import AskedStudy
from dovetail.explanation.design_changes import alone
from dovetail.explanation.variable_gains import Planner
from dovetail.exploration.memory import InMemoryStore
from dovetail.exploration.position import Position
from dovetail.exploration.result import variables_of
from dovetail.exploration.run_rows import Store, bounded_rows, evaluated_rows
from dovetail.exploration.scores import Scores
from dovetail.frozen import frozen

#: How many are told.
MOST = 5


@frozen
class RunnerUp:
    """A design that was evaluated and is not on the front."""

    #: as a point of the result names it
    numbers: Mapping[str, Any]
    objectives: Mapping[str, float]
    #: objective → how much more it takes, as a part of the best's; below 0 where it is better
    losses: Mapping[str, float]
    #: variable → what the best has, and what it has
    differs: Mapping[str, tuple[Any, Any]]

    @property
    def as_json(self) -> dict[str, Any]:
        """Its fields, with those that name the design among them."""
        fields = asdict(self)
        numbers: dict[str, Any] = fields.pop("numbers")
        differs = {name: {"best": best, "here": here} for name, (best, here) in self.differs.items()}
        return {**numbers, **fields, "differs": differs}


@frozen
class RunnerUps:
    """The next best designs of those evaluated, and what is known of all others."""

    designs: tuple[RunnerUp, ...]
    #: designs with plans, of those within limits
    evaluated: int
    #: no design that was not evaluated loses less, by its lower bound; None if that is not known
    others_lose: float | None

    @property
    def as_json(self) -> dict[str, Any]:
        """Its fields."""
        designs = [each.as_json for each in self.designs]
        return {"designs": designs, "evaluated": self.evaluated, "others_lose": self.others_lose}


def runner_ups(planner: Planner, store: Store, point: Mapping[str, Any], most: int = MOST) -> RunnerUps:
    """Those of a point: in the order of what they lose in the objective in which they lose most."""
    asked = planner.asked
    study, best = asked.study, asked.figures(point)
    on_front = [study.code_of(each) for each in asked.result.pareto_front()]
    others_lose = None
    if _is_bounded(asked, store):
        others_lose = max(_least_figure(planner, store, point, most) / float(best[0]) - 1, 0.0)
    losses = {
        code: float(np.max(np.where(figures == best, 1.0, figures / best)))
        for code, figures in planner.evaluated.items()
        if code not in on_front
    }
    nearest = sorted(losses, key=lambda code: (losses[code], code))[:most]
    own = study.code_of(point)
    told = tuple(_runner_up(asked, own, code, planner.evaluated[code], best) for code in nearest)
    return RunnerUps(told, len(planner.evaluated), others_lose)


def _runner_up(asked: AskedStudy, own: int, code: int, figures: Floats, best: Floats) -> RunnerUp:
    study = asked.study
    numbers = study.numbers_of(code)
    here, there = _described(asked, own), _described(asked, code)
    differs = {name: (here[name], there[name]) for name in here if name in there and here[name] != there[name]}
    return RunnerUp(numbers, asked.shown(figures), asked.ratios(figures, best), differs)


def _described(asked: AskedStudy, code: int) -> dict[str, Any]:
    """What a candidate may differ in: its hardware, its variables, and how many there are on which network."""
    position, design = asked.study.located(code)
    number = {"wafers" if position.of_wafers else "chips": position.count}
    network = {} if position.network is None else {"network": position.network}
    return {"hardware": position.name, **variables_of(position.space, design), **number, **network}


def _is_bounded(asked: AskedStudy, store: Store) -> bool:
    """Whether every design of the study has a bound of its one objective that the run tells of."""
    study = asked.study
    single = len(asked.objectives) == 1 and not asked.optima and study.mapping is None
    finished = study.search.method == "exact" and asked.result.stopped is None
    return single and finished and not isinstance(store, InMemoryStore)


def _least_figure(planner: Planner, store: Store, point: Mapping[str, Any], most: int) -> float:
    """The least that a design may have which was not evaluated, once the next best by their bounds are planned.

    What physics and profiles dropped is no better than the front it was compared with, which the warm start found;
    what was dropped because another design is no slower is no better than the best.
    """
    asked, study, counts = planner.asked, planner.asked.study, planner.asked.result.document["counts"]
    best = study.code_of(point)
    _, first = evaluated_rows(study, store, ("reference", "warm_start"))
    codes, means = bounded_rows(
        study, store, ("profile" if "profile" in counts else "physical", "warm_start", "search")
    )
    bounds = Scores.of(study, codes).points(means)[:, 0]
    left = float(study.to_beat(first)[:, 0].min(initial=np.inf))
    if study.compares_designs:
        left = min(left, float(asked.figures(point)[0]))
    for row in np.lexsort((codes, bounds)).tolist():
        code, bound = int(codes[row]), float(bounds[row])
        if code in planner.evaluated or not np.isfinite(bound):
            continue
        others = sorted(float(f[0]) for each, f in planner.evaluated.items() if each != best)
        last = others[most - 1] if len(others) >= most else np.inf
        if bound >= last or not planner.may_search:
            return min(left, bound)
        _, design = study.located(code)
        number = int(np.searchsorted(study.firsts, code, side="right")) - 1
        alone_here = partial(_alone, design=design)
        figures = planner.planned(number, alone_here, None if np.isinf(last) else np.array([last]))
        if figures is not None:
            planner.evaluated[code] = figures
        elif np.isfinite(last):
            # within the gap of a study its searches end early
            left = min(left, float(study.to_beat(np.array([last]))[0]))
    return left


def _alone(position: Position, design: int) -> Position:
    return replace(position, space=alone(position.space, design))
