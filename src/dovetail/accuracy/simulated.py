"""Measured runs simulated: predictions of simulation and model compared, and where each is closer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from dovetail.accuracy.error_figures import Errors, errors_of, macro_average
from dovetail.accuracy.parameters import profiled_at
from dovetail.accuracy.predict import Prediction
from dovetail.accuracy.ranking import Ranking, rank
from dovetail.accuracy.rows import MeasuredRun
from dovetail.accuracy.scoreboard import NAMES, Key
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.simulation.long_steps import played
from dovetail.simulation.simulate import step_writer
from dovetail.step.evaluate import step_from

#: The tier with fully known configurations: elsewhere assumptions outweigh what simulation adds.
TIER = "A"
#: How many groups to list where simulation is closer, and where it is further off.
NAMED = 8
#: Smaller differences of error count as none: a twentieth of a percentage point.
DISTINCT = 0.0005


@frozen
class Simulated:
    """A run with the predictions of model and simulation."""

    model: Prediction
    simulation: Prediction


@frozen
class ErrorSummary:
    """Errors of one kind of prediction, and how it ranks plans."""

    step_time: Errors
    ranking: Ranking


@frozen
class Compared:
    """A set of runs as predicted by model and simulation."""

    model: ErrorSummary
    simulation: ErrorSummary
    ratio: float
    """simulated over modelled seconds, mean over runs"""

    @property
    def rows(self) -> int:
        """The number of runs."""
        return self.model.step_time.rows

    @property
    def difference(self) -> float:
        """Mean error of simulation minus that of the model: below 0 if simulation is closer."""
        return self.simulation.step_time.mape - self.model.step_time.mape

    @property
    def regret_difference(self) -> float | None:
        """Mean regret of simulation minus that of the model; None if there is nothing to rank."""
        ours, theirs = self.simulation.ranking.mean_regret, self.model.ranking.mean_regret
        return None if ours is None or theirs is None else ours - theirs


@frozen
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
        """Below 0 if simulation is closer."""
        return self.simulation_mape - self.model_mape


@frozen
class SimulatedScore:
    """Simulation against measured runs, and against the model's predictions of them."""

    all_runs: Compared
    model_macro: Errors
    macro: Errors
    """of simulation, mean over families"""
    families: Mapping[str, Compared]
    nearer: tuple[GroupDifference, ...]
    """groups that simulation predicts better, largest difference first"""
    further: tuple[GroupDifference, ...]
    """groups that it predicts worse, largest difference first"""


def simulated_step_s(run: MeasuredRun) -> float:
    """Seconds of a run's step, simulated with the shipped numbers."""
    task = run.task
    profiled = profiled_at(run, {})
    step = step_from(task.plan, profiled)
    _, timeline = played(step_writer(task.plan, task.job, profiled, step), step.pipeline)
    return timeline.seconds


def simulate_runs(predictions: Iterable[Prediction]) -> tuple[Simulated, ...]:
    """Simulates every predicted run, in order; memory and fit are still the model's."""
    return tuple(
        Simulated(each, replace(each, step_time_s=simulated_step_s(each.run), left_out_s=None)) for each in predictions
    )


def score_simulated(runs: Sequence[Simulated]) -> SimulatedScore:
    """Errors of simulation and model, over all runs, by family and by group."""
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


def _figures(predictions: Sequence[Prediction]) -> ErrorSummary:
    return ErrorSummary(errors_of(p.step_time_ratio for p in predictions), rank(predictions))


def _compared(runs: Sequence[Simulated]) -> Compared:
    ratio = fmean(r.simulation.step_time_s / r.model.step_time_s for r in runs)
    return Compared(_figures([r.model for r in runs]), _figures([r.simulation for r in runs]), ratio)


def _difference(names: tuple[str, ...], runs: Sequence[Simulated]) -> GroupDifference:
    family, chip, model = names
    compared = _compared(runs)
    errors = compared.model.step_time.mape, compared.simulation.step_time.mape
    return GroupDifference(family, chip, model, compared.rows, *errors, compared.ratio)
