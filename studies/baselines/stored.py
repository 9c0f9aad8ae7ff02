"""Plans of others with what they hold in a store off the wafer, where there is one, and the largest micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from dovetail.errors import InputError
from dovetail.frameworks import Framework
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan import Plan
from dovetail.plans.wafer_part import STORE_CHOICES, WaferPart
from dovetail.step.evaluate import Evaluation, evaluate


def with_store(plan: Plan, job: Job, cluster: Cluster, framework: Framework) -> list[Evaluation]:
    """A plan with every choice of what the store holds, as it is where there is none.

    The choice that leaves least on dies goes first: where that does not fit no other does, and only it is evaluated.
    """
    if cluster.store is None:
        return [evaluate(plan, job, cluster, framework, energy=False)]
    evaluations: list[Evaluation] = []
    for store in reversed(STORE_CHOICES):
        # weights in a store are gathered by the layer at work
        zero_stage = 3 if "weights" in store else plan.zero_stage
        part = replace(plan.wafer or WaferPart(), store=store)
        stored = replace(plan, zero_stage=zero_stage, wafer=part)
        evaluations.append(evaluate(stored, job, cluster, framework, energy=False))
        if not evaluations[0].fits:
            break
    return evaluations


def fitting(batches: Sequence[int], of_batch: Callable[[int], list[Evaluation]]) -> list[Evaluation]:
    """What fits of the micro-batches tried: they are bisected, what fits one is taken to fit smaller ones."""
    plans: list[Evaluation] = []
    first, last = -1, len(batches)
    while last - first > 1:
        middle = (first + last) // 2
        try:
            fits = [each for each in of_batch(batches[middle]) if each.fits]
        except InputError:  # no plan has this micro-batch
            fits = []
        plans += fits
        first, last = (middle, last) if fits else (first, middle)
    return plans


def best_of(evaluations: Iterable[Evaluation]) -> Evaluation | None:
    """The fastest that fits; where none does, the one that lacks least."""
    return min(
        evaluations,
        key=lambda each: (not each.fits, each.step_time_s if each.fits else each.missing_bytes),
        default=None,
    )
