"""Runner-ups: the designs of a study that come next after one, what they lose, and in which variables they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.explanation.asked_study import AskedStudy
from dovetail.exploration.memory import InMemoryStore
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


def runner_ups(asked: AskedStudy, store: Store, point: Mapping[str, Any], most: int = MOST) -> RunnerUps:
    """Those of a point: in the order of what they lose in the objective in which they lose most."""
    study = asked.study
    codes, figures = asked.evaluated(store)
    best, own = asked.figures(point), study.code_of(point)
    on_front = [study.code_of(each) for each in asked.result.pareto_front()]
    others = np.nonzero(~np.isin(codes, on_front))[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        worst = np.where(figures[others] == best, 1.0, figures[others] / best).max(axis=1, initial=-np.inf)
    order = others[np.lexsort((codes[others], worst))][:most]
    told = tuple(_runner_up(asked, own, int(codes[row]), figures[row], best) for row in order.tolist())
    return RunnerUps(told, len(codes), _least_loss(asked, store, codes, float(best[0])))


def _runner_up(asked: AskedStudy, own: int, code: int, figures: Floats, best: Floats) -> RunnerUp:
    study = asked.study
    numbers = study.numbers_of(code)
    here, there = _described(asked, own), _described(asked, code)
    differs = {
        name: (here.get(name), there.get(name)) for name in {**here, **there} if here.get(name) != there.get(name)
    }
    return RunnerUp(numbers, asked.shown(figures), asked.ratios(figures, best), differs)


def _described(asked: AskedStudy, code: int) -> dict[str, Any]:
    """What a candidate may differ in: its variables, and what its numbers say besides the design."""
    study = asked.study
    position, design = study.located(code)
    numbers = {name: value for name, value in study.numbers_of(code).items() if name != "design"}
    return {**variables_of(position.space, design), **numbers}


def _least_loss(asked: AskedStudy, store: Store, evaluated: Ints, best: float) -> float | None:
    """What a design that was not evaluated loses at least.

    What physics and profiles dropped is no better than the front it was held against, which the warm start found.
    """
    study = asked.study
    plain = len(asked.objectives) == 1 and not asked.optima and study.mapping is None
    if isinstance(store, InMemoryStore) or not plain or study.search.method != "exact" or asked.result.stopped:
        return None
    _, first = evaluated_rows(study, store, ("reference", "warm_start"))
    codes, means = bounded_rows(study, store, ("profile", "warm_start", "search"))
    is_open = ~np.isin(codes, evaluated) & np.isfinite(means)
    bounds = Scores.of(study, codes[is_open]).points(means[is_open])[:, 0]
    dropped = study.to_beat(first)[:, 0]
    return max(float(min(bounds.min(initial=np.inf), dropped.min(initial=np.inf))) / best - 1, 0.0)
