"""A batch of plans as rows of the tables (skeleton, policy, state, partition): bounded, then evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from dovetail.arrays import TOLERANCE, Bools, Floats, Ints, distinct
from dovetail.bounds.hardware_bound import hardware_bound
from dovetail.bounds.partition_bound_kernels import BoundRows, least_seconds
from dovetail.frozen import frozen
from dovetail.plans.pipeline_schedule import GPIPE, ONE_F_ONE_B
from dovetail.plans.plan_batch import PlanBatch
from dovetail.plans.skeletons import NAMES, PlanSkeletons, group_sizes
from dovetail.plans.zero_stage import effective_zero_stage
from dovetail.step.exact_pipelines import exact_pipelines, without_repetition
from dovetail.step.formulas import between_seconds, exposed, optimizer_seconds, overlap_budget
from dovetail.step.plan_columns import LayerColumns, PlanColumns, ProfileColumns
from dovetail.step.plan_kernels import evaluate_plans
from dovetail.step.plan_tables import Tables


@frozen
class Candidates:
    """Plans without their partition: which skeleton of the batch, which policy, which state."""

    skeleton: Ints
    policy: Ints
    state: Ints

    def __len__(self) -> int:
        return len(self.skeleton)

    def take(self, which: Ints | Bools) -> Candidates:
        """Some of them."""
        return Candidates(self.skeleton[which], self.policy[which], self.state[which])


@frozen
class Evaluated:
    """Candidates with partitions: seconds of the pipeline (exact, or a lower bound) and of the rest; peak bytes."""

    candidate: Ints
    partition: Ints
    pipeline_s: Floats
    rest_s: Floats
    exact: Bools
    peak_bytes: Floats

    @property
    def seconds(self) -> Floats:
        """Of the whole step."""
        return self.pipeline_s + self.rest_s


class Batch:
    """Skeletons that are profiled and bounded together."""

    def __init__(self, tables: Tables, skeletons: PlanSkeletons) -> None:
        self.tables = tables
        self.skeletons = skeletons
        self.profile = tables.profiles(skeletons)
        self._profiles: ProfileColumns = tables.profile_arrays()
        self._sending_s, self._delay_s = tables.handovers.seconds(skeletons, self._profiles.stream[self.profile])
        self._group = group_sizes(skeletons.stages, skeletons.microbatches, skeletons.chunks)
        self._tied_s = tables.tied_seconds(skeletons, self.profile, self._profiles)
        added = tables.setting.alone.overheads
        self._between_s = between_seconds(float(added.microbatch_s), float(added.step_s), skeletons.microbatches)

    @property
    def fixed_s(self) -> Floats:
        """Seconds that a step of each skeleton has beside its pipeline, under any state."""
        return self._tied_s.min(axis=1) + self._between_s

    @cached_property
    def offered(self) -> Bools:
        """Which policies the skeletons may have (`Tables.offered`)."""
        return self.tables.offered(self.skeletons)

    @cached_property
    def _first_row(self) -> Ints:
        """The layer row of every skeleton under the first policy; those under the others follow."""
        return self.tables.first_rows(self.profile, np.asarray(self.offered.any(axis=0)))

    def fastest(self, state_bytes: Floats, limit_s: float) -> Floats:
        """A lower bound for each skeleton under any policy, found without looking at single policies."""
        every = np.arange(len(self.skeletons))
        plans = self._plans(Candidates(every, np.zeros_like(every), np.zeros_like(every)), self.profile)
        fixed, rows = self.fixed_s, BoundRows(every, self.profile, self.profile)
        layers = self.tables.fastest_rows()
        return self._lower_bound(plans, rows, state_bytes, layers, limit_s - fixed, listed=False) + fixed

    def screen(self, state_bytes: Floats, leanest: int | None, limit_s: float, *, listed: bool = True) -> Floats:
        """A lower bound for each skeleton and policy over all partitions; infinite where none fits.

        `state_bytes` (skeletons × classes) is the smallest over all shardings. Where each block has its own policy, the
        bytes are those of the policy `leanest`.
        """
        offered = self.offered
        skeleton, policy = np.nonzero(offered)
        first = self._first_row[skeleton]
        rows = BoundRows(skeleton, first + policy, first + (policy if leanest is None else leanest))
        fixed = self.fixed_s
        bounds = self._lower_bound(
            self.open_plans(), rows, state_bytes, self.tables.layers, limit_s - fixed, listed=listed and leanest is None
        )
        screened = np.full(offered.shape, np.inf)
        screened[offered] = bounds + fixed[skeleton]
        return screened

    def open_plans(self) -> PlanColumns:
        """Skeletons as plans, with the first policy, and partition and state open."""
        every = np.arange(len(self.skeletons))
        return self._plans(Candidates(every, np.zeros_like(every), np.zeros_like(every)), self._first_row)

    def bound(self, candidates: Candidates, leanest: int | None, limit_s: float, *, listed: bool = True) -> Floats:
        """The same for candidates, whose state is fixed: the end of the step is spread evenly over the stages."""
        listed = listed and leanest is None
        # policies change neither the end of a step nor the bytes of state: these are found once for all of them
        shards, place = self._without_policies(candidates)
        bounds, end_s, state_bytes = self._physical(shards)[place], self._end_s(shards), self._state_bytes(shards)
        with_work = self.tables.sharded_work()[candidates.state]
        # first with layers as if no state added collectives to every micro-batch, which few candidates have
        for sharded in (False, True):
            below = np.nonzero((bounds < limit_s) & (with_work | (not sharded)))[0]
            if not len(below):
                break
            taken, of = candidates.take(below), place[below]
            plans = self._plans(taken, self._rows(taken) if sharded else self._menu_rows(taken))
            memory = plans.layer
            if leanest is not None:
                memory = self._first_row[taken.skeleton] + leanest
            fixed = end_s[of]
            if leanest is None:
                # hidden by its own work, which is in the rows of the second pass where its state adds some
                known = sharded | ~with_work[below]
                fixed[known] = self._seen_end_s(taken.take(known), plans.layer[known])
            rows, layers = BoundRows(np.arange(len(below)), plans.layer, memory), self.tables.layers
            found = self._lower_bound(plans, rows, state_bytes[of], layers, limit_s - fixed, listed=listed)
            bounds[below] = np.maximum(bounds[below], found + fixed)
        return bounds

    def _without_policies(self, candidates: Candidates) -> tuple[Candidates, Ints]:
        """What candidates are but for their policies, and which of these each one is."""
        rows, place = distinct(candidates.skeleton, candidates.state)
        skeleton, state = np.array(rows, np.int64).reshape(-1, 2).T
        return Candidates(skeleton, np.zeros_like(skeleton), state), place

    def _end_s(self, shards: Candidates) -> Floats:
        """What the end of a step takes at least, and what is fixed: however much work could hide it."""
        tables, states, of = self.tables, self.tables.state_arrays(), shards.state
        counts = tables.partitions.block_counts + sum(tables.partitions.end_counts)
        stages, update = self.skeletons.stages[shards.skeleton], tables.facts.update
        reduction, gathering = self._hidden(stages)
        once = exposed(states.reduction_s[of], reduction[:, None], np.inf)
        once += exposed(states.gathering_s[of], gathering[:, None], np.inf)
        once += optimizer_seconds(states.updated[of], update, states.vectors[of], states.flops[of])
        return (once * counts).sum(axis=1) / stages * (1 - TOLERANCE) + self._fixed_s(shards)

    def _seen_end_s(self, candidates: Candidates, rows: Ints) -> Floats:
        """The same with no more to hide it than the work of layer rows: of the mean stage, as no step has less."""
        tables, states, layers, of = self.tables, self.tables.state_arrays(), self.tables.layers, candidates.state
        skeletons, skeleton, facts = self.skeletons, candidates.skeleton, tables.facts
        counts = tables.partitions.block_counts + sum(tables.partitions.end_counts)
        stages = skeletons.stages[skeleton]
        sizes = stages, skeletons.microbatches[skeleton], skeletons.chunks[skeleton]

        def mean(seconds: Floats) -> Floats:
            return (seconds * counts).sum(axis=1) / stages

        backward = mean(layers.input_gradient_s[rows] + layers.weight_gradient_s[rows])
        behind, ahead = (
            # of the larger of both the mean is no larger than their sum
            overlap_budget(work, *sizes, 0.0) + facts.min_overlap_s
            for work in (backward, mean(layers.forward_s[rows]))
        )
        reduction, gathering = self._hidden(stages)
        seen = exposed(mean(states.reduction_s[of]), reduction, behind)
        seen += exposed(mean(states.gathering_s[of]), gathering, ahead)
        seen += mean(optimizer_seconds(states.updated[of], facts.update, states.vectors[of], states.flops[of]))
        return seen * (1 - TOLERANCE) + self._fixed_s(candidates)

    def _hidden(self, stages: Ints) -> tuple[Floats, Floats]:
        """The shares of reductions, and of gatherings, that work can hide."""
        facts, staged = self.tables.facts, np.minimum(stages - 1, 1)
        return facts.hidden_reduction[staged], facts.hidden_gathering[staged]

    def _physical(self, candidates: Candidates) -> Floats:
        """The hardware bound (L0), which is the tighter one where only the network counts."""
        setting, skeletons, skeleton = self.tables.setting, self.skeletons, candidates.skeleton
        degrees, row = self.tables.columns, skeletons.degrees[skeleton]
        plans = PlanBatch(
            tensor_parallel=degrees.tensor_parallel[row],
            context_parallel=degrees.context_parallel[row],
            data_parallel=skeletons.replicas[skeleton],
            pipeline_parallel=skeletons.stages[skeleton],
            pipeline_schedule=np.array([NAMES[number] for number in range(len(NAMES))])[skeletons.schedule[skeleton]],
            micro_batch=skeletons.micro_batch[skeleton],
            expert_parallel=degrees.expert_parallel[row],
            expert_tensor_parallel=degrees.expert_tensor_parallel[row],
            sequence_parallel=degrees.sequence_parallel[row],
            zero_stage=self.tables.zero_stages()[candidates.state],
            zero_group=self.tables.states.zero_groups[candidates.state],
        )
        return hardware_bound(setting.job, setting.cluster, plans)

    def _lower_bound(
        self,
        plans: PlanColumns,
        rows: BoundRows,
        state_bytes: Floats,
        layers: LayerColumns,
        limits_s: Floats,
        *,
        listed: bool,
    ) -> Floats:
        bounds = least_seconds(
            plans,
            rows,
            layers,
            self._profiles,
            np.ascontiguousarray(state_bytes),
            self.tables.partitions.chain(listed=listed),
            self.tables.facts,
            self.tables.setting.capacity_bytes,
            # rounding is taken off once more, so what just reaches a limit is checked closely
            limits_s * (1 + 2 * TOLERANCE),
        )
        return bounds * (1 - TOLERANCE)

    def _state_bytes(self, shards: Candidates) -> Floats:
        """What the state of one layer of every class takes, without tied weights (`memory.state_bytes`)."""
        skeletons, of = self.skeletons, shards.skeleton
        states, profile, zero = self.tables.state_arrays(), self.profile[of], self.tables.zero_stages()[shards.state]
        used, home = self._profiles.untied[profile], states.untied[shards.state]
        stages = skeletons.stages[of]
        columns = (effective_zero_stage(zero, stages), stages, skeletons.microbatches[of])
        effective, *others = (column[:, None] for column in columns)
        if not self._profiles.trained.shape[1]:
            return self.tables.state_bytes(used, home, effective, *others)
        trained, trained_home = self._profiles.trained[profile], states.trained[shards.state]
        return self.tables.state_bytes(trained, trained_home, effective, *others) + self.tables.frozen_bytes(
            used - trained, home - trained_home, effective
        )

    def evaluate(self, candidates: Candidates, partitions: Sequence[Sequence[int]]) -> Evaluated:
        """Every candidate with each partition listed for its skeleton; where some layers recompute, the first alone."""
        listed = np.array([row for rows in partitions for row in rows], np.int64)
        lengths = np.array([len(rows) for rows in partitions], np.int64)
        counts = np.where(self.tables.of_a_share(candidates.policy), 1, lengths[candidates.skeleton])
        candidate = np.repeat(np.arange(len(candidates)), counts)
        starts = (np.cumsum(lengths) - lengths)[candidates.skeleton] - (np.cumsum(counts) - counts)
        partition = listed[np.repeat(starts, counts) + np.arange(len(candidate))]
        # plans with one pipeline follow each other, so that it is timed once
        layer = self._rows(candidates)
        order = np.lexsort((candidate, partition, layer[candidate]))
        candidate, partition = candidate[order], partition[order]
        taken = candidates.take(candidate)
        plans = self._plans(taken, layer[candidate], partition)
        pipeline, after, peak = self.plan_seconds(plans)
        exact = (plans.schedule == GPIPE) | ((plans.schedule == ONE_F_ONE_B) & (plans.delay_s == 0))
        return Evaluated(
            candidate, partition, pipeline, after + self._fixed_s(taken), exact | (plans.stages == 1), peak
        )

    def plan_seconds(self, plans: PlanColumns) -> tuple[Floats, Floats, Floats]:
        """Seconds of pipelines (exact, or a lower bound) and of the end of the step; bytes of the fullest stage."""
        tables = self.tables
        return evaluate_plans(
            plans,
            tables.layers,
            self._profiles,
            tables.state_arrays(),
            tables.partitions.arrays(),
            tables.facts,
            tables.kinds,
            tables.partitions.most_places,
        )

    def pipeline_seconds(self, candidates: Candidates, evaluated: Evaluated, which: Ints) -> Floats:
        """Exact pipeline seconds of some evaluated plans."""
        taken, partition = candidates.take(evaluated.candidate[which]), evaluated.partition[which]
        layer = self._rows(taken)
        # those that differ in their states alone follow each other
        first, back = without_repetition(taken.skeleton, layer, partition)
        plans = self._plans(taken.take(first), layer[first], partition[first])
        return exact_pipelines(plans, self.tables.layers, self.tables.partitions)[back]

    def _fixed_s(self, candidates: Candidates) -> Floats:
        sharded = (self.tables.zero_stages()[candidates.state] == 3).astype(np.int64)
        return self._tied_s[candidates.skeleton, sharded] + self._between_s[candidates.skeleton]

    def _plans(self, candidates: Candidates, layer: Ints, partition: Ints | None = None) -> PlanColumns:
        skeletons, skeleton = self.skeletons, candidates.skeleton
        zero = self.tables.zero_stages()
        return PlanColumns(
            layer=layer,
            profile=self.profile[skeleton],
            state=candidates.state,
            partition=np.zeros(len(skeleton), np.int64) if partition is None else partition,
            schedule=skeletons.schedule[skeleton],
            stages=skeletons.stages[skeleton],
            microbatches=skeletons.microbatches[skeleton],
            chunks=skeletons.chunks[skeleton],
            group=self._group[skeleton],
            zero_stage=(
                effective_zero_stage(zero[candidates.state], skeletons.stages[skeleton])
                if len(zero)
                else np.zeros(len(skeleton), np.int64)
            ),
            sending_s=self._sending_s[skeleton],
            delay_s=self._delay_s[skeleton],
        )

    def _menu_rows(self, candidates: Candidates) -> Ints:
        """Layer rows of candidates without what their states add to every micro-batch."""
        return self._first_row[candidates.skeleton] + candidates.policy

    def _rows(self, candidates: Candidates) -> Ints:
        """Layer rows of candidates."""
        rows = self._menu_rows(candidates)
        sharded = self.tables.sharded_work()[candidates.state]
        if sharded.any():
            of = candidates.take(sharded)
            rows[sharded] = self.tables.rows_with_work(rows[sharded], self.profile[of.skeleton], of.policy, of.state)
        return rows
