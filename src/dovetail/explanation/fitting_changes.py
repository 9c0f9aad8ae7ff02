"""The least changes that make a given plan fit: all single ones and all pairs, the fastest of each set of kinds."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations, product
from typing import Any

import numpy as np

from dovetail.arrays import Bools, Floats, Ints
from dovetail.errors import InputError
from dovetail.explanation.changed_plan import changed_plan
from dovetail.explanation.plan_changes import KINDS, RECOMPUTE, Values
from dovetail.frozen import frozen
from dovetail.plans.partitions import is_free
from dovetail.plans.plan import Plan
from dovetail.plans.plan_file import Task
from dovetail.plans.rules import Level, broken
from dovetail.plans.runs import check_runs, rules_of
from dovetail.plans.space import Space
from dovetail.plans.write import plan_part
from dovetail.search.partition_setting import partition_setting
from dovetail.search.plan_rows import PlanRows, has_row, stage_plan
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import evaluate
from dovetail.step.evaluation import Evaluation
from dovetail.step.layer_tables import Setting

#: Plans whose pipelines are timed together, in the order of their lower bounds.
TIMED = 16

#: Rules that do not ask what is recomputed, and those that do.
_LEVELS: tuple[Level, ...] = ("degrees", "pipeline", "sharding")
_LAST_LEVELS: tuple[Level, ...] = ("recompute", "plan")

#: A change: its kind, and its values in a form that can be compared.
Change = tuple[str, Hashable]


@frozen
class FittingChange:
    """One or two changes of a plan that make it fit, and what it takes then."""

    kinds: tuple[str, ...]
    """what is changed, by the field it is called after"""
    changes: Values
    """all fields that differ, as a plan file has them; None where one falls away"""
    words: str
    evaluation: Evaluation

    def fields(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "changes": dict(self.changes),
            "words": self.words,
            "step_time_s": self.evaluation.step_time_s,
            "peak_bytes": self.evaluation.peak_bytes,
            "fit_probability": self.evaluation.fit_probability,
        }


def fitting_changes(task: Task) -> tuple[FittingChange, ...]:
    """The changes that make the plan fit, the fastest plan first; empty where it fits, or where no two of them help.

    Chips, global batch and all that is not changed stay. Pairs are of different kinds, and neither change of a pair is
    enough alone. Of each set of kinds the values are those of the fastest plan. A change counts where the plan then
    keeps the risk that searched plans keep; where none does, those count with which it is more likely to fit than not.
    """
    if evaluate(task.plan, task.job, task.cluster, task.framework, energy=False).fits:
        return ()
    chip = task.cluster.chip
    limits = (memory_limit(chip, task.framework), chip.usable_bytes)
    changed = _ChangedPlans(task, limits)
    for limit in limits:
        found = sorted(changed.fitting(limit), key=lambda each: each.evaluation.step_time_s)
        if found:
            return tuple(found)
    return ()


class _ChangedPlans:
    """All single changes and pairs of a plan, and the plans they make."""

    def __init__(self, task: Task, limits: Sequence[float]) -> None:
        self.task = task
        self.space = Space().resolve(task.job, task.cluster, task.framework)
        #: plans by the values of all fields but those of recompute; None where they contradict each other
        self._by_values: dict[Hashable, Plan | None] = {}
        self.changes: list[tuple[Change, ...]] = []
        self.values: list[Values] = []
        self.plans: list[Plan] = []
        for changes, values in (*self._listed(), *self._solved(limits)):
            plan = self._made(values)
            if plan is not None:
                self.changes.append(changes)
                self.values.append(values)
                self.plans.append(plan)

    @cached_property
    def _timed(self) -> _TimedPlans:
        return _TimedPlans(self.task, self.plans)

    def _listed(self) -> Iterator[tuple[tuple[Change, ...], Values]]:
        """Single changes, then pairs."""
        task, space, plan = self.task, self.space, self.task.plan
        placed = plan.layouts is not None or plan.wafer is not None or bool(task.cluster.defects)
        kinds = {name: kind for name, kind in KINDS.items() if not (placed and kind.moves)}
        singles = {name: list(kind.values(task, space, {})) for name, kind in kinds.items()}
        for name, of_kind in singles.items():
            yield from (((_change(name, values),), values) for values in of_kind)
        for first, second in combinations(kinds, 2):
            for values in singles[first]:
                for more in kinds[second].values(task, space, values):
                    yield (_change(first, values), _change(second, more)), {**values, **more}

    def _solved(self, limits: Sequence[float]) -> Iterator[tuple[tuple[Change, ...], Values]]:
        """The fastest of all partitions of the plan as it is, where the framework runs any."""
        task, plan = self.task, self.task.plan
        free = is_free(plan.pipeline_schedule, self.space.partition, plan.pipeline_parallel)
        if not free or not has_row(plan, task.cluster) or plan.recompute_share < 1:
            return
        for limit in limits:
            where = task.job, task.cluster, task.framework
            setting = Setting.of(*where, memory_limit_bytes=limit, offload=plan.offload)
            solved = partition_setting(setting, plan, {}, by_block=False)
            if solved is not None:
                values = {"layers_per_stage": solved.evaluation.plan.layers_per_stage}
                yield (_change("layers_per_stage", values),), values

    def _made(self, values: Values) -> Plan | None:
        """The plan with these values; None where it does not run whatever is recomputed."""
        others = {name: value for name, value in values.items() if name not in RECOMPUTE}
        key = tuple(others.items())
        if key not in self._by_values:
            self._by_values[key] = self._changed(others)
        plan = self._by_values[key]
        if plan is None or len(others) == len(values):
            return plan
        return replace(plan, **{name: value for name, value in values.items() if name in RECOMPUTE})

    def _changed(self, values: Values) -> Plan | None:
        """The same where nothing else is recomputed, and None as well where the framework has no such degrees."""
        job, cluster, framework = self.task.job, self.task.cluster, self.task.framework
        try:
            plan = changed_plan(self.task, values) if values else self.task.plan
            if any(broken(rules_of(framework), level, plan, job, framework) for level in _LEVELS):
                return None
            check_runs(plan, job, cluster)
        except InputError:
            return None
        return plan

    def fitting(self, limit: float) -> Iterator[FittingChange]:
        """Of each set of kinds the fastest plan within so many bytes that the framework runs."""
        within = np.flatnonzero(self._timed.peak_bytes <= limit)
        enough = {self.changes[i][0] for i in within.tolist() if len(self.changes[i]) == 1 and self._runs(i)}
        sets: dict[tuple[str, ...], list[int]] = {}
        for i in within.tolist():
            changes = self.changes[i]
            if len(changes) == 1 or enough.isdisjoint(changes):
                sets.setdefault(tuple(kind for kind, _ in changes), []).append(i)
        for kinds, rows in sets.items():
            best = self._fastest(np.array(rows, np.int64))
            if best is not None:
                yield self._described(kinds, best)

    def _fastest(self, rows: Ints) -> int | None:
        """The fastest of some plans that run: timed in the order of their bounds, until none can be faster."""
        rows = rows[np.argsort(self._timed.least_s[rows], kind="stable")]
        best, best_s = None, float("inf")
        for start in range(0, len(rows), TIMED):
            timed = rows[start : start + TIMED]
            if self._timed.least_s[timed[0]] >= best_s:
                break
            for row, seconds in zip(timed.tolist(), self._timed.seconds(timed).tolist(), strict=True):
                if seconds < best_s and self._runs(row):
                    best, best_s = row, seconds
        return best

    def _runs(self, row: int) -> bool:
        plan, job, cluster, framework = self.plans[row], self.task.job, self.task.cluster, self.task.framework
        # what most plans break is asked first: the rest takes longer
        if any(broken(rules_of(framework), level, plan, job, framework) for level in _LAST_LEVELS):
            return False
        try:
            check_runs(plan, job, cluster, framework)
        except InputError:
            return False
        return True

    def _described(self, kinds: tuple[str, ...], row: int) -> FittingChange:
        task, plan = self.task, self.plans[row]
        before, after = plan_part(task.plan), plan_part(plan)
        names = [name for name in (*after, *(before.keys() - after.keys())) if before.get(name) != after.get(name)]
        words = ", ".join(KINDS[kind].words(plan) for kind in kinds)
        evaluation = evaluate(plan, task.job, task.cluster, task.framework, energy=False)
        return FittingChange(kinds, {name: after.get(name) for name in names}, words, evaluation)


class _TimedPlans:
    """Bytes and seconds of plans: those that tables have together, the others one by one."""

    def __init__(self, task: Task, plans: Sequence[Plan]) -> None:
        self.peak_bytes, self.least_s = np.full(len(plans), np.inf), np.zeros(len(plans))
        #: tables of some plans, which they are, and where each of all plans is among them
        self._tables: list[tuple[PlanRows, Bools, Ints]] = []
        tabled = np.array([has_row(plan, task.cluster) for plan in plans], np.bool_)
        # tables have every policy for all their degrees; degrees that only the plan's own goes with have others
        degrees = [stage_plan(plan) for plan in plans]
        several = {d for d, plan in zip(degrees, plans, strict=True) if _policy(plan) != _policy(task.plan)}
        with_several = np.array([each in several for each in degrees], np.bool_)
        groups = [with_several & tabled, ~with_several & tabled]
        # what is offloaded is the same for all of a table
        offload = dict.fromkeys(plan.offload for plan in plans)
        for held, group in product(offload, groups):
            members = group & np.array([plan.offload == held for plan in plans], np.bool_)
            if members.any():
                setting = Setting.of(task.job, task.cluster, task.framework, offload=held)
                rows = PlanRows([plans[i] for i in np.flatnonzero(members).tolist()], setting)
                self.peak_bytes[members], self.least_s[members] = rows.peak_bytes, rows.least_s
                self._tables.append((rows, members, np.cumsum(members) - 1))
        for i in np.flatnonzero(~tabled).tolist():
            each = evaluate(plans[i], task.job, task.cluster, task.framework, energy=False)
            self.least_s[i] = each.step_time_s
            if each.stores:
                self.peak_bytes[i] = each.peak_bytes

    def seconds(self, which: Ints) -> Floats:
        """Exact seconds of some plans."""
        seconds = self.least_s[which]
        for rows, members, place in self._tables:
            of_these = members[which]
            if of_these.any():
                seconds[of_these] = rows.seconds(place[which[of_these]])
        return seconds


def _policy(plan: Plan) -> tuple[Any, ...]:
    return tuple(getattr(plan, name) for name in RECOMPUTE)


def _change(kind: str, values: Values) -> Change:
    return kind, tuple(values.items())
