"""Best first: the lowest bounds are expanded first, until none is left below the best plan."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import cast

import numpy as np

from dovetail.arrays import TOLERANCE, Bools, Floats, Ints
from dovetail.bounds.batch import Batch, Candidates, Evaluated
from dovetail.bounds.degree_bounds import DegreeBounds
from dovetail.partition.partition_plan import PartitionedPlan, partition_profiled
from dovetail.plans.derive import even_layers
from dovetail.plans.partitions import is_free, listed_partitions
from dovetail.plans.plan import Plan
from dovetail.plans.skeletons import AXIS_ORDERS, NAMES, PlanSkeletons, plan_skeletons, shardings
from dovetail.plans.space import BY_BLOCK, Space
from dovetail.plans.stage_degrees import stage_degrees
from dovetail.search.progress import Progress, simplicity
from dovetail.step.evaluate import profiled_job
from dovetail.step.facts import plan_facts
from dovetail.step.layer_tables import Setting, recompute_policies
from dovetail.step.plan_tables import Tables, numbers, plan_of
from dovetail.step.state_tables import StateSharding

#: Pairs of stage degrees and a stage count opened together: first a few, to have a plan to beat, then more.
ROUNDS = (64, 512, 4096)
#: Skeletons whose policies are bounded together, how many of them are expanded first, and pipelines timed together.
OPENED, BATCH, TIMED = 512, 64, 256


class BestFirst:
    """The search over one space."""

    def __init__(
        self,
        setting: Setting,
        space: Space,
        deadline: float | None = None,
        limit_s: float = float("inf"),
        top: int = 1,
    ) -> None:
        self.setting = setting
        self.space = space
        self.deadline = deadline
        self.progress = Progress(below_s=limit_s, top=top)
        self.by_block = BY_BLOCK in space.recompute
        self.degrees = stage_degrees(setting.job, setting.cluster, setting.framework, space)
        self.tables = Tables(setting, self.degrees, recompute_policies(space))
        #: where each block has its own policy, the one that saves least
        self._leanest = len(self.tables.policies) - 1 if self.by_block else None
        #: plans of a skeleton and a sharding; the policies of single blocks are not counted
        self._choices = 1 if self.by_block else len(self.tables.policies)
        self._shardings: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        self._listed: dict[tuple[int, int, int], list[int]] = {}
        #: plans that another partition may improve: bound, plan, and whether it was evaluated with a listed partition
        self._open: list[tuple[float, Plan, bool]] = []

    def run(self) -> Progress:
        """Opens stage degrees and stages in the order of their bounds."""
        if not self.degrees:
            return self.progress
        pairs = DegreeBounds(self.setting, self.space, self.degrees, self.tables)
        self._pairs = pairs
        bounds = pairs.seconds.ravel()
        self._count_all(pairs)
        order = np.argsort(bounds, kind="stable")
        order = order[np.isfinite(bounds[order])]
        start, sizes, size = 0, iter(ROUNDS), ROUNDS[-1]
        while start < len(order):
            size = next(sizes, size)
            opened = order[start : start + size]
            if bounds[opened[0]] >= self.progress.limit_s or self._late(float(bounds[opened[0]])):
                break
            selected = np.zeros(bounds.shape, np.bool_)
            selected[opened[bounds[opened] < self.progress.limit_s]] = True
            self._round(selected.reshape(pairs.seconds.shape))
            start += size
        self._refine()
        return self.progress

    def _count_all(self, pairs: DegreeBounds) -> None:
        counts = self.progress.counts
        for row, position in np.argwhere(pairs.exists).tolist():
            stages = self.space.pipeline_parallel[position]
            replicas = self.setting.cluster.chips // (self.degrees[row].replica_chips * stages)
            plans = pairs.num_skeletons(row, position) * self._choices * len(self._states_of(row, replicas, stages))
            counts.counted += plans
            if not np.isfinite(pairs.seconds[row, position]):
                counts.infeasible += plans

    def _states_of(self, row: int, replicas: int, stages: int) -> list[tuple[int, int]]:
        plan = self.degrees[row].plan
        inner = plan.expert_tensor_parallel
        experts = inner * plan.expert_parallel
        key = (plan.tensor_parallel, plan.context_parallel, inner, experts, replicas, min(stages, 2))
        if key not in self._shardings:
            tiers = [tier.size for tier in self.setting.cluster.tiers]
            self._shardings[key] = shardings(
                self.setting.framework, self.space, self.degrees[row], replicas, stages, tiers
            )
        return self._shardings[key]

    def _late(self, bound: float) -> bool:
        """Whether time is over; then everything from this bound on stays open."""
        if self.deadline is None or time.monotonic() < self.deadline:
            return False
        self.progress.left_s = min(self.progress.left_s, float(bound))
        return True

    def _round(self, selected: Bools) -> None:
        """Bounds all skeletons of some stage degrees and stage counts, and opens them in that order."""
        setting, counts = self.setting, self.progress.counts
        skeletons = plan_skeletons(setting.job, setting.cluster, setting.framework, self.space, self.degrees, selected)
        bounds = self._pairs.skeleton_bounds(skeletons, self.progress.limit_s)
        states = self._num_states(skeletons)
        counts.infeasible += self._choices * int(states[~np.isfinite(bounds)].sum())
        skeletons = skeletons.take(bounds < self.progress.limit_s)
        if not len(skeletons):
            return
        bounds = Batch(self.tables, skeletons).fastest(self._pairs.state_bytes(skeletons), self.progress.limit_s)
        states = self._num_states(skeletons)
        counts.infeasible += self._choices * int(states[~np.isfinite(bounds)].sum())
        order = np.argsort(bounds, kind="stable")
        for start in range(0, len(order), OPENED):
            rows = order[start : start + OPENED]
            rows = rows[bounds[rows] < self.progress.limit_s]
            if not len(rows) or self._late(float(bounds[rows[0]])):
                return
            self._open_skeletons(skeletons.take(rows))

    def _num_states(self, skeletons: PlanSkeletons) -> Ints:
        """How many shardings every skeleton has."""
        keys = np.stack([skeletons.degrees, skeletons.replicas, skeletons.stages], axis=1)
        unique, back = np.unique(keys, axis=0, return_inverse=True)
        counts = [len(self._states_of(*key)) for key in cast("list[list[int]]", unique.tolist())]
        return np.array(counts, np.int64)[back.reshape(-1)]

    def _open_skeletons(self, skeletons: PlanSkeletons) -> None:
        """Profiles skeletons and expands them, those with the lowest bound first."""
        batch = Batch(self.tables, skeletons)
        bounds = batch.screen(self._pairs.state_bytes(skeletons), self._leanest, self.progress.limit_s)
        bounds[~self.tables.runs(skeletons)] = np.inf
        none_fits = ~np.isfinite(bounds[:, : self._choices])
        self.progress.counts.infeasible += int((self._num_states(skeletons)[:, None] * none_fits).sum())
        lowest = bounds.min(axis=1)
        order = np.argsort(lowest, kind="stable")
        start, size = 0, BATCH
        while start < len(order):
            rows = order[start : start + size]
            rows = rows[lowest[rows] < self.progress.limit_s]
            if not len(rows) or self._late(float(lowest[rows[0]])):
                return
            self._expand(batch, rows, bounds)
            # the first few give a plan to beat; what is still below it then is expanded in larger batches
            start, size = start + size, 2 * size

    def _expand(self, batch: Batch, rows: Ints, bounds: Floats) -> None:
        """Evaluates every policy and state of some skeletons with their listed partitions."""
        candidates = self._candidates(batch, rows, bounds)
        lowest = batch.bound(candidates, self._leanest, self.progress.limit_s)
        self.progress.counts.infeasible += self._counted(candidates, ~np.isfinite(lowest))
        below = lowest < self.progress.limit_s
        candidates, lowest = candidates.take(below), lowest[below]
        if not len(candidates):
            return
        partitions: list[list[int]] = [[] for _ in range(len(batch.skeletons))]
        for row in numbers(rows):
            partitions[row] = self._partitions(batch.skeletons, row)
        evaluated = batch.evaluate(candidates, partitions)
        fits = evaluated.peak_bytes <= self.setting.capacity_bytes
        exact = self._exact(batch, candidates, evaluated, fits)
        self._offer(batch, candidates, evaluated, exact, fits)
        self._sort_out(batch, candidates, lowest, evaluated, exact, fits)

    def _candidates(self, batch: Batch, rows: Ints, bounds: Floats) -> Candidates:
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
            (policies,) = np.nonzero(bounds[row] < self.progress.limit_s)
            policy, state = np.repeat(policies, len(states)), np.tile(states, len(policies))
            parts.append(np.stack([np.full(len(policy), row), policy, state]))
        return Candidates(*np.concatenate([np.zeros((3, 0), np.int64), *parts], axis=1))

    def _partitions(self, skeletons: PlanSkeletons, row: int) -> list[int]:
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

    def _exact(self, batch: Batch, candidates: Candidates, evaluated: Evaluated, fits: Bools) -> Floats:
        """Exact seconds of what may matter; infinite for the rest."""
        seconds = np.where(evaluated.exact & fits, evaluated.seconds, np.inf)
        limit = min(self.progress.limit_s, self._slowest_of_top(seconds) * (1 + TOLERANCE))
        (open_rows,) = np.nonzero(~evaluated.exact & fits & (evaluated.seconds < limit))
        open_rows = open_rows[np.argsort(evaluated.seconds[open_rows], kind="stable")]
        for start in range(0, len(open_rows), TIMED):
            rows = open_rows[start : start + TIMED]
            rows = rows[evaluated.seconds[rows] < limit * (1 + TOLERANCE)]
            if not len(rows):
                break
            seconds[rows] = batch.pipeline_seconds(candidates, evaluated, rows) + evaluated.rest_s[rows]
            limit = min(limit, self._slowest_of_top(seconds))
        return seconds

    def _slowest_of_top(self, seconds: Floats) -> float:
        """The slowest of as many as are asked for; one plan may be there with several partitions."""
        if self.progress.top > 1:
            return float("inf")
        return float(seconds.min(initial=np.inf))

    def _offer(self, batch: Batch, candidates: Candidates, evaluated: Evaluated, exact: Floats, fits: Bools) -> None:
        """The best plan of every combination of degrees."""
        (rows,) = np.nonzero(fits & np.isfinite(exact))
        rows = rows[np.argsort(exact[rows], kind="stable")]
        skeleton = candidates.skeleton[evaluated.candidate[rows]]
        degrees = batch.skeletons.degrees[skeleton] * 2**20 + batch.skeletons.stages[skeleton]
        best: dict[int, float] = {}
        for row, key in zip(numbers(rows), numbers(degrees), strict=True):
            seconds = float(exact[row])
            if self.progress.top > 1 and seconds >= self.progress.limit_s:
                break
            if self.progress.top > 1 or seconds <= best.setdefault(key, seconds) * (1 + TOLERANCE):
                candidate = int(evaluated.candidate[row])
                layers = self.tables.partitions.layers[int(evaluated.partition[row])]
                self.progress.offer(seconds, self._plan(batch.skeletons, candidates, candidate, layers))

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

    def _sort_out(
        self,
        batch: Batch,
        candidates: Candidates,
        lowest: Floats,
        plans: Evaluated,
        exact: Floats,
        fits: Bools,
    ) -> None:
        """Counts candidates that are evaluated or do not fit, and notes those whose partition is still open."""
        evaluated = np.zeros(len(candidates), np.bool_)
        evaluated[plans.candidate[np.isfinite(exact)]] = True
        fits_somehow = np.zeros(len(candidates), np.bool_)
        fits_somehow[plans.candidate[fits]] = True
        free = np.array([self._is_free(batch.skeletons, row) for row in numbers(candidates.skeleton)], np.bool_)
        counts = self.progress.counts
        counts.evaluated += self._counted(candidates, evaluated)
        counts.infeasible += self._counted(candidates, ~free) - self._counted(candidates, fits_somehow & ~free)
        codes = candidates.skeleton * 2**32 + candidates.state
        seen = set(numbers(codes[evaluated])) if self.by_block else set(numbers(np.nonzero(evaluated)[0]))
        for candidate in np.nonzero(free & (lowest < self.progress.limit_s))[0].tolist():
            if self.by_block and int(candidates.policy[candidate]):
                continue  # each block has its own policy: one row stands for all
            plan = self._plan(batch.skeletons, candidates, candidate, ())
            key = int(codes[candidate]) if self.by_block else candidate
            self._open.append((float(lowest[candidate]), plan, key in seen))

    def _counted(self, candidates: Candidates, which: Bools) -> int:
        """How many plans these are: rows that only bound the policies of single blocks count as one."""
        if not self.by_block:
            return int(which.sum())
        return len(np.unique(candidates.skeleton[which] * 2**32 + candidates.state[which]))

    def _is_free(self, skeletons: PlanSkeletons, row: int) -> bool:
        schedule, stages = NAMES[int(skeletons.schedule[row])], int(skeletons.stages[row])
        if self.by_block:
            return schedule != "dualpipe" and (stages == 1 or self.space.partition == "any")
        return is_free(schedule, self.space.partition, stages)

    def _refine(self) -> None:
        """Solves the partition, and the policies of blocks, of whatever may still be better."""
        counts = self.progress.counts
        self._open.sort(key=lambda entry: (entry[0], simplicity(entry[1])))
        for bound, plan, evaluated in self._open:
            if bound >= self.progress.limit_s or self._late(bound):
                break
            placed = partition_setting(self.setting, plan, by_block=self.by_block)
            if placed is None:
                counts.infeasible += not evaluated
                continue
            counts.evaluated += not evaluated
            self.progress.offer(placed.evaluation.step_time_s, placed.evaluation.plan)
            if placed.status != "optimal":
                self.progress.left_s = min(self.progress.left_s, placed.lower_bound_s)
        self._open.clear()


def partition_setting(setting: Setting, plan: Plan, *, by_block: bool) -> PartitionedPlan | None:
    """The plan with its best partition, and the best policy of every block where blocks choose."""
    schedule, stages = plan.pipeline_schedule, plan.pipeline_parallel
    facts = plan_facts(plan, setting.framework, setting.job)
    if setting.at_least:
        facts = facts.at_least(schedule=schedule, stages=stages)
    layers = even_layers(plan.pipeline_parallel * plan.virtual_stages, setting.job.model.num_layers)
    profiled = profiled_job(plan, setting.job, setting.cluster, facts, setting.efficiencies)
    return partition_profiled(
        replace(plan, layers_per_stage=layers), setting.job, profiled, setting.basis, by_block=by_block
    )
