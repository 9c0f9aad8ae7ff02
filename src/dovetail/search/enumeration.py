"""The plans of a space as rows of tables: stage degrees, policies, shardings and partitions of skeletons."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from dovetail.arrays import Bools, Floats, Ints
from dovetail.bounds.batch import Batch, Candidates
from dovetail.plans.partitions import listed_partitions
from dovetail.plans.plan import Plan
from dovetail.plans.skeletons import AXIS_ORDERS, NAMES, PlanSkeletons, shardings
from dovetail.plans.space import BY_BLOCK, Space
from dovetail.plans.stage_degrees import stage_degrees
from dovetail.step.layer_tables import Setting, recompute_policies
from dovetail.step.plan_tables import Tables, numbers
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
        keys = np.stack([skeletons.degrees, skeletons.replicas, skeletons.stages], axis=1)
        unique, back = np.unique(keys, axis=0, return_inverse=True)
        counts = [len(self._states_of(*key)) for key in cast("list[list[int]]", unique.tolist())]
        return np.array(counts, np.int64)[back.reshape(-1)]

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

    def _make_states(self, skeletons: PlanSkeletons) -> None:
        """Rows for all shardings of skeletons: made together they take a fraction of what they take one by one."""
        keys = np.stack([skeletons.degrees, skeletons.replicas, skeletons.stages, skeletons.inside], axis=1)
        self.tables.states.rows([
            StateSharding(degrees, replicas, stages, AXIS_ORDERS[inside], *state)
            for degrees, replicas, stages, inside in cast("list[list[int]]", np.unique(keys, axis=0).tolist())
            for state in self._states_of(degrees, replicas, stages)
        ])  # fmt: skip

    def _candidates(self, batch: Batch, rows: Ints, bounds: Floats, limit_s: float) -> Candidates:
        """Every policy whose bound is below the limit, with every sharding, of some skeletons."""
        skeletons, keys = batch.skeletons, list[list[StateSharding]]()
        for row in numbers(rows):
            degrees, replicas, stages = (
                int(skeletons.degrees[row]),
                int(skeletons.replicas[row]),
                int(skeletons.stages[row]),
            )
            order = AXIS_ORDERS[int(skeletons.inside[row])]
            shardings = self._states_of(degrees, replicas, stages)
            keys.append([StateSharding(degrees, replicas, stages, order, stage, group) for stage, group in shardings])
        state_rows = self.tables.states.rows([key for of_row in keys for key in of_row])
        ends = np.cumsum([len(of_row) for of_row in keys])
        parts: list[Ints] = []
        for row, states in zip(numbers(rows), np.split(state_rows, ends[:-1]), strict=True):
            (policies,) = np.nonzero(bounds[row] < limit_s)
            policy, state = np.repeat(policies, len(states)), np.tile(states, len(policies))
            parts.append(np.stack([np.full(len(policy), row), policy, state]))
        return Candidates(*np.concatenate([np.zeros((3, 0), np.int64), *parts], axis=1))

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
