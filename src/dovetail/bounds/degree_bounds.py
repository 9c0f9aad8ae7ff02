"""Lower bounds before any micro-batch is profiled: of stage degrees with a stage count, and of skeletons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.arrays import TOLERANCE, Floats, Ints
from dovetail.bounds.partition_bound_kernels import least_seconds
from dovetail.plans.skeletons import PlanSkeletons, group_sizes, plan_skeletons
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import StageDegrees
from dovetail.plans.zero_stage import effective_zero_stage
from dovetail.step.formulas import between_seconds, tensor_capacity
from dovetail.step.layer_tables import Setting
from dovetail.step.plan_columns import LayerColumns, PlanColumns, ProfileColumns
from dovetail.step.plan_tables import Tables


class DegreeBounds:
    """Lower bounds of stage degrees × stage counts, from asymptotic micro-batches and the state's bytes."""

    def __init__(self, setting: Setting, space: Space, degrees: Sequence[StageDegrees], tables: Tables) -> None:
        self.setting = setting
        self.space = space
        self.degrees = degrees
        self.tables = tables
        stages = np.array(space.pipeline_parallel, np.int64)
        replica_chips = np.array([row.replica_chips for row in degrees], np.int64)[:, None]
        min_replicas = np.array([row.min_replicas for row in degrees], np.int64)[:, None]
        chips = setting.cluster.chips
        replicas = np.maximum(chips // (replica_chips * stages), 1)
        fits = (chips % (replica_chips * stages) == 0) & (replicas % min_replicas == 0) & tables.kept[:, None]
        self._skeletons: dict[tuple[int, int, bool], PlanSkeletons] = {}
        self.exists = fits.copy()
        for row, position in np.argwhere(fits).tolist():
            self.exists[row, position] = len(self.skeletons(row, position)) > 0
        # where degrees divide nothing, no layer is worth a look
        none = np.zeros((len(degrees), len(setting.classes)))
        forward, backward, self.parameters = tables.asymptotic if self.exists.any() else (none, none, none)
        self._layers = forward, backward
        counts = tables.partitions.block_counts + sum(tables.partitions.end_counts)
        per_sequence = ((forward + backward) * counts).sum(axis=1)
        seconds = setting.job.global_batch / (replicas * stages) * per_sequence[:, None]
        between = float(setting.alone.overheads.step_s)
        capacity = tensor_capacity(setting.capacity_bytes, tables.facts.context_bytes, tables.facts.allocator)
        context = np.array([row.plan.context_parallel for row in degrees])[:, None]
        bytes_each = self._least_bytes(replicas * context, stages)
        #: stage degrees × stage counts: the least bytes of state on a chip
        self.least_state = state = (self.parameters * counts).sum(axis=1)[:, None] * bytes_each / stages
        #: stage degrees × stage counts; infinite where not even the state fits
        self.seconds = np.where(
            self.exists & (state <= capacity * (1 + TOLERANCE)), seconds * (1 - TOLERANCE) + between, np.inf
        )

    def _least_bytes(self, ranks: Ints, stages: Ints, microbatches: Ints | None = None) -> Floats:
        """The fewest bytes per parameter of any sharding over so many chips (`Tables.state_bytes`)."""
        framework = self.setting.framework
        smallest = np.full(np.broadcast_shapes(ranks.shape, stages.shape), np.inf)
        for zero in self.space.zero_stage:
            offered = np.where(stages == 1, zero in framework.zero_stages, zero in framework.zero_stages_with_pipeline)
            effective = effective_zero_stage(np.full_like(stages, zero), stages)
            each = self.tables.state_bytes(np.ones(()), 1 / ranks, effective, stages, microbatches)
            smallest = np.where(offered, np.minimum(smallest, each), smallest)
        return smallest

    def skeletons(self, row: int, position: int) -> PlanSkeletons:
        """The skeletons of stage degrees with a stage count: alike for all with as many replicas."""
        stages = self.space.pipeline_parallel[position]
        degrees = self.degrees[row]
        key = (stages, self.setting.cluster.chips // (degrees.replica_chips * stages), degrees.min_replicas == 1)
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
        each = self._least_bytes(skeletons.replicas * context, skeletons.stages, skeletons.microbatches)
        return self.parameters[skeletons.degrees] * each[:, None]

    def skeleton_bounds(self, skeletons: PlanSkeletons, limit_s: float) -> Floats:
        """Lower bounds of skeletons: asymptotic micro-batches, with the pipeline's fill and drain."""
        n, classes, added = len(skeletons), self.parameters.shape[1], self.setting.alone.overheads
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
            dense=nothing,
            largest=nothing,
            second=nothing,
            largest_trained=nothing,
            loss=nothing,
            stream=np.zeros(1),
        )
        bounds = least_seconds(
            plans,
            rows,
            LayerColumns(forward, backward, none, none, none, none),
            profiles,
            self.state_bytes(skeletons),
            self.tables.partitions.chain(listed=False),
            self.tables.facts,
            self.setting.capacity_bytes,
            (limit_s - between) * (1 + 2 * TOLERANCE),
        )
        return bounds * (1 - TOLERANCE) + between
