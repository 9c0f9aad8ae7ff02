"""Runs that fitted or ran out of memory against the model's P(fits), with the run's family left out of its errors."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np

from dovetail.accuracy.error_figures import Errors, errors_of
from dovetail.accuracy.predict import UNSEEN, fullest_bytes
from dovetail.accuracy.rows import MeasuredOutcome, Refusal
from dovetail.arrays import Floats
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.step.capacity import FIT_RISK
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation

#: Margins beyond this are of runs read wrongly, or easy: a fit of the error takes no more of them.
FURTHEST = 0.3
#: Scales of the error that a fit may find.
SCALES = (0.005, 0.5)
#: Edges of the bins of the reliability diagram.
BINS = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0)


@frozen
class PredictedOutcome:
    """An outcome and what the model says of it."""

    outcome: MeasuredOutcome
    probability: float
    """P(fits) of the framework as it ships"""
    margin: float
    """by how much more than predicted a run may take before the chip is full, as a part of that"""
    memory_ratio: float | None
    """predicted over measured peak, counted like the measurement; None if none was measured"""
    left_out: float = 0.5
    """P(fits) by the errors of the other families alone"""

    @property
    def fits(self) -> bool:
        """Whether it ran."""
        return self.outcome.outcome == "fits"


@frozen
class ReliabilityBin:
    """Runs whose P(fits) is within a bin."""

    low: float
    high: float
    rows: int
    mean_probability: float
    fits_share: float


@frozen
class WithinRisk:
    """Runs of plans that a search takes at its usual risk, and how many ran out of memory."""

    rows: int
    oom: int


@frozen
class FitScore:
    """How often P(fits) ≥ 0.5 was right, the run's family left out."""

    rows: int
    fits_called_fits: int
    fits_called_oom: int
    oom_called_fits: int
    oom_called_oom: int
    brier: float
    """mean squared error of P(fits)"""
    families: int
    macro_fits_called_oom: float | None
    """share of the runs that fitted, mean over families"""
    macro_oom_called_fits: float | None
    """share of the runs out of memory, mean over families"""
    memory: Mapping[str, Errors]
    """errors of peak memory by kind of measurement"""
    reliability: tuple[ReliabilityBin, ...]
    within_risk: WithinRisk
    error: float
    """scale of the logistic error over all families"""
    by_family: Mapping[str, Mapping[Literal["rows", "fits_called_oom", "oom_called_fits"], int]]


def predict_outcomes(outcomes: Iterable[MeasuredOutcome]) -> tuple[PredictedOutcome | Refusal, ...]:
    """One answer per outcome, in order; a refusal with the reason if its plan cannot be evaluated."""
    answers = [_predicted(outcome) for outcome in outcomes]
    predicted = [answer for answer in answers if isinstance(answer, PredictedOutcome)]
    without = {family: _fitted_without(predicted, family) for family in {p.outcome.family for p in predicted}}
    return tuple(
        _at(answer, without[answer.outcome.family]) if isinstance(answer, PredictedOutcome) else answer
        for answer in answers
    )


def score_outcomes(answers: Iterable[PredictedOutcome | Refusal]) -> FitScore | None:
    """The score; None where there is no outcome."""
    predicted = [answer for answer in answers if isinstance(answer, PredictedOutcome)]
    if not predicted:
        return None
    called = [(p.fits, p.left_out >= 0.5) for p in predicted]
    by_family = _by_family(predicted)
    return FitScore(
        rows=len(predicted),
        fits_called_fits=called.count((True, True)),
        fits_called_oom=called.count((True, False)),
        oom_called_fits=called.count((False, True)),
        oom_called_oom=called.count((False, False)),
        brier=float(np.mean([(p.left_out - p.fits) ** 2 for p in predicted])),
        families=len(by_family),
        macro_fits_called_oom=_macro(by_family.values(), of=True),
        macro_oom_called_fits=_macro(by_family.values(), of=False),
        memory=_memory(predicted),
        reliability=_reliability(predicted),
        within_risk=_within_risk(predicted),
        error=_fitted(predicted),
        by_family={
            name: {
                "rows": len(part),
                "fits_called_oom": sum(p.fits and p.left_out < 0.5 for p in part),
                "oom_called_fits": sum(not p.fits and p.left_out >= 0.5 for p in part),
            }
            for name, part in by_family.items()
        },
    )


def fit_fields(score: FitScore | None) -> dict[str, Any] | None:
    """The JSON fields others rely on."""
    return None if score is None else asdict(score)


def _predicted(outcome: MeasuredOutcome) -> PredictedOutcome | Refusal:
    task = outcome.task
    try:
        evaluation = evaluate(task.plan, task.job, task.cluster, task.framework, energy=False)
    except InputError as error:
        return Refusal(outcome.id, outcome.family, str(error))
    ratio = None
    if outcome.peak_memory_bytes is not None and outcome.memory_kind is not None:
        predicted = fullest_bytes(evaluation, UNSEEN[outcome.memory_kind], outcome.stage)
        ratio = predicted / outcome.peak_memory_bytes
    return PredictedOutcome(outcome, evaluation.fit_probability, _margin(evaluation), ratio)


def _margin(evaluation: Evaluation) -> float:
    """By how much more than predicted a run may take, as a part of that without context."""
    inside = evaluation.peak_bytes - evaluation.outside_bytes
    return evaluation.headroom_bytes / inside


def _fitted_without(predicted: Sequence[PredictedOutcome], family: str) -> float:
    others = [p for p in predicted if p.outcome.family != family]
    return _fitted(others or predicted)


def _fitted(predicted: Sequence[PredictedOutcome]) -> float:
    """The scale of the logistic error that makes the outcomes likeliest, families weighted alike."""
    rows = {name: len(part) for name, part in _by_family(predicted).items()}
    margins = np.clip([p.margin for p in predicted], -FURTHEST, FURTHEST)
    fits = np.array([float(p.fits) for p in predicted])
    weights = np.array([1 / rows[p.outcome.family] for p in predicted])
    scales = np.geomspace(*SCALES, 200)
    return float(min(scales, key=lambda scale: _loss(margins, fits, weights, scale)))


def _loss(margins: Floats, fits: Floats, weights: Floats, scale: float) -> float:
    signed = np.where(fits, 1.0, -1.0) * margins / scale
    return float(np.sum(weights * np.logaddexp(0.0, -signed)))


def _at(predicted: PredictedOutcome, scale: float) -> PredictedOutcome:
    probability = 0.5 + 0.5 * float(np.tanh(predicted.margin / scale / 2))
    return PredictedOutcome(
        predicted.outcome, predicted.probability, predicted.margin, predicted.memory_ratio, probability
    )


def _by_family(predicted: Iterable[PredictedOutcome]) -> dict[str, list[PredictedOutcome]]:
    parts: defaultdict[str, list[PredictedOutcome]] = defaultdict(list)
    for each in predicted:
        parts[each.outcome.family or "unnamed"].append(each)
    return dict(sorted(parts.items()))


def _macro(families: Iterable[Sequence[PredictedOutcome]], *, of: bool) -> float | None:
    """Share of the runs with an outcome that are called the other, mean over families."""
    shares = [
        np.mean([(p.left_out >= 0.5) != of for p in part if p.fits is of])
        for part in families
        if any(p.fits is of for p in part)
    ]
    return float(np.mean(shares)) if shares else None


def _memory(predicted: Iterable[PredictedOutcome]) -> dict[str, Errors]:
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for each in predicted:
        if each.memory_ratio is not None and each.outcome.memory_kind is not None:
            ratios[each.outcome.memory_kind].append(each.memory_ratio)
    return {kind: errors_of(of_kind) for kind, of_kind in sorted(ratios.items())}


def _within_risk(predicted: Sequence[PredictedOutcome]) -> WithinRisk:
    taken = [p for p in predicted if p.probability >= 1 - FIT_RISK]
    return WithinRisk(len(taken), sum(not p.fits for p in taken))


def _reliability(predicted: Sequence[PredictedOutcome]) -> tuple[ReliabilityBin, ...]:
    """How often runs fitted, by P(fits); families weighted alike within a bin would leave bins of one run."""
    bins: list[ReliabilityBin] = []
    for low, high in itertools.pairwise(BINS):
        part = [p for p in predicted if low <= p.left_out < high or (high == 1.0 and p.left_out == 1.0)]
        if part:
            mean, share = np.mean([p.left_out for p in part]), np.mean([p.fits for p in part])
            bins.append(ReliabilityBin(low, high, len(part), float(mean), float(share)))
    return tuple(bins)
