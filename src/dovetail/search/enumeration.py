"""The plans of a space as rows of tables: stage degrees, policies, shardings and partitions of skeletons."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dovetail.arrays import Bools, Floats, Ints, distinct
from dovetail.bounds.batch import Batch, Candidates
from dovetail.plans.partitions import listed_partitions
from dovetail.plans.plan import Plan
from dovetail.plans.skeletons import AXIS_ORDERS, NAMES, PlanSkeletons, shardings
from dovetail.plans.space import BY_BLOCK, Space
from dovetail.plans.stage_degrees import stage_degrees
from dovetail.step.layer_tables import Setting, recompute_policies
from dovetail.step.plan_tables import Tables
from dovetail.step.state_tables import StateSharding
from dovetail.step.tabled_plan import plan_of


class Enumeration:
    """What there is to search; `poll` is called between longer parts of the work on its tables."""

    def __init__(self, setting: Setting, space: Space, poll: Callable[[], None]) -> None:
        self.setting = setting
        self.space = space
        self.by_block = BY_BLOCK in space.recompute
        self.degrees = stage_degrees(setting.job, setting.cluster, setting.framework, space)
        self.tables = Tables(setting, self.degrees, recompute_policies(space), poll)
        #: where each block has its own policy, the one that saves least
        self._leanest = len(self.tables.policies) - 1 if self.by_block else None
        self._shardings: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        #: rows of the state table by stage degrees, replicas, stages and rank order
        self._rows_of_states: dict[tuple[int, ...], Ints] = {}
        self._listed: dict[tuple[int, int, int], list[int]] = {}

    def _states_of(self, row: int, replicas: int, stages: int) -> list[tuple[int, int]]:
        """ZeRO stages and groups of stage degrees."""
        plan = self.degrees[row].plan
        inner = plan.expert_tensor_parallel
        experts = inner * plan.expert_parallel
        key = (plan.tensor_parallel, plan.context_parallel, inner, experts, replicas, min(stages, 2))
        if key not in self._shardings:
            tiers = [tier.size for tier in self.setting.cluster.tiers]
            self._shardings[key] = shardings(
                self.setting.job, self.setting.framework, self.space, self.degrees[row], replicas, stages, tiers
            )
        return self._shardings[key]

    def _num_states(self, skeletons: PlanSkeletons) -> Ints:
        """How many shardings every skeleton has."""
        keys, kind = distinct(skeletons.degrees, skeletons.replicas, skeletons.stages)
        return np.array([len(self._states_of(*key)) for key in keys], np.int64)[kind]

    def _counted_choices(self, skeletons: PlanSkeletons) -> Bools:
        """The recompute policies that make plans of skeletons differ; those of single blocks are not counted."""
        offered = self.tables.offered(skeletons)
        if self.by_block:
            offered[:, 1:] = False
        return offered

    def _num_choices(self, skeletons: PlanSkeletons) -> Ints:
        return self._counted_choices(skeletons).sum(axis=1)

    def _num_plans(self, skeletons: PlanSkeletons) -> Ints:
        """How many plans every skeleton makes: its policies with its shardings."""
        return self._num_states(skeletons) * self._num_choices(skeletons)

    def _state_rows(self, skeletons: PlanSkeletons) -> tuple[list[Ints], Ints]:
        """Rows of all shardings, of each kind of skeleton; and the kind of every one.

        Made together they take a fraction of what they take one by one.
        """
        keys, kind = distinct(skeletons.degrees, skeletons.replicas, skeletons.stages, skeletons.inside)
        new = {key: self._states_of(*key[:3]) for key in keys if key not in self._rows_of_states}
        rows = self.tables.states.rows([
            StateSharding(degrees, replicas, stages, AXIS_ORDERS[inside], *state)
            for (degrees, replicas, stages, inside), states in new.items()
            for state in states
        ])  # fmt: skip
        ends = np.cumsum([len(states) for states in new.values()], dtype=np.int64)
        self._rows_of_states |= zip(new, np.split(rows, ends[:-1]), strict=True) if new else ()
        return [self._rows_of_states[key] for key in keys], kind

    def _candidates(self, batch: Batch, rows: Ints, bounds: Floats, limit_s: float) -> Candidates:
        """Every policy whose bound is below the limit, with every sharding, of some skeletons."""
        by_kind, kind = self._state_rows(batch.skeletons.take(rows))
        lengths = np.array([len(states) for states in by_kind], np.int64)
        row, policy = np.nonzero(bounds[rows] < limit_s)
        counts = lengths[kind[row]]
        first = (np.cumsum(lengths) - lengths)[kind[row]] - (np.cumsum(counts) - counts)
        state = np.concatenate([np.zeros(0, np.int64), *by_kind])[np.repeat(first, counts) + np.arange(counts.sum())]
        return Candidates(np.repeat(rows[row], counts), np.repeat(policy, counts), state)

    def _partitions(self, skeletons: PlanSkeletons, row: int) -> list[int]:
        """Rows of the partitions that are tried for a skeleton."""
        stages, chunks, schedule = int(skeletons.stages[row]), int(skeletons.chunks[row]), int(skeletons.schedule[row])
        key = (stages, chunks, schedule)
        if key not in self._listed:
            partitions = listed_partitions(
                self.setting.job.model.num_layers,
                stages,
                chunks,
                NAMES[schedule],
                self.space.partition,
                self.setting.framework.uneven_stages,
            )
            self._listed[key] = [self.tables.partitions.row(layers, stages, NAMES[schedule]) for layers in partitions]
        return self._listed[key]

    def _plan(self, skeletons: PlanSkeletons, candidates: Candidates, candidate: int, layers: tuple[int, ...]) -> Plan:
        row = int(candidates.skeleton[candidate])
        return plan_of(
            self.degrees[int(skeletons.degrees[row])],
            skeletons,
            row,
            self.tables.policies[int(candidates.policy[candidate])],
            self.tables.states.keys[int(candidates.state[candidate])],
            layers,
        )
