"""All tables of a search, and plans as rows of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import cast

import numpy as np

from dovetail.arrays import Bools, Floats, Ints, distinct, numbers
from dovetail.cost.units import tier_arrays
from dovetail.frameworks.parameter_bytes import frozen_bytes, state_bytes
from dovetail.layout.strategy import Strategy
from dovetail.plans.overlaps import expert_overlap_allowed, gradient_overlap, pipeline_allows, recompute_allows
from dovetail.plans.pipeline_schedule import DUAL_PIPE
from dovetail.plans.plan_batch import PlanBatch
from dovetail.plans.rules import broken
from dovetail.plans.runs import rules_of
from dovetail.plans.skeletons import PlanSkeletons
from dovetail.plans.space import Choice
from dovetail.plans.stage_degrees import StageDegrees
from dovetail.step.framework_columns import framework_columns
from dovetail.step.handovers import Handovers
from dovetail.step.layer_pool import LayerPool
from dovetail.step.layer_rows import FORWARD_KERNELS, joined_overlaps, recomputed, shaped_overlaps, timed
from dovetail.step.layer_tables import (
    TIMED_TOGETHER,
    LayerTable,
    RecomputePolicy,
    Setting,
    block_shares,
    whole_layers,
)
from dovetail.step.memory import class_kinds
from dovetail.step.partition_table import PartitionTable
from dovetail.step.plan_columns import LayerColumns, ProfileColumns, StateColumns
from dovetail.step.policy_rows import PolicyRows
from dovetail.step.side_by_side import layer_tables
from dovetail.step.state_tables import StateTable
from dovetail.step.structures import Structures
from dovetail.step.times import tied_time

#: Stage degrees by number, micro-batch size, and whether tokens to experts overlap.
ProfileKey = tuple[int, int, bool]

#: Sequences of an asymptotic micro-batch: so many that nothing is lost on its size, and its seconds per sequence are
#: a lower bound.
ASYMPTOTIC_SEQUENCES = 2**20
#: Parameters of a profile: all, and those with a gradient.
_PARAMETERS = ("parameters", "trained_parameters")


class Tables:
    """Layers once per profile, states once per sharding, partitions once per pipeline; plans are rows of these."""

    def __init__(
        self,
        setting: Setting,
        degrees: Sequence[StageDegrees],
        policies: Sequence[RecomputePolicy],
        poll: Callable[[], None] = lambda: None,
    ) -> None:
        self.setting = setting
        #: called from time to time while tables are made, and may raise: what is made by then stays
        self.poll = poll
        self.degrees = degrees
        self.policies = policies
        self._shares = np.array([share for _, share in policies])
        #: of the stage degrees, as columns
        self.columns = PlanBatch.of([each.plan for each in degrees])
        graph = setting.graph
        self.states = StateTable(setting, degrees, poll)
        self.partitions = PartitionTable(graph, setting.classes, setting.job.model.num_layers)
        self.facts = framework_columns(setting, degrees)
        #: whether tokens to experts can overlap under stage degrees
        self._experts_overlap = np.array(
            [expert_overlap_allowed(each.plan, setting.framework, setting.job) for each in degrees], np.bool_
        )
        self.handovers = Handovers(setting, degrees)
        #: whether plans of stage degrees say that tokens to experts overlap, and that gradients do
        self._said = np.array(
            [(bool(e.plan.overlap_expert_parallel), bool(e.plan.overlap_gradients)) for e in degrees], np.bool_
        ).reshape(-1, 2)
        #: whether plans may recompute this with the options they say
        self._policies_run = self._recompute_runs()
        #: which stage degrees there are plans of: all, but in tables that are narrowed
        self.kept = np.ones(len(degrees), np.bool_)
        #: of the same plans on hardware with other rates, these among them, where layers are profiled together
        self._together: Sequence[Tables] = ()
        self.structures = Structures(graph, (each.arranged for each in degrees))
        #: of stage degrees, NaN where they are not made (`asymptotic`)
        self._asymptotic = np.full((4, len(degrees), len(setting.classes)), np.nan)
        self._tables: list[LayerTable] = []
        self._pool = LayerPool(len(setting.classes))
        self._rows = PolicyRows(self._pool, policies)
        self._profile_rows: dict[ProfileKey, int] = {}
        #: profiles that may be asked for, by their axes
        self._expected: dict[Strategy, list[ProfileKey]] = {}
        #: by table, joined when they are asked for: of every profile its table and its row there, then its columns
        self._place: list[Ints] = []
        self._columns: list[ProfileColumns] = []
        self._fastest: list[LayerColumns] = []

    def join(self, others: Sequence[Tables]) -> None:
        """Profiles layers together with tables of the same plans on hardware with other rates, if operators do not
        share cores.
        """
        together = (self, *others)
        if all(each.setting.chip.sharing == "none" for each in together):
            for each in together:
                each._together = together

    def narrowed(self, setting: Setting, kept: Bools, policies: Bools, poll: Callable[[], None]) -> Tables:
        """The same tables for plans of some stage degrees and policies, within other bytes of a chip.

        Rows that are made for one are there for all; of those in use at a time, the last one is polled.
        """
        narrow = copy(self)
        narrow.setting, narrow.poll, narrow.states.poll = setting, poll, poll
        narrow.kept, narrow._policies_run = self.kept & kept, self._policies_run & policies
        narrow._expected = {}
        return narrow

    def asymptotic(self, members: Sequence[int]) -> Floats:
        """Of stage degrees along the same axes: forward and backward seconds per sequence, and untied parameters, those
        that are trained and those that are frozen.

        They are of asymptotic micro-batches: none takes less per sequence, since launches, latencies and unfilled tiles
        only add to it.
        """
        new = [number for number in members if np.isnan(self._asymptotic[:, number]).any()]
        if new:
            self.poll()
            self._make_asymptotic(new)
        return self._asymptotic[:, members]

    def _make_asymptotic(self, members: Sequence[int]) -> None:
        rows, sizes = np.arange(len(members)), np.full(len(members), ASYMPTOTIC_SEQUENCES, np.int64)
        overlapping, degrees = self._experts_overlap[np.array(members, np.int64)], [self.degrees[i] for i in members]
        together, along = self._together or (self,), self.structures.along(degrees[0].arranged)
        settings = [_bounding(each.setting) for each in together]
        made = layer_tables(settings, degrees, rows, sizes, overlapping, "seconds", along)
        for each, table in zip(together, made, strict=True):
            times = table.fastest()
            backward_s = times.input_gradient_s + times.weight_gradient_s
            untied, trained = (table.untied(self.states.tied_weights, field) for field in _PARAMETERS)
            found = times.forward_s / ASYMPTOTIC_SEQUENCES, backward_s / ASYMPTOTIC_SEQUENCES, trained, untied - trained
            each._asymptotic[:, members] = found

    def expect(self, skeletons: PlanSkeletons) -> None:
        """Skeletons that may be asked for: one call that makes many profiles along the same axes takes least."""
        self._expected = self._new(self.profile_keys(skeletons)[0])

    def _new(self, keys: Sequence[ProfileKey]) -> dict[Strategy, list[ProfileKey]]:
        """Profiles that are not made, by their axes."""
        groups: dict[Strategy, list[ProfileKey]] = {}
        for key in keys:
            if key not in self._profile_rows:
                groups.setdefault(self.structures.along(self.degrees[key[0]].arranged).strategy, []).append(key)
        return groups

    def profiles(self, skeletons: PlanSkeletons) -> Ints:
        """The profiles of skeletons; new ones are made together where they are along the same axes."""
        keys, kind = self.profile_keys(skeletons)
        for strategy, asked in self._new(keys).items():
            self.poll()
            members = sorted({*asked, *self._new(self._expected.pop(strategy, ())).get(strategy, ())})
            used = sorted({index for index, _, _ in members})
            where = {index: i for i, index in enumerate(used)}
            rows = np.array([where[index] for index, _, _ in members], np.int64)
            sizes = np.array([size for _, size, _ in members], np.int64)
            overlapping = np.array([overlaps for _, _, overlaps in members], np.bool_)
            together, degrees = self._together or (self,), [self.degrees[i] for i in used]
            along, settings = self.structures.along(degrees[0].arranged), [each.setting for each in together]
            made = layer_tables(settings, degrees, rows, sizes, overlapping, along=along)
            for each, table in zip(together, made, strict=True):
                each._add(members, table)
        return np.array([self._profile_rows[key] for key in keys], np.int64)[kind]

    def _add(self, members: Sequence[ProfileKey], table: LayerTable) -> None:
        first = sum(map(len, self._place))
        self._profile_rows |= {key: first + row for row, key in enumerate(members)}
        self._place.append(np.stack([np.full(len(members), len(self._tables)), np.arange(len(members))], axis=1))
        self._tables.append(table)
        self._columns.append(self._profile_columns(table))
        self._fastest.append(table.lower_bound())

    def profile_keys(self, skeletons: PlanSkeletons) -> tuple[list[ProfileKey], Ints]:
        """What makes the profiles of skeletons, sorted, and where each of these has its own.

        Stage degrees, micro-batch, and whether tokens to experts overlap.
        """
        setting, pipeline = self.setting, (skeletons.stages, skeletons.chunks, skeletons.microbatches)
        overlapping = self._experts_overlap[skeletons.degrees]
        overlapping &= pipeline_allows(setting.framework, setting.job, *pipeline)
        rows, kind = distinct(skeletons.degrees, skeletons.micro_batch, overlapping.astype(np.int64))
        return [(degrees, size, bool(overlaps)) for degrees, size, overlaps in rows], kind

    def _overlaps_run(self, skeletons: PlanSkeletons) -> Bools:
        """Whether skeletons can have the overlaps that their plans say, under every policy: skeletons × policies."""
        setting, framework = self.setting, self.setting.framework
        experts, gradients = self._said[skeletons.degrees].T
        never = np.array([gradient_overlap(framework, stages) == "never" for stages in (1, 2)])
        pipeline = (skeletons.stages, skeletons.chunks, skeletons.microbatches)
        allowed = np.asarray(pipeline_allows(framework, setting.job, *pipeline))
        refused = (experts & ~allowed) | (gradients & never[np.minimum(skeletons.stages - 1, 1)])
        recomputed = np.array([recompute_allows(framework, choice) for choice, _ in self.policies], np.bool_)
        return ~(refused[:, None] | (experts[:, None] & ~recomputed))

    def _profile_columns(self, table: LayerTable) -> ProfileColumns:
        facts = self.setting.alone
        weights, (every, trained) = self.states.tied_weights, _PARAMETERS
        return ProfileColumns(
            untied=table.untied(weights, every),
            tied=table.tied(weights, every),
            whole=table.column("gathered_parameters"),
            trained=table.untied(weights, trained)[:, : self.states.trained_columns],
            tied_trained=table.tied(weights, trained),
            dense=table.column("dense_parameters"),
            largest=table.column("largest_weight"),
            second=table.column("second_weight"),
            largest_trained=table.column("largest_trained"),
            loss=facts.loss_bytes(table.column("logits"), table.column("sharded_vocabulary")),
            stream=table.column("stream_bytes").max(axis=1),
        )

    def profile_arrays(self) -> ProfileColumns:
        """All profiles so far, for kernels."""
        if len(self._columns) > 1:
            self._columns[:] = [ProfileColumns(*(np.concatenate(parts) for parts in zip(*self._columns, strict=True)))]
        return self._columns[0]

    def fastest_rows(self) -> LayerColumns:
        """The least that any policy takes, in seconds and in bytes, of all profiles so far."""
        if len(self._fastest) > 1:
            self._fastest[:] = [LayerColumns(*(np.concatenate(parts) for parts in zip(*self._fastest, strict=True)))]
        return self._fastest[0]

    @property
    def layers(self) -> LayerColumns:
        """All layer rows so far, for kernels."""
        return self._pool.columns

    def expect_rows(self, profiles: Ints) -> None:
        """Profiles whose layer rows may be asked for (`PolicyRows.expect`)."""
        self._rows.expect(profiles)

    def first_rows(self, profiles: Ints, wanted: Bools) -> Ints:
        """Layer rows of profiles under the first policy; those under the others that are wanted follow."""
        return self._rows.first(self._tables, self._places, profiles, wanted, self.poll)

    @property
    def _places(self) -> Ints:
        if len(self._place) > 1:
            self._place[:] = [np.concatenate(self._place)]
        return self._place[0]

    def rows_with_work(self, rows: Ints, profiles: Ints, policies: Ints, states: Ints) -> Ints:
        """What layer rows become with the collectives of states that have some in every micro-batch."""
        codes = rows * 2**32 + states
        kinds, first = np.unique(codes, return_index=True)
        new = self._pool.unknown(kinds)
        if new.any():
            of = first[new]
            self._pool.code(kinds[new], self.sharded_rows(profiles[of], policies[of], states[of]))
        return self._pool.coded(codes)

    def offered(self, skeletons: PlanSkeletons) -> Bools:
        """Which policies skeletons may have, skeletons × policies.

        A share is of whole layers in equal stages, and overlaps and options that plans say suit pipeline and policy.
        """
        parts, back = np.unique(skeletons.stages * skeletons.chunks, return_inverse=True)
        whole = whole_layers(self.setting.job.model.num_layers, parts, self._shares) & self._policies_run
        return whole[back.reshape(-1)] & self._overlaps_run(skeletons)

    def _recompute_runs(self) -> Bools:
        """Whether policies run with the options that all plans of the space say."""
        job, framework = self.setting.job, self.setting.framework
        rules, said = rules_of(framework), self.degrees[0].plan if self.degrees else None
        if said is None:
            return np.ones(len(self.policies), np.bool_)
        plans = (replace(said, recompute=choice) for choice, _ in self.policies)
        return np.array([not broken(rules, "recompute", plan, job, framework) for plan in plans], np.bool_)

    def of_a_share(self, policies: Ints) -> Bools:
        """Whether policies hold for some of the layers, so for equal stages alone."""
        return self._shares[policies] < 1

    def sharded_rows(self, profiles: Ints, policies: Ints, states: Ints) -> LayerColumns:
        """Rows of profiles under a policy and a state whose collectives run in every micro-batch, one of each."""
        columns = LayerColumns(*(np.empty((len(profiles), len(self.setting.classes))) for _ in LayerColumns._fields))
        places = self._places[profiles]
        choices = list(dict.fromkeys(choice for choice, _ in self.policies))
        choice = np.array([choices.index(choice) for choice, _ in self.policies], np.int64)[policies]
        staged = self.states.staged[states]
        for number, stages in cast("list[list[int]]", np.unique(np.stack([choice, staged], axis=1), axis=0).tolist()):
            self.poll()
            (members,) = np.nonzero((choice == number) & (staged == stages))
            for start in range(0, len(members), TIMED_TOGETHER):
                some = members[start : start + TIMED_TOGETHER]
                of = (places[some], self._shares[policies[some]], states[some])
                for column, values in zip(columns, self._sharded(choices[number], stages, *of), strict=True):
                    column[some] = values
        return columns

    def _sharded(self, choice: Choice, stages: int, places: Ints, shares: Floats, states: Ints) -> LayerColumns:
        """The same for one choice of blocks, and one stage or several."""
        used, position = np.unique(places[:, 0], return_inverse=True)
        tables = [self._tables[number] for number in numbers(used)]
        sizes = np.array([table.num_profiles for table in tables], np.int64)
        rows = (np.cumsum(sizes) - sizes)[position.reshape(-1)] + places[:, 1]
        facts, allowed = self.setting.facts(stages), recompute_allows(self.setting.framework, choice)
        added = self.states.work[:, states]
        work = np.concatenate([table.work for table in tables], axis=1)[:, rows] + added
        made, none = (
            recomputed(np.concatenate([table.recompute(each, sharded=True) for table in tables], axis=1)[:, rows])
            for each in (choice, "none")
        )
        part = block_shares(shares, tables[0].blocks)
        mixed = made.mixed(none, part)
        if choice == "full" and not facts.saving.stops_early:
            # a full recompute launches the gathering of its weights too
            launches = part * added[FORWARD_KERNELS] * tables[0].blocks
            mixed = replace(mixed, added_kernels=mixed.added_kernels + launches)
        overlaps = joined_overlaps([(t.overlaps(stages, allowed=allowed), t.num_profiles) for t in tables])
        return timed(work, mixed, shaped_overlaps(overlaps, (rows, None)), facts.overheads.host_s)

    def tied_seconds(self, skeletons: PlanSkeletons, profiles: Ints, arrays: ProfileColumns) -> Floats:
        """Seconds of weights that several stages hold, summed once a step (`tied_seconds`).

        Skeletons × whether weights are sharded, since their gradients can be narrower then.
        """
        cluster, facts = self.setting.cluster, self.setting.staged
        tied_s = np.zeros((len(skeletons), 2))
        if not cluster.tiers or not self.states.tied_weights:
            return tied_s
        tier = tier_arrays(cluster.chip, cluster.tiers[-1], self.setting.efficiencies)
        first, after = self.partitions.end_counts
        for weight in range(len(self.states.tied_weights)):
            parameters = arrays.tied_trained[profiles, :, weight]
            both = ((parameters * (first > 0)).max(axis=1) > 0) & ((parameters * (after > 0)).max(axis=1) > 0)
            both |= (parameters.max(axis=1) > 0) & (skeletons.schedule == DUAL_PIPE)
            for sharded, width in enumerate((facts.reduction_bytes, facts.sharded_reduction_bytes)):
                seconds = tied_time(2, parameters.max(axis=1), width, tier).seconds
                tied_s[:, sharded] += np.where(both & (skeletons.stages > 1), seconds, 0.0)
        return tied_s

    def state_arrays(self) -> StateColumns:
        """All states so far, for kernels."""
        states = self.states
        return StateColumns(
            states.home - states.tied_home.sum(axis=2),
            states.tied_home,
            states.trained_home,
            states.reduction_s,
            states.gathering_s,
            states.vectors,
            states.flops,
        )

    def state_bytes(
        self, used: Floats, home: Floats, zero_stage: Ints, stages: Ints, microbatches: Ints | None = None
    ) -> Floats:
        """What the state of trained parameters takes under the ZeRO stage in effect, with one stage or with several.

        With a number of micro-batches, what is there of it beside activations: gradients may come later.
        """
        alone, staged = (state_bytes(used, home, zero_stage, sizes) for sizes in (self.facts.alone, self.facts.staged))
        whole = sum(alone)
        if self.facts.alone.late_gradients and microbatches is not None:
            whole = np.where(microbatches == 1, alone[0] + alone[2], whole)
        return np.where(stages > 1, sum(staged), whole)

    def frozen_bytes(self, used: Floats, home: Floats, zero_stage: Ints) -> Floats:
        """What frozen parameters take."""
        return np.asarray(frozen_bytes(used, home, zero_stage, self.facts.alone))

    def zero_stages(self) -> Ints:
        """The ZeRO stage of every state so far."""
        return self.states.zero_stages

    def sharded_work(self) -> Bools:
        """Whether every micro-batch gathers weights or reduces gradients, of every state so far."""
        return self.states.sharded_work

    @property
    def kinds(self) -> Ints:
        """What each class is: block, embedding or head."""
        return class_kinds(self.setting.classes)


def _bounding(setting: Setting) -> Setting:
    """The setting of tables that only bound: what no schedule of operators beats does, and is found much faster."""
    if setting.chip.sharing != "scheduled":
        return setting
    return replace(setting, chip=replace(setting.chip, sharing="asymptotic"))
