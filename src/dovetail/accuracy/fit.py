"""Fitting the numbers of generations and frameworks to measured step times, all folds of a cross-validation at once.

A number's logarithm is its prior's, plus a part shared by all numbers of its name, plus a part of its group. The
prior's spreads pull the last two towards 0, so a group without runs gets the shared part. Reweighted least squares
minimise the mean over families of absolute log errors. Derivatives come from pricing each run with every number
moved in turn, which costs one evaluation: variants are an axis of the arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dovetail.accuracy.parameters import Parameter, Prior, parameters_of, priced
from dovetail.accuracy.rows import MeasuredRun
from dovetail.arrays import Floats
from dovetail.frozen import frozen

#: Errors below this count as their square: identical configurations differ by 5 % between measurements.
FLOOR = 0.03
#: The error of a family that weighs as much as a number one spread off its prior.
NOISE = 0.05
#: Steps of the minimisation; the objective changes by less than 0.01 points after the last.
ITERATIONS = 8
#: How far a logarithm is moved for a derivative, and at most in one step.
DELTA, STEP = 0.02, 0.35


@frozen
class Fit:
    """Fitted numbers of one fold and the posterior spread of each, as a logarithm."""

    values: Mapping[Parameter, float]
    spreads: Mapping[Parameter, float]


@frozen
class _Space:
    """Numbers as a vector: logarithms of `parameters`, linear in the unknowns."""

    parameters: tuple[Parameter, ...]
    start: Floats
    high: Floats
    #: parameters × unknowns
    mixing: Floats
    #: of every unknown, 1 / spread²
    stiffness: Floats

    def logs(self, unknowns: Floats) -> Floats:
        """Logarithms of the numbers, clipped to their upper limits."""
        return np.minimum(self.start + unknowns @ self.mixing.T, self.high)


def fit_families(
    runs: Sequence[MeasuredRun],
    priors: Mapping[Parameter, Prior],
    left_out: Sequence[str | None],
    iterations: int = ITERATIONS,
) -> list[Fit]:
    """One fit per family left out (None: no family is)."""
    weights = np.stack([_family_weights(runs, family) for family in left_out])
    return fit_folds(runs, [parameters_of(run) for run in runs], priors, weights, iterations)


def fit_folds(
    runs: Sequence[MeasuredRun],
    fields: Sequence[Mapping[str, Parameter]],
    priors: Mapping[Parameter, Prior],
    weights: Floats,
    iterations: int = ITERATIONS,
) -> list[Fit]:
    """One fit for every row of weights (folds × runs), each run priced with the numbers its `fields` name."""
    space = _space(tuple(sorted({p for run_fields in fields for p in run_fields.values()})), priors)
    unknowns = np.zeros((len(weights), space.mixing.shape[1]))
    spreads = np.zeros((len(weights), len(space.parameters)))
    for _ in range(iterations):
        errors, slopes = _linearised(runs, fields, space, space.logs(unknowns))
        for fold, weight in enumerate(weights):
            robust = weight / np.maximum(np.abs(errors[fold]), FLOOR)
            step, covariance = _newton_step(errors[fold], slopes[fold] @ space.mixing, robust, space, unknowns[fold])
            unknowns[fold] += step
            spreads[fold] = np.sqrt(np.diag(space.mixing @ covariance @ space.mixing.T))
    final = np.exp(space.logs(unknowns))
    return [Fit(_named(space, values), _named(space, sure)) for values, sure in zip(final, spreads, strict=True)]


def _named(space: _Space, values: Floats) -> dict[Parameter, float]:
    return dict(zip(space.parameters, (float(value) for value in values), strict=True))


def _space(parameters: tuple[Parameter, ...], priors: Mapping[Parameter, Prior]) -> _Space:
    names = sorted({p.name for p in parameters})
    mixing = np.zeros((len(parameters), len(names) + len(parameters)))
    stiffness = np.zeros(mixing.shape[1])
    for position, parameter in enumerate(parameters):
        prior = priors[parameter]
        shared = names.index(parameter.name)
        mixing[position, shared] = 1.0
        mixing[position, len(names) + position] = 1.0
        stiffness[shared] = prior.shared_spread**-2
        stiffness[len(names) + position] = prior.spread**-2
    start = np.log([priors[p].value for p in parameters])
    high = np.log([priors[p].high for p in parameters])
    return _Space(parameters, start, high, mixing, stiffness)


def _family_weights(runs: Sequence[MeasuredRun], left_out: str | None) -> Floats:
    """Every family counts alike; the one left out does not."""
    families = [run.family for run in runs]
    counts = {family: families.count(family) for family in set(families)}
    return np.asarray([0.0 if f == left_out else 1.0 / (NOISE * counts[f]) for f in families])


def _linearised(
    runs: Sequence[MeasuredRun], fields: Sequence[Mapping[str, Parameter]], space: _Space, logs: Floats
) -> tuple[Floats, Floats]:
    """Log errors (folds × runs) and their derivatives by the logarithms (folds × runs × parameters)."""
    folds = len(logs)
    errors = np.zeros((folds, len(runs)))
    slopes = np.zeros((folds, len(runs), len(space.parameters)))
    position = {parameter: index for index, parameter in enumerate(space.parameters)}
    for index, (run, run_fields) in enumerate(zip(runs, fields, strict=True)):
        depends = sorted(set(run_fields.values()))
        columns = [position[p] for p in depends]
        # folds × (unchanged, then each number moved down: moving up might exceed its limit)
        moved = np.repeat(logs[:, None, columns], len(columns) + 1, axis=1)
        moved[:, 1:] -= DELTA * np.eye(len(columns))
        values = {name: np.exp(moved[..., depends.index(p)]) for name, p in run_fields.items()}
        log_s = np.log(priced(run, values))
        errors[:, index] = log_s[:, 0] - np.log(run.step_time_s)
        slopes[:, index, columns] = (log_s[:, :1] - log_s[:, 1:]) / DELTA
    return errors, slopes


def _newton_step(
    errors: Floats, slopes: Floats, weights: Floats, space: _Space, unknowns: Floats
) -> tuple[Floats, Floats]:
    """The step of the unknowns, and their covariance."""
    matrix = slopes.T @ (weights[:, None] * slopes) + np.diag(space.stiffness)
    gradient = slopes.T @ (weights * errors) + space.stiffness * unknowns
    covariance = np.asarray(np.linalg.inv(matrix), np.float64)
    step = -covariance @ gradient
    return step * STEP / max(float(np.max(np.abs(step))), STEP), covariance
