"""Memory that stages lend each other on a wafer: who holds how much, and the seconds that takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.arrays import Floats
from dovetail.cost.calibration import Efficiencies
from dovetail.cost.units import way_arrays
from dovetail.hardware import Cluster
from dovetail.plans.plan import Plan
from dovetail.plans.stage_tiles import handover
from dovetail.plans.wafer_part import Loan
from dovetail.step.times import way_seconds


def loans_of(plan: Plan) -> tuple[Loan, ...]:
    """The loans of a plan."""
    return () if plan.wafer is None else plan.wafer.loans


def moved_bytes(plan: Plan, held_bytes: Floats) -> list[float]:
    """Of every loan, what each die of its stage does not hold: in all no more than it would have held."""
    left = held_bytes.astype(np.float64)
    moved: list[float] = []
    for loan in loans_of(plan):
        moved.append(min(loan.bytes, float(left[loan.stage])))
        left[loan.stage] -= moved[-1]
    return moved


def lent_bytes(plan: Plan, held_bytes: Floats) -> Floats:
    """Bytes that each die of a stage holds for other stages, less those that others hold for it."""
    added = np.zeros(plan.pipeline_parallel)
    for loan, moved in zip(loans_of(plan), moved_bytes(plan, held_bytes), strict=True):
        added[loan.stage] -= moved
        added[loan.lender] += moved
    return added


def lent_of_microbatch(plan: Plan, saved_bytes: Floats, held_bytes: Floats) -> tuple[tuple[int, int, float], ...]:
    """Stage, lender, and what each die of the stage lends of a micro-batch: the same part as of all it holds."""
    return tuple(
        (loan.stage, loan.lender, moved / float(held_bytes[loan.stage]) * float(saved_bytes[loan.stage]))
        for loan, moved in zip(loans_of(plan), moved_bytes(plan, held_bytes), strict=True)
        if moved > 0
    )


def loan_seconds(
    plan: Plan, cluster: Cluster, efficiencies: Efficiencies, lent: Sequence[tuple[int, int, float]]
) -> Floats:
    """By stage: what fetching its part of a micro-batch's activations takes, while the next part is sent away."""
    seconds = np.zeros(plan.pipeline_parallel)
    along = way_arrays(cluster, efficiencies)
    for stage, lender, sent in lent:
        seconds[stage] += float(way_seconds(handover(plan, cluster, stage, lender), np.asarray(sent), along))
    return seconds
