"""The model's predictions of measured runs: the same plan on the same cluster, evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from dovetail.accuracy.left_out import left_out_values
from dovetail.accuracy.parameters import parameters_of, shipped_values, step_at
from dovetail.accuracy.rows import MeasuredRun, Refusal
from dovetail.cost.calibration import calibration
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.step.evaluate import evaluation_of
from dovetail.step.evaluation import Evaluation

#: Parts of a chip's memory that a kind of measurement does not include.
UNSEEN: Mapping[str, frozenset[str]] = {
    "allocated": frozenset({"allocator", "context"}),
    "reserved": frozenset({"context"}),
    "device": frozenset(),
}


@frozen
class Prediction:
    """A measured run and its prediction."""

    run: MeasuredRun
    step_time_s: float
    #: of the fullest stage, counted like the run's measurement; None if none was measured
    memory_bytes: float | None
    fits: bool
    #: by how much the fullest stage exceeds the chip's usable memory, as a share of it; 0 if it fits
    missing_share: float
    provenance: Mapping[str, str]
    #: at the numbers fitted without the run's family, if the shipped ones were fitted with it
    left_out_s: float | None = None

    @property
    def step_time_ratio(self) -> float:
        """Predicted over measured."""
        return self.step_time_s / self.run.step_time_s

    @property
    def memory_ratio(self) -> float | None:
        """Predicted over measured; None if none was measured."""
        if self.memory_bytes is None or self.run.peak_memory_bytes is None:
            return None
        return self.memory_bytes / self.run.peak_memory_bytes


def predict(runs: Iterable[MeasuredRun]) -> tuple[Prediction | Refusal, ...]:
    """One answer per run, in order; a refusal with the reason if a run cannot be evaluated."""
    return tuple(map(_answer, runs))


def left_out_predictions(answers: Iterable[Prediction | Refusal]) -> dict[str, Prediction]:
    """Run id → the prediction of the fit that did not see the run's family.

    A family the shipped numbers were not fitted on needs none: it was left out to begin with.
    """
    return {
        answer.run.id: replace(answer, step_time_s=answer.left_out_s)
        for answer in answers
        if isinstance(answer, Prediction) and answer.left_out_s is not None
    }


def prediction_of(run: MeasuredRun, evaluation: Evaluation) -> Prediction:
    """The prediction of a run from an evaluation of its plan, under any calibration."""
    return Prediction(
        run=run,
        step_time_s=evaluation.step_time_s,
        memory_bytes=None if run.memory_kind is None else fullest_bytes(evaluation, UNSEEN[run.memory_kind]),
        fits=evaluation.fits,
        missing_share=evaluation.missing_bytes / evaluation.usable_bytes,
        provenance=evaluation.provenance,
    )


def _answer(run: MeasuredRun) -> Prediction | Refusal:
    task = run.task
    others = left_out_values().get(run.family, {})
    # as shipped and without the run's family in one call: variants are an axis of the arrays
    shipped, numbers = shipped_values(run), parameters_of(run)
    both = {name: np.array([value, others.get(numbers[name], value)]) for name, value in shipped.items()}
    basis = calibration(task.cluster.chip, task.job.precision)
    try:
        step, facts = step_at(run, both)
        evaluation = evaluation_of(step, task.plan, task.job, task.cluster, facts, str(basis))
        if not np.isfinite(evaluation.step_time_s):
            raise InputError("step_time_s", "is predicted without bounds", "a rate of the chip or network is missing")
    except InputError as error:
        return Refusal(run.id, run.family, str(error))
    prediction = prediction_of(run, evaluation)
    return replace(prediction, left_out_s=float(np.ravel(step.seconds)[-1])) if others else prediction


def fullest_bytes(evaluation: Evaluation, unseen: frozenset[str], stage: int | None = None) -> float:
    """Bytes as the measurement counts, of a stage or of the fullest one, which may differ from the fullest in total."""
    stages = evaluation.memory_by_stage if stage is None else (evaluation.memory_by_stage[stage],)
    return max(sum(b for part, b in parts.items() if part not in unseen) for parts in stages)
