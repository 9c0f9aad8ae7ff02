"""Lower bounds before any micro-batch is profiled: of stage degrees with a stage count, and of skeletons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.arrays import TOLERANCE, Floats, Ints
from dovetail.bounds.hardware_bound import hardware_bound
from dovetail.bounds.partition_bound_kernels import BoundRows, least_seconds
from dovetail.layout.strategy import Strategy
from dovetail.plans.plan_batch import PlanBatch
from dovetail.plans.skeletons import PlanSkeletons, group_sizes, plan_skeletons, skeleton_choices
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import StageDegrees
from dovetail.plans.zero_stage import effective_zero_stage
from dovetail.step.formulas import between_seconds, tensor_capacity
from dovetail.step.layer_tables import Setting, by_structure
from dovetail.step.plan_columns import LayerColumns, PlanColumns, ProfileColumns
from dovetail.step.plan_tables import Tables

#: Skeletons of stage degrees with a stage count, by choices of the space, stages, replicas, and whether experts
#: need none of these.
KnownSkeletons = dict[tuple[tuple[object, ...], int, int, bool], PlanSkeletons]


class DegreeBounds:
    """Lower bounds of stage degrees × stage counts: the hardware's, then from asymptotic micro-batches and state."""

    def __init__(
        self,
        setting: Setting,
        space: Space,
        degrees: Sequence[StageDegrees],
        tables: Tables,
        known: KnownSkeletons | None = None,
    ) -> None:
        self.setting = setting
        self.space = space
        self.degrees = degrees
        self.tables = tables
        classes = len(setting.classes)
        #: seconds per sequence of every class, forward and backward, and its untied parameters, those that are trained
        #: and those that are frozen; 0 before `refine`
        self._layers = np.zeros((2, len(degrees), classes))
        self._parameters = np.zeros((2, len(degrees), classes))
        self._unrefined = list(by_structure(degrees).values())
        self._stages = stages = np.array(space.pipeline_parallel, np.int64)
        replica_chips = np.array([row.replica_chips for row in degrees], np.int64)[:, None]
        min_replicas = np.array([row.min_replicas for row in degrees], np.int64)[:, None]
        chips = setting.cluster.chips
        self._replicas = np.maximum(chips // (replica_chips * stages), 1)
        fits = (chips % (replica_chips * stages) == 0) & (self._replicas % min_replicas == 0) & tables.kept[:, None]
        #: may be shared by bounds of the same job on as many chips
        self._skeletons: KnownSkeletons = {} if known is None else known
        self._choices = skeleton_choices(space)
        self.exists = fits.copy()
        for row, position in np.argwhere(fits).tolist():
            self.exists[row, position] = len(self.skeletons(row, position)) > 0
        #: stage degrees × stage counts: the least bytes of state on a chip
        self.least_state = np.zeros(self.exists.shape)
        #: stage degrees × stage counts; infinite where not even the state fits
        self.seconds = np.where(self.exists, self._physical(self._replicas, stages), np.inf)

    def refine(self, limit_s: float = float("inf")) -> None:
        """Raises the bounds of all pairs below a limit by what asymptotic micro-batches of their layers take.

        Stage degrees along the same axes are profiled together, and none twice.
        """
        refined = [members for members in self._unrefined if np.any(self.seconds[members] < limit_s)]
        together: dict[Strategy, list[int]] = {}
        for members in refined:
            self._unrefined.remove(members)
            along = self.tables.structures.along(self.degrees[members[0]].arranged)
            together.setdefault(along.strategy, []).extend(members)
        for members in together.values():
            found = self.tables.asymptotic(members)
            self._layers[:, members], self._parameters[:, members] = found[:2], found[2:]
            self._raise(members)

    def _raise(self, members: Sequence[int]) -> None:
        setting, tables, stages, replicas = self.setting, self.tables, self._stages, self._replicas[members]
        counts = tables.partitions.block_counts + sum(tables.partitions.end_counts)
        per_sequence = (self._layers[:, members].sum(axis=0) * counts).sum(axis=1)
        seconds = setting.job.global_batch / (replicas * stages) * per_sequence[:, None]
        seconds = seconds * (1 - TOLERANCE) + float(setting.alone.overheads.step_s)
        capacity = tensor_capacity(setting.capacity_bytes, tables.facts.context_bytes, tables.facts.allocator)
        context = np.array([self.degrees[row].plan.context_parallel for row in members])[:, None]
        of_trained, of_frozen = self._least_bytes(replicas * context, stages)
        trained, frozen = (self._parameters[:, members] * counts).sum(axis=2)[:, :, None]
        state = (trained * of_trained + frozen * of_frozen) / stages
        self.least_state[members] = state
        self.seconds[members] = np.where(
            state <= capacity * (1 + TOLERANCE), np.maximum(self.seconds[members], seconds), np.inf
        )

    def _physical(self, replicas: Ints, stages: Ints) -> Floats:
        """The hardware bound (L0) of pairs: of the smallest micro-batches, without bubbles or gathered weights.

        What tensor parallelism sends grows with its degree, which an asymptotic micro-batch may hide.
        """
        columns, (count, width) = self.tables.columns, replicas.shape
        plans = PlanBatch(
            tensor_parallel=columns.tensor_parallel[:, None],
            context_parallel=columns.context_parallel[:, None],
            data_parallel=replicas,
            pipeline_parallel=np.broadcast_to(stages, (count, width)),
            pipeline_schedule=np.array("dualpipe"),
            micro_batch=np.array(min(self.space.micro_batch)),
            expert_parallel=columns.expert_parallel[:, None],
            expert_tensor_parallel=columns.expert_tensor_parallel[:, None],
            sequence_parallel=columns.sequence_parallel[:, None],
            zero_stage=np.zeros((), np.int64),
            zero_group=np.ones((), np.int64),
        )
        return hardware_bound(self.setting.job, self.setting.cluster, plans)

    def _least_bytes(self, ranks: Ints, stages: Ints, microbatches: Ints | None = None) -> tuple[Floats, Floats]:
        """The fewest bytes per parameter, trained and frozen, of any sharding over so many chips."""
        framework, tables, whole = self.setting.framework, self.tables, np.ones(())
        trained, frozen = np.full((2, *np.broadcast_shapes(ranks.shape, stages.shape)), np.inf)
        for zero in self.space.zero_stage:
            offered = np.where(stages == 1, zero in framework.zero_stages, zero in framework.zero_stages_with_pipeline)
            effective = effective_zero_stage(np.full_like(stages, zero), stages)
            each = tables.state_bytes(whole, 1 / ranks, effective, stages, microbatches)
            trained = np.where(offered, np.minimum(trained, each), trained)
            frozen = np.where(offered, np.minimum(frozen, tables.frozen_bytes(whole, 1 / ranks, effective)), frozen)
        return trained, np.where(np.isfinite(trained), frozen, 0.0)

    def skeletons(self, row: int, position: int) -> PlanSkeletons:
        """The skeletons of stage degrees with a stage count: alike for all with as many replicas."""
        stages = self.space.pipeline_parallel[position]
        degrees = self.degrees[row]
        replicas = self.setting.cluster.chips // (degrees.replica_chips * stages)
        key = (self._choices, stages, replicas, degrees.min_replicas == 1)
        if key not in self._skeletons:
            selected = np.zeros((1, len(self.space.pipeline_parallel)), np.bool_)
            selected[0, position] = True
            setting = self.setting
            self._skeletons[key] = plan_skeletons(
                setting.job, setting.cluster, setting.framework, self.space, [degrees], selected
            )
        return self._skeletons[key]

    def state_bytes(self, skeletons: PlanSkeletons) -> Floats:
        """The smallest state of one layer of every class beside activations: skeletons × classes."""
        context = np.array([each.plan.context_parallel for each in self.degrees])[skeletons.degrees]
        least = self._least_bytes(skeletons.replicas * context, skeletons.stages, skeletons.microbatches)
        trained, frozen = (
            parameters[skeletons.degrees] * each[:, None]
            for parameters, each in zip(self._parameters, least, strict=True)
        )
        return trained + frozen

    def skeleton_bounds(self, skeletons: PlanSkeletons, limit_s: float) -> Floats:
        """Lower bounds of skeletons: asymptotic micro-batches, with the pipeline's fill and drain."""
        n, classes, added = len(skeletons), self._parameters.shape[2], self.setting.alone.overheads
        between = between_seconds(float(added.microbatch_s), float(added.step_s), skeletons.microbatches)
        forward, backward = (part[skeletons.degrees] * skeletons.micro_batch[:, None] for part in self._layers)
        none, zero = np.zeros((n, classes)), np.zeros(n, np.int64)
        rows = np.arange(n)
        plans = PlanColumns(
            layer=rows,
            profile=zero,
            state=zero,
            partition=zero,
            schedule=skeletons.schedule,
            stages=skeletons.stages,
            microbatches=skeletons.microbatches,
            chunks=skeletons.chunks,
            group=group_sizes(skeletons.stages, skeletons.microbatches, skeletons.chunks),
            zero_stage=zero,
            sending_s=np.zeros(n),
            delay_s=np.zeros(n),
        )
        nothing = np.zeros((1, classes))
        profiles = ProfileColumns(
            untied=nothing,
            tied=np.zeros((1, classes, 0)),
            whole=nothing,
            trained=nothing[:, :0],
            tied_trained=np.zeros((1, classes, 0)),
            dense=nothing,
            largest=nothing,
            second=nothing,
            largest_trained=nothing,
            loss=nothing,
            stream=np.zeros(1),
        )
        bounds = least_seconds(
            plans,
            BoundRows(rows, rows, rows),
            LayerColumns(forward, backward, none, none, none, none),
            profiles,
            self.state_bytes(skeletons),
            self.tables.partitions.chain(listed=False),
            self.tables.facts,
            self.setting.capacity_bytes,
            (limit_s - between) * (1 + 2 * TOLERANCE),
        )
        return bounds * (1 - TOLERANCE) + between
