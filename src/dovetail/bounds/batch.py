"""A batch of plans: shapes with their options, states and cuts as rows of the tables, bounded and evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.arrays import TOLERANCE, Bools, Floats, Ints
from dovetail.bounds.hardware_bound import hardware_bound
from dovetail.bounds.partition_bound_kernels import least_seconds
from dovetail.pipeline.chunk_times import ChunkTimes
from dovetail.pipeline.step_time import step_time
from dovetail.plans.pipeline_schedule import GPIPE, ONE_F_ONE_B, Pipeline, PipelineSchedule
from dovetail.plans.plan_batch import PlanBatch
from dovetail.plans.skeletons import NAMES, PlanSkeletons, group_sizes
from dovetail.plans.zero_stage import effective_zero_stage
from dovetail.step.formulas import exposed, optimizer_seconds
from dovetail.step.plan_kernels import LayerColumns, PlanColumns, ProfileColumns, evaluate_plans
from dovetail.step.plan_tables import Tables, numbers


@dataclass(frozen=True, slots=True)
class Candidates:
    """Plans but for their cut: numbers of a batch's shapes, of options and of states."""

    skeleton: Ints
    policy: Ints
    state: Ints

    def __len__(self) -> int:
        return len(self.skeleton)

    def take(self, which: Ints | Bools) -> Candidates:
        """Some of them."""
        return Candidates(self.skeleton[which], self.policy[which], self.state[which])


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Plans of candidates with cuts: seconds of the pipeline, exact or at least, and of the rest; bytes of a stage."""

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
    """Skeletons that are worked on together."""

    def __init__(self, tables: Tables, shapes: PlanSkeletons) -> None:
        self.tables = tables
        self.skeletons = shapes
        self.profile = tables.profiles(shapes)
        self._profiles: ProfileColumns = tables.profile_arrays()
        unique, position = np.unique(self.profile, return_inverse=True)
        self._position = position.reshape(-1)
        self._unique = unique
        self._menu: LayerColumns | None = None
        self._sending_s, self._delay_s = tables.transfers(shapes, self._profiles.stream[self.profile])
        self._group = group_sizes(shapes.stages, shapes.microbatches, shapes.chunks)
        self._tied_s = tables.tied_seconds(shapes, self.profile, self._profiles)
        self._between_s = float(tables.setting.alone.overheads.step_s)
        #: codes of (cell, option, state) whose state works with every microbatch, sorted, and their layer rows
        self._sharded: tuple[Ints, Ints] = (np.zeros(0, np.int64), np.zeros(0, np.int64))

    @property
    def _layers(self) -> LayerColumns:
        """Rows of the shapes' cells under every option, and of what states add to them."""
        if self._menu is None:
            self._menu = self.tables.layer_rows(self._unique)
        return self._menu

    def fastest(self, state_bytes: Floats, limit_s: float) -> Floats:
        """What each shape takes at least under any option, without a look at the options."""
        n = len(self.skeletons)
        plans = self._plans(Candidates(np.arange(n), np.zeros(n, np.int64), np.zeros(n, np.int64)), self.profile)
        fixed = self._tied_s.min(axis=1) + self._between_s
        rows = self.tables.fastest_rows()
        return self._lower_bound(plans, self.profile, state_bytes, rows, limit_s - fixed, listed=False) + fixed

    def screen(self, state_bytes: Floats, least: int | None, limit_s: float) -> Floats:
        """What each shape takes at least under each option, whatever its cut; infinite where none fits.

        `state_bytes` (shapes × classes) is the least that any sharding keeps. Where blocks choose by themselves, bytes
        are those of the option `least`.
        """
        plans, memory, fixed = self.open_plans(least)
        options = len(self.tables.policies)
        state = np.repeat(state_bytes, options, axis=0)
        found = self._lower_bound(plans, memory, state, self._layers, limit_s - fixed, listed=least is None)
        return (found + fixed).reshape(len(self.skeletons), options)

    def open_plans(self, least: int | None) -> tuple[PlanColumns, Ints, Floats]:
        """Every shape under every option, cut and state left open; the layer rows of their bytes, and fixed seconds."""
        n, options = len(self.skeletons), len(self.tables.policies)
        shape, option = np.repeat(np.arange(n), options), np.tile(np.arange(options), n)
        candidates = Candidates(shape, option, np.zeros(n * options, np.int64))
        layer = self._position[shape] * options + option
        memory = layer if least is None else layer - option + least
        return self._plans(candidates, layer), memory, self._tied_s[shape].min(axis=1) + self._between_s

    def bound(self, candidates: Candidates, least: int | None, limit_s: float) -> Floats:
        """The same of candidates, whose state is known: with what follows the pipeline, spread over stages evenly."""
        self._work_with(candidates)
        tables, states = self.tables, self.tables.state_arrays()
        plans = self._plans(candidates, self._rows(candidates))
        memory = plans.layer
        if least is not None:
            memory = self._position[candidates.skeleton] * len(tables.policies) + least
        counts = tables.partitions.block_counts + sum(tables.partitions.end_counts)
        staged = np.minimum(plans.stages - 1, 1)
        reduction, gathering = tables.facts.hidden_reduction[staged], tables.facts.hidden_gathering[staged]
        # however much work there is beside them
        once = exposed(states.reduction_s[candidates.state], reduction[:, None], np.inf)
        once += exposed(states.gathering_s[candidates.state], gathering[:, None], np.inf)
        once += optimizer_seconds(states.untied[candidates.state], tables.facts.update_s)
        after = (once * counts).sum(axis=1) / plans.stages
        fixed = after * (1 - TOLERANCE) + self._fixed_s(candidates)
        state = self._state_bytes(plans)
        found = self._lower_bound(plans, memory, state, self._layers, limit_s - fixed, listed=least is None) + fixed
        return np.maximum(found, self._physical(candidates))

    def _physical(self, candidates: Candidates) -> Floats:
        """What the hardware allows at best (L0): above the tables' bound where the network is all that counts."""
        setting, shapes, shape = self.tables.setting, self.skeletons, candidates.skeleton
        splits, split = self.tables.columns, shapes.degrees[shape]
        plans = PlanBatch(
            tensor_parallel=splits.tensor_parallel[split],
            context_parallel=splits.context_parallel[split],
            data_parallel=shapes.replicas[shape],
            pipeline_parallel=shapes.stages[shape],
            pipeline_schedule=np.array([NAMES[number] for number in range(len(NAMES))])[shapes.schedule[shape]],
            micro_batch=shapes.micro_batch[shape],
            expert_parallel=splits.expert_parallel[split],
            expert_tensor_parallel=splits.expert_tensor_parallel[split],
            sequence_parallel=splits.sequence_parallel[split],
            zero_stage=self.tables.zero_stages()[candidates.state],
            zero_group=np.array([key.zero_group for key in self.tables.states.keys])[candidates.state],
        )
        return hardware_bound(setting.job, setting.cluster, plans)

    def _lower_bound(
        self,
        plans: PlanColumns,
        memory: Ints,
        state_bytes: Floats,
        layers: LayerColumns,
        limits_s: Floats | float,
        *,
        listed: bool,
    ) -> Floats:
        found = least_seconds(
            plans,
            memory,
            layers,
            self._profiles,
            np.ascontiguousarray(state_bytes),
            self.tables.partitions.chain(listed=listed),
            self.tables.facts,
            self.tables.setting.capacity_bytes,
            # rounding is taken off once more, so what just reaches a limit is looked at closely
            np.broadcast_to(limits_s * (1 + 2 * TOLERANCE), len(memory)).copy(),
        )
        return found * (1 - TOLERANCE)

    def _state_bytes(self, plans: PlanColumns) -> Floats:
        """What the state of one layer of every class takes, tied weights apart (`memory.state_bytes`)."""
        used, home = self._profiles.untied[plans.profile], self.tables.state_arrays().untied[plans.state]
        return self.tables.state_bytes(used, home, plans.zero_stage[:, None], plans.stages[:, None])

    def evaluate(self, candidates: Candidates, cuts: Sequence[Sequence[int]]) -> Evaluated:
        """Every candidate with every cut listed for its shape."""
        self._work_with(candidates)
        listed = np.array([row for rows in cuts for row in rows], np.int64)
        lengths = np.array([len(rows) for rows in cuts], np.int64)
        counts = lengths[candidates.skeleton]
        candidate = np.repeat(np.arange(len(candidates)), counts)
        starts = (np.cumsum(lengths) - lengths)[candidates.skeleton] - (np.cumsum(counts) - counts)
        cut = listed[np.repeat(starts, counts) + np.arange(len(candidate))]
        # plans with one pipeline follow each other, so that it is looked at once
        layer = self._rows(candidates)
        order = np.lexsort((candidate, cut, layer[candidate]))
        candidate, cut = candidate[order], cut[order]
        chosen = candidates.take(candidate)
        plans = self._plans(chosen, layer[candidate], cut)
        pipeline, after, peak = self.plan_seconds(plans)
        exact = (plans.schedule == GPIPE) | ((plans.schedule == ONE_F_ONE_B) & (plans.delay_s == 0))
        return Evaluated(candidate, cut, pipeline, after + self._fixed_s(chosen), exact | (plans.stages == 1), peak)

    def plan_seconds(self, plans: PlanColumns) -> tuple[Floats, Floats, Floats]:
        """Seconds of pipelines, exact or at least, and of what follows them; bytes of the fullest stage."""
        tables = self.tables
        return evaluate_plans(
            plans,
            self._layers,
            self._profiles,
            tables.state_arrays(),
            tables.partitions.arrays(),
            tables.facts,
            tables.has_loss,
            tables.partitions.most_places,
        )

    def pipeline_seconds(self, candidates: Candidates, found: Evaluated, which: Ints) -> Floats:
        """Pipelines of some evaluated plans by the longest path through their order: each one that differs once."""
        chosen = candidates.take(found.candidate[which])
        plans = self._plans(chosen, self._rows(chosen), found.partition[which])
        keys = np.stack(
            [plans.schedule, plans.stages, plans.microbatches, plans.chunks, plans.layer, plans.partition], axis=1
        )
        keys = np.concatenate([keys, np.stack([plans.sending_s, plans.delay_s], axis=1).view(np.int64)], axis=1)
        _, first, back = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        steps = np.empty(len(first))
        pipelines, group = np.unique(keys[first][:, :4], axis=0, return_inverse=True)
        for number, (schedule, *sizes) in enumerate(pipelines.tolist()):
            (rows,) = np.nonzero(group.reshape(-1) == number)
            pipeline = Pipeline(PipelineSchedule(NAMES[schedule]), *sizes)
            steps[rows] = self._longest_paths(pipeline, plans, first[rows])
        return steps[back.reshape(-1)]

    def _longest_paths(self, pipeline: Pipeline, plans: PlanColumns, rows: Ints) -> Floats:
        counts = np.stack([self.tables.partitions.places(cut) for cut in numbers(plans.partition[rows])]).astype(np.float64)
        forward, of_input, of_weight = (
            np.einsum("npc,nc->np", counts, part[plans.layer[rows]]) for part in self._layers[:3]
        )
        forward[:, :-1] += plans.sending_s[rows][:, None]
        of_input[:, 1:] += plans.sending_s[rows][:, None]
        delays = np.repeat(plans.delay_s[rows][:, None], pipeline.num_links, axis=1)
        return step_time(pipeline, ChunkTimes(forward, of_input, of_weight, transfer_s=delays))

    def _fixed_s(self, candidates: Candidates) -> Floats:
        sharded = (self.tables.zero_stages()[candidates.state] == 3).astype(np.int64)
        return self._tied_s[candidates.skeleton, sharded] + self._between_s

    def _plans(self, candidates: Candidates, layer: Ints, cut: Ints | None = None) -> PlanColumns:
        shapes, shape = self.skeletons, candidates.skeleton
        zero = self.tables.zero_stages()
        return PlanColumns(
            layer=layer,
            profile=self.profile[shape],
            state=candidates.state,
            partition=np.zeros(len(shape), np.int64) if cut is None else cut,
            schedule=shapes.schedule[shape],
            stages=shapes.stages[shape],
            microbatches=shapes.microbatches[shape],
            chunks=shapes.chunks[shape],
            group=self._group[shape],
            zero_stage=(
                effective_zero_stage(zero[candidates.state], shapes.stages[shape])
                if len(zero)
                else np.zeros(len(shape), np.int64)
            ),
            sending_s=self._sending_s[shape],
            delay_s=self._delay_s[shape],
        )

    def _rows(self, candidates: Candidates) -> Ints:
        """Layer rows of candidates."""
        rows = self._position[candidates.skeleton] * len(self.tables.policies) + candidates.policy
        sharded = self.tables.sharded_work()[candidates.state]
        if sharded.any():
            codes, places = self._sharded
            rows[sharded] = places[np.searchsorted(codes, self._codes(candidates.take(sharded)))]
        return rows

    def _codes(self, candidates: Candidates) -> Ints:
        row = self._position[candidates.skeleton] * len(self.tables.policies) + candidates.policy
        return row * 2**32 + candidates.state

    def _work_with(self, candidates: Candidates) -> None:
        """Adds layer rows for states that gather or reduce with every microbatch."""
        sharded = candidates.take(self.tables.sharded_work()[candidates.state])
        known, places = self._sharded
        codes, first = np.unique(self._codes(sharded), return_index=True)
        new = ~np.isin(codes, known)
        if not new.any():
            return
        added = sharded.take(first[new])
        rows = self.tables.sharded_rows(self.profile[added.skeleton], added.policy, added.state)
        start = len(self._layers.saved)
        self._menu = LayerColumns(*(np.concatenate(parts) for parts in zip(self._layers, rows, strict=True)))
        joined = np.concatenate([known, codes[new]])
        order = np.argsort(joined)
        places = np.concatenate([places, start + np.arange(int(new.sum()))])
        self._sharded = joined[order], places[order]
