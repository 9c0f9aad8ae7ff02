"""Lower bounds of the end of a step over all state shardings: gradient reduction, weight gathering, optimizer."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import TOLERANCE, Floats, numbers
from dovetail.plans.skeletons import AXIS_ORDERS, PlanSkeletons, shardings
from dovetail.plans.space import Space
from dovetail.step.formulas import UpdateRates, exposed, optimizer_seconds, overlap_budget
from dovetail.step.plan_tables import Tables
from dovetail.step.state_tables import StateSharding


class EndOfStepBounds:
    """The end of the step on the mean stage, of every skeleton and state; the slowest stage takes no less."""

    def __init__(self, tables: Tables, space: Space, skeletons: PlanSkeletons) -> None:
        cache: dict[tuple[int, ...], list[StateSharding]] = {}
        states = [_states(tables, space, skeletons, row, cache) for row in range(len(skeletons))]
        #: skeletons that have a state, and where their states begin
        self._rows = np.array([row for row, of_row in enumerate(states) if of_row], np.int64)
        lengths = np.array([len(states[row]) for row in numbers(self._rows)], np.int64)
        self._starts = np.cumsum(lengths) - lengths
        self._count = len(skeletons)
        keys = [key for of_row in states for key in of_row]
        rows, arrays = tables.states.rows(keys), tables.state_arrays()
        stages = np.array([key.stages for key in keys], np.int64)
        counts = (tables.partitions.block_counts + sum(tables.partitions.end_counts)) / stages[:, None]
        reduced, gathered, self._owned = (
            (part[rows] * counts).sum(axis=1) for part in (arrays.reduction_s, arrays.gathering_s, arrays.updated)
        )
        facts, staged = tables.facts, np.minimum(stages - 1, 1)
        self._whole_s = reduced + gathered
        # however much work could hide them
        self._seen_s = exposed(reduced, facts.hidden_reduction[staged], np.inf)
        self._seen_s += exposed(gathered, facts.hidden_gathering[staged], np.inf)
        budgets = np.array([_budget(skeletons, row) for row in numbers(self._rows)])
        #: work that can hide it, as a share of all micro-batches
        self._budget = np.repeat(budgets, lengths)

    def seconds(self, limit_s: float, update_s: Floats) -> Floats:
        """Chips × skeletons, of plans with steps below the limit; infinite where no state is allowed.

        A stage's work on a micro-batch, which is all that hides the end of the step, then takes less than its share of
        the limit. `update_s` is what a chip takes to update a parameter.
        """
        with np.errstate(invalid="ignore"):
            seen = np.fmax(self._seen_s, self._whole_s - self._budget * limit_s)
        bounds = np.full((len(update_s), self._count), np.inf)
        if len(self._rows):
            seconds = seen + optimizer_seconds(self._owned, UpdateRates(update_s[:, None]))
            bounds[:, self._rows] = np.minimum.reduceat(seconds, self._starts, axis=1) * (1 - TOLERANCE)
        return bounds


def _states(
    tables: Tables, space: Space, skeletons: PlanSkeletons, row: int, cache: dict[tuple[int, ...], list[StateSharding]]
) -> list[StateSharding]:
    key = (
        int(skeletons.degrees[row]),
        int(skeletons.replicas[row]),
        int(skeletons.stages[row]),
        int(skeletons.inside[row]),
    )
    if key not in cache:
        degrees, replicas, stages, inside = key
        tiers = [tier.size for tier in tables.setting.cluster.tiers]
        states = shardings(
            tables.setting.job, tables.setting.framework, space, tables.degrees[degrees], replicas, stages, tiers
        )
        cache[key] = [StateSharding(degrees, replicas, stages, AXIS_ORDERS[inside], *state) for state in states]
    return cache[key]


def _budget(skeletons: PlanSkeletons, row: int) -> float:
    """The overlap budget of a step whose every micro-batch takes an equal part of it."""
    stages, microbatches, chunks = (
        int(skeletons.stages[row]),
        int(skeletons.microbatches[row]),
        int(skeletons.chunks[row]),
    )
    return float(overlap_budget(1 / microbatches, stages, microbatches, chunks, 0.0))
