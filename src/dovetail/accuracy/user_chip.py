"""Fits a user's chip to a handful of its step times, and checks whether that beats the shipped calibration.

Only the chip's efficiencies move; the overheads of frameworks stay as shipped. Each number starts from the chip's
current one, or from timings of single products and collectives, and is pulled back to it: a few runs cannot swing six
numbers. Every configuration is also predicted by a fit that has not seen it; that error is the one that counts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail.accuracy.error_figures import Errors, errors_of
from dovetail.accuracy.fit import NOISE, Fit, fit_folds
from dovetail.accuracy.parameters import FITTED_EFFICIENCIES, Parameter, Prior
from dovetail.accuracy.predict import Prediction, predict
from dovetail.accuracy.priors import shipped_priors
from dovetail.accuracy.rows import MeasuredRun, MeasuredRuns, Refusal
from dovetail.accuracy.user_timings import TimedNumbers, rounded
from dovetail.arrays import Floats
from dovetail.cost.calibration import PRECISION_ROWS, calibration
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware import Chip, Cluster, cluster
from dovetail.hardware.chip import EFFICIENCY_NAMES, ChipCalibration

#: Folds of the cross-validation: with fewer configurations each is left out in turn.
LEAVE_ONE_OUT, FOLDS = 20, 5
#: Timings of single kernels halve the spread of a prior; defaults of a kind of chip double it.
TIMED, ASSUMED = 0.5, 2.0
#: Runs that leave more than this share of the prior's spread say nothing about a number.
UNTOLD = 0.98
#: With a single chip nothing is shared: the shared part stays fixed.
_FIXED = 1e-4


@frozen
class Number:
    """One efficiency before and after the fit, and its basis."""

    before: float
    after: float
    rests_on: str
    measured: bool
    """whether the user's measurements determine it; others are not written"""
    spread: float | None = None
    """its relative uncertainty; None if no run was fitted"""


@frozen
class UserChipFit:
    """A chip fitted to a user's measurements, and the errors of step times; None if there are no runs."""

    chip: Chip
    cluster: Cluster | None
    """the largest cluster measured; None if only products were"""
    numbers: Mapping[str, Number]
    timed: tuple[TimedNumbers, ...]
    rows_read: int = 0
    refused: tuple[Refusal, ...] = ()
    before: Errors | None = None
    after: Errors | None = None
    cross_validated: Errors | None = None
    """None also if there is only one configuration"""
    configurations: int = 0
    folds: int = 0

    @property
    def worth_it(self) -> bool | None:
        """Whether the fit predicts unseen runs better than the shipped calibration; None if unknown."""
        if self.before is None or self.cross_validated is None:
            return None
        return self.cross_validated.mape < self.before.mape


def chip_to_calibrate(measured: MeasuredRuns, where: str) -> Chip:
    """The chip of the runs, which must all be on one chip."""
    chips = {run.task.cluster.chip.name: run.task.cluster.chip for run in measured.runs}
    if not chips:
        raise _no_runs(measured, where, "a chip")
    if len(chips) > 1:
        raise InputError(where, f"has runs of {', '.join(sorted(chips))}", "say with --chip which to calibrate")
    return next(iter(chips.values()))


def fit_timings(chip: Chip, timed: Sequence[TimedNumbers]) -> UserChipFit:
    """A chip fitted only to timings of products and collectives."""
    values = _timed_values(timed)
    numbers = {
        name: Number(_present(chip, name), values[name], _basis(name, timed), measured=True)
        for name in _ordered(values)
    }
    source = f"fitted on {' and '.join(t.basis for t in timed)}"
    fitted = with_values(chip, values, source)
    most = max((t.chips for t in timed), default=1)
    return UserChipFit(fitted, cluster(fitted, most) if most > 1 else None, numbers, tuple(timed))


def fit_user_chip(chip: Chip, measured: MeasuredRuns, where: str, timed: Sequence[TimedNumbers] = ()) -> UserChipFit:
    """A chip fitted to its runs, and to timings if there are any."""
    runs, before, refused = _usable(chip, measured, where)
    start = with_values(chip, _timed_values(timed), "")
    runs = _on(runs, start)
    fields = [_fields(run) for run in runs]
    priors = _priors(start, chip, fields, timed)
    members = _configurations(runs)
    folds = _folds(len(members))
    weights = _weights(members, folds, len(runs))
    fits = fit_folds(runs, fields, priors, weights)
    numbers = _numbers(chip, start, fits[0], priors, timed, _many(len(runs), "run"))
    fitted = with_values(chip, _measured_values(numbers), "")
    after = _errors(predict(_on(runs, fitted)))
    unseen = _cross_validated([[runs[i] for part in fold for i in members[part]] for fold in folds], start, fits[1:])
    basis = [_many(len(runs), "run"), *(t.basis for t in timed)]
    source = f"fitted on {', '.join(basis)}; step times {_accuracy(before, after, unseen)}"
    fitted = with_values(chip, _measured_values(numbers), source)
    largest = max((run.task.cluster for run in runs), key=lambda cluster_of_run: cluster_of_run.chips)
    return UserChipFit(
        chip=fitted,
        cluster=replace(largest, chip=fitted),
        numbers=numbers,
        timed=tuple(timed),
        rows_read=measured.rows_read,
        refused=refused,
        before=before,
        after=after,
        cross_validated=unseen,
        configurations=len(members),
        folds=len(folds),
    )


def network_of(chip: Chip, measured: MeasuredRuns) -> float | None:
    """Off-node bandwidth of one chip in the largest of the runs' clusters, if they have such a network."""
    clusters = [run.task.cluster for run in measured.runs if run.task.cluster.chip.name == chip.name]
    largest = max(clusters, key=lambda each: each.chips, default=None)
    if largest is None or len(largest.tiers) < 2:
        return None
    return largest.tiers[1].bytes_per_s / largest.tiers[1].oversubscription


def with_values(chip: Chip, values: Mapping[str, float], source: str) -> Chip:
    """The chip with these efficiencies in place of those it has."""
    calibrated = dict(chip.calibration.values) if chip.calibration is not None else {}
    calibrated |= values
    if not calibrated:
        return chip
    return replace(chip, calibration=ChipCalibration(tuple((n, calibrated[n]) for n in _ordered(calibrated)), source))


def _usable(
    chip: Chip, measured: MeasuredRuns, where: str
) -> tuple[tuple[MeasuredRun, ...], Errors, tuple[Refusal, ...]]:
    """The runs of a chip that can be predicted, their errors, and the refused rows."""
    runs = _on([run for run in measured.runs if run.task.cluster.chip.name == chip.name], chip)
    answers = predict(runs)
    refused = (*measured.refused, *(answer for answer in answers if isinstance(answer, Refusal)))
    runs = tuple(answer.run for answer in answers if isinstance(answer, Prediction))
    if not runs:
        raise _no_runs(replace(measured, refused=refused), where, chip.name)
    return runs, _errors(answers), refused


def _no_runs(measured: MeasuredRuns, where: str, chip: str) -> InputError:
    what = f"has no run of {chip} that can be predicted among {_many(measured.rows_read, 'row')}"
    if measured.refused:
        first = measured.refused[0]
        return InputError(where, what, f"the first refused is {first.id}, {first.reason}")
    others = sorted({run.task.cluster.chip.name for run in measured.runs})
    return InputError(where, what, f"its chips are {', '.join(others)}" if others else "add rows of tier A or B")


def _on(runs: Iterable[MeasuredRun], chip: Chip) -> tuple[MeasuredRun, ...]:
    """The same runs on another chip."""

    def moved(run: MeasuredRun) -> MeasuredRun:
        return replace(run, task=replace(run.task, cluster=replace(run.task.cluster, chip=chip)))

    return tuple(map(moved, runs))


def _fields(run: MeasuredRun) -> dict[str, Parameter]:
    """Field of the efficiencies → this chip's number for it."""
    chip = run.task.cluster.chip.name
    names = {name: name for name in FITTED_EFFICIENCIES}
    names |= {"matrix": f"matrix.{PRECISION_ROWS[run.task.job.precision]}", "matrix_half": "matrix.half"}
    return {field: Parameter(name, chip) for field, name in names.items()}


def _priors(
    start: Chip, chip: Chip, fields: Sequence[Mapping[str, Parameter]], timed: Sequence[TimedNumbers]
) -> dict[Parameter, Prior]:
    """The priors; what generations share is fitted already, so only each number's own spread is left."""
    spreads = {_kind(p.name): prior for p, prior in shipped_priors().items() if not prior.unmeasured}
    timed_values = _timed_values(timed)
    unsure = ASSUMED if calibration(replace(chip, calibration=None), "bf16").basis == "assumed" else 1.0
    priors: dict[Parameter, Prior] = {}
    for parameter in sorted({p for run_fields in fields for p in run_fields.values()}):
        usual = spreads[_kind(parameter.name)]
        spread = usual.spread * (TIMED if parameter.name in timed_values else unsure)
        priors[parameter] = Prior(_present(start, parameter.name), _FIXED, spread, usual.high, "")
    return priors


def _kind(name: str) -> str:
    """The part of a name that all precisions share."""
    return name.partition(".")[0]


def _present(chip: Chip, name: str) -> float:
    """The current number of the chip."""
    if name.startswith("matrix."):
        precision = next(p for p, row in PRECISION_ROWS.items() if row == name.removeprefix("matrix."))
        return float(calibration(chip, precision).efficiencies.matrix)
    return float(getattr(calibration(chip, "bf16").efficiencies, name))


def _configurations(runs: Sequence[MeasuredRun]) -> list[list[int]]:
    """Runs by configuration: repeated measurements count once, and are left out together."""
    by_configuration: dict[Hashable, list[int]] = {}
    for index, run in enumerate(runs):
        job, plan = run.task.job, run.task.plan
        key = (run.architecture, job.seq_len, job.global_batch, job.precision, run.task.cluster, run.framework, plan)
        by_configuration.setdefault(key, []).append(index)
    return list(by_configuration.values())


def _folds(configurations: int) -> list[list[int]]:
    """Configurations left out together."""
    if configurations < 2:
        return []
    count = configurations if configurations <= LEAVE_ONE_OUT else FOLDS
    return [list(range(first, configurations, count)) for first in range(count)]


def _weights(members: Sequence[Sequence[int]], folds: Sequence[Sequence[int]], runs: int) -> Floats:
    """Folds × runs; the first has them all."""
    whole = np.zeros(runs)
    for part in members:
        whole[list(part)] = 1.0 / (NOISE * len(part))
    rows = [whole]
    for fold in folds:
        row = whole.copy()
        row[[i for part in fold for i in members[part]]] = 0.0
        rows.append(row)
    return np.stack(rows)


def _numbers(
    chip: Chip, start: Chip, fit: Fit, priors: Mapping[Parameter, Prior], timed: Sequence[TimedNumbers], runs: str
) -> dict[str, Number]:
    values = _timed_values(timed)
    fitted = {parameter.name: parameter for parameter in fit.values}
    numbers: dict[str, Number] = {}
    for name in _ordered({*values, *fitted}):
        parameter = fitted.get(name)
        basis = [_basis(name, timed)] if name in values else []
        after, spread = _present(start, name), None
        if parameter is not None:
            spread = fit.spreads[parameter]
            if spread < UNTOLD * math.hypot(priors[parameter].spread, _FIXED):
                basis, after = [*basis, runs], rounded({name: fit.values[parameter]})[name]
        text = ", ".join(basis) or "as it was: no run tells"
        numbers[name] = Number(_present(chip, name), after, text, measured=bool(basis), spread=spread)
    return numbers


def _measured_values(numbers: Mapping[str, Number]) -> dict[str, float]:
    return {name: number.after for name, number in numbers.items() if number.measured}


def _cross_validated(parts: Sequence[Sequence[MeasuredRun]], start: Chip, fits: Sequence[Fit]) -> Errors | None:
    """Errors of each fold, by the fit that has not seen it."""
    answers: list[Prediction | Refusal] = []
    for runs, fit in zip(parts, fits, strict=True):
        values = rounded({parameter.name: value for parameter, value in fit.values.items()})
        answers += predict(_on(runs, with_values(start, values, "")))
    return _errors(answers) if answers else None


def _errors(answers: Iterable[Prediction | Refusal]) -> Errors:
    return errors_of(answer.step_time_ratio for answer in answers if isinstance(answer, Prediction))


def _accuracy(before: Errors, after: Errors, unseen: Errors | None) -> str:
    left_out = f", {unseen.mape:.1%} where left out" if unseen is not None else ""
    return f"{before.mape:.1%} off before, {after.mape:.1%} after{left_out}"


def _timed_values(timed: Iterable[TimedNumbers]) -> dict[str, float]:
    return {name: value for each in timed for name, value in each.values.items()}


def _basis(name: str, timed: Iterable[TimedNumbers]) -> str:
    return ", ".join(each.basis for each in timed if name in each.values)


def _ordered(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: [str(field) for field in EFFICIENCY_NAMES].index(name))


def _many(number: int, one: str) -> str:
    return f"{number:,} {one if number == 1 else f'{one}s'}"
