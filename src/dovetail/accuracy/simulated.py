"""Measured runs replayed: what simulation says of them beside the model, and where it is nearer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from dovetail.accuracy.error_figures import Errors, errors_of, macro_average
from dovetail.accuracy.parameters import profiled_at
from dovetail.accuracy.predict import Prediction
from dovetail.accuracy.ranking import Ranking, rank
from dovetail.accuracy.rows import MeasuredRun
from dovetail.accuracy.scoreboard import NAMES, Key
from dovetail.errors import InputError
from dovetail.simulation.simulate import tasks_of
from dovetail.simulation.task_graph import run as play
from dovetail.step.evaluate import step_from

#: The tier whose configurations are known in full: elsewhere what was assumed outweighs what simulation adds.
TIER = "A"
#: So many groups are named where simulation is nearer, and as many where it is further off.
NAMED = 8
#: A difference of error below this is none: a twentieth of a point.
DISTINCT = 0.0005


@dataclass(frozen=True, slots=True)
class Simulated:
    """A run as the model predicts it, and as simulation does."""

    model: Prediction
    simulation: Prediction


@dataclass(frozen=True, slots=True)
class Figures:
    """How far predictions of one kind are off, and how they order plans."""

    step_time: Errors
    ranking: Ranking


@dataclass(frozen=True, slots=True)
class Compared:
    """Some runs as the model and as simulation predict them."""

    model: Figures
    simulation: Figures
    ratio: float
    """simulated over modelled seconds, mean over runs"""

    @property
    def rows(self) -> int:
        """How many runs."""
        return self.model.step_time.rows

    @property
    def difference(self) -> float:
        """Mean error of simulation less that of the model: below 0 where simulation is nearer."""
        return self.simulation.step_time.mape - self.model.step_time.mape

    @property
    def regret_difference(self) -> float | None:
        """Mean regret of simulation less that of the model; None where there is nothing to rank."""
        ours, theirs = self.simulation.ranking.mean_regret, self.model.ranking.mean_regret
        return None if ours is None or theirs is None else ours - theirs


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """Runs of one model on one chip from one family, as both predict them."""

    family: str
    chip: str
    model: str
    rows: int
    model_mape: float
    simulation_mape: float
    ratio: float

    @property
    def difference(self) -> float:
        """Below 0 where simulation is nearer."""
        return self.simulation_mape - self.model_mape


@dataclass(frozen=True, slots=True)
class SimulatedScore:
    """Simulation against measured runs, and against what the model says of the same runs."""

    all_runs: Compared
    model_macro: Errors
    macro: Errors
    """of simulation, mean over families"""
    families: Mapping[str, Compared]
    nearer: tuple[GroupDifference, ...]
    """groups that simulation predicts better, most so first"""
    further: tuple[GroupDifference, ...]
    """groups that it predicts worse, most so first"""


def simulated_step_s(run: MeasuredRun) -> float:
    """Seconds of a run's step, replayed at the shipped numbers."""
    task = run.task
    profiled = profiled_at(run, {})
    return play(tasks_of(task.plan, task.job, profiled, step_from(task.plan, profiled)).graph).seconds


def simulate_runs(predictions: Iterable[Prediction]) -> tuple[Simulated, ...]:
    """Every predicted run replayed, in their order; memory and fit stay the model's."""
    return tuple(
        Simulated(each, replace(each, step_time_s=simulated_step_s(each.run), left_out_s=None)) for each in predictions
    )


def score_simulated(runs: Sequence[Simulated]) -> SimulatedScore:
    """How far simulation is off beside the model, over all runs, by family and by group."""
    if not runs:
        raise InputError("runs", f"none of tier {TIER} can be predicted", "only those of this tier are simulated")
    families = {name: _compared(part) for (name,), part in _parts(runs, "family")}
    groups = [_difference(name, part) for name, part in _parts(runs, "family", "chip", "model")]
    groups.sort(key=lambda group: group.difference)
    return SimulatedScore(
        all_runs=_compared(runs),
        model_macro=macro_average([each.model.step_time for each in families.values()]),
        macro=macro_average([each.simulation.step_time for each in families.values()]),
        families=families,
        nearer=tuple(g for g in groups[:NAMED] if g.difference < -DISTINCT),
        further=tuple(g for g in reversed(groups[-NAMED:]) if g.difference > DISTINCT),
    )


def simulated_fields(score: SimulatedScore) -> dict[str, Any]:
    """The JSON fields others rely on; ratios are fractions."""
    return {
        "tier": TIER,
        "rows": score.all_runs.rows,
        "macro": {"families": len(score.families), **asdict(score.macro)},
        **_compared_fields(score.all_runs),
        "model": {
            "macro": {"families": len(score.families), **asdict(score.model_macro)},
            **asdict(score.all_runs.model),
        },
        "by_family": {
            name: {"rows": each.rows, **_compared_fields(each), "model": asdict(each.model)}
            for name, each in score.families.items()
        },
        "nearer": [_group_fields(group) for group in score.nearer],
        "further": [_group_fields(group) for group in score.further],
    }


def _compared_fields(each: Compared) -> dict[str, Any]:
    differences = {"mape": each.difference, "mean_regret": each.regret_difference}
    return {**asdict(each.simulation), "ratio": each.ratio, "difference": differences}


def _group_fields(group: GroupDifference) -> dict[str, Any]:
    return {**asdict(group), "difference": group.difference}


def _parts(runs: Iterable[Simulated], *keys: Key) -> list[tuple[tuple[str, ...], list[Simulated]]]:
    """Runs by names, in the order of these."""
    parts: defaultdict[tuple[str, ...], list[Simulated]] = defaultdict(list)
    for each in runs:
        parts[tuple(NAMES[key](each.model.run) for key in keys)].append(each)
    return sorted(parts.items())


def _figures(predictions: Sequence[Prediction]) -> Figures:
    return Figures(errors_of(p.step_time_ratio for p in predictions), rank(predictions))


def _compared(runs: Sequence[Simulated]) -> Compared:
    ratio = fmean(r.simulation.step_time_s / r.model.step_time_s for r in runs)
    return Compared(_figures([r.model for r in runs]), _figures([r.simulation for r in runs]), ratio)


def _difference(names: tuple[str, ...], runs: Sequence[Simulated]) -> GroupDifference:
    family, chip, model = names
    found = _compared(runs)
    errors = found.model.step_time.mape, found.simulation.step_time.mape
    return GroupDifference(family, chip, model, found.rows, *errors, found.ratio)
