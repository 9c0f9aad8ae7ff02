"""Bounds before anything of a microbatch is known: of splits with a number of stages, and of shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.arrays import TOLERANCE, Floats, Ints
from dovetail.bounds.partition_bound_kernels import least_seconds
from dovetail.plans.skeletons import PlanSkeletons, group_sizes, plan_skeletons
from dovetail.plans.space import Space
from dovetail.plans.stage_degrees import StageDegrees
from dovetail.plans.zero_stage import effective_zero_stage
from dovetail.step.formulas import tensor_capacity
from dovetail.step.layer_tables import Setting
from dovetail.step.plan_kernels import LayerColumns, PlanColumns, ProfileColumns
from dovetail.step.plan_tables import Tables


class DegreeBounds:
    """What splits with a number of stages take at least: the seconds of endless microbatches, and their state."""

    def __init__(self, setting: Setting, space: Space, splits: Sequence[StageDegrees], tables: Tables) -> None:
        self.setting = setting
        self.space = space
        self.degrees = splits
        self.tables = tables
        forward, backward, self.parameters = tables.asymptotic()
        self._layers = forward, backward
        stages = np.array(space.pipeline_parallel, np.int64)
        copy = np.array([split.replica_chips for split in splits], np.int64)[:, None]
        least = np.array([split.min_replicas for split in splits], np.int64)[:, None]
        chips = setting.cluster.chips
        copies = np.maximum(chips // (copy * stages), 1)
        fits = (chips % (copy * stages) == 0) & (copies % least == 0)
        counts = tables.partitions.block_counts + sum(tables.partitions.end_counts)
        per_sequence = ((forward + backward) * counts).sum(axis=1)
        seconds = setting.job.global_batch / (copies * stages) * per_sequence[:, None]
        between = float(setting.alone.overheads.step_s)
        self._num_skeletons: dict[tuple[int, int, bool], int] = {}
        self.exists = fits.copy()
        for split, position in np.argwhere(fits).tolist():
            self.exists[split, position] = self.num_skeletons(split, position) > 0
        room = tensor_capacity(setting.capacity_bytes, tables.facts.context_bytes, tables.facts.allocator)
        context = np.array([split.plan.context_parallel for split in splits])[:, None]
        kept = self._least_bytes(copies * context, stages)
        state = (self.parameters * counts).sum(axis=1)[:, None] * kept / stages
        #: splits × stages; infinite where not even the state fits
        self.seconds = np.where(
            self.exists & (state <= room * (1 + TOLERANCE)), seconds * (1 - TOLERANCE) + between, np.inf
        )

    def _least_bytes(self, ranks: Ints, stages: Ints) -> Floats:
        """Bytes per parameter that every sharding keeps, over so many chips."""
        framework = self.setting.framework
        found = np.full(np.broadcast_shapes(ranks.shape, stages.shape), np.inf)
        for zero in self.space.zero_stage:
            offered = np.where(stages == 1, zero in framework.zero_stages, zero in framework.zero_stages_with_pipeline)
            effective = effective_zero_stage(np.full_like(stages, zero), stages)
            each = self.tables.state_bytes(np.ones(()), 1 / ranks, effective, stages)
            found = np.where(offered, np.minimum(found, each), found)
        return found

    def num_skeletons(self, split: int, position: int) -> int:
        """Skeletons of a split with a number of stages: the same for all with as many copies."""
        stages = self.space.pipeline_parallel[position]
        found = self.degrees[split]
        key = (stages, self.setting.cluster.chips // (found.replica_chips * stages), found.min_replicas == 1)
        if key not in self._num_skeletons:
            wanted = np.zeros((1, len(self.space.pipeline_parallel)), np.bool_)
            wanted[0, position] = True
            setting = self.setting
            every = plan_skeletons(setting.job, setting.cluster, setting.framework, self.space, [found], wanted)
            self._num_skeletons[key] = len(every)
        return self._num_skeletons[key]

    def state_bytes(self, found: PlanSkeletons) -> Floats:
        """What the state of one layer of every class keeps at least: shapes × classes."""
        context = np.array([split.plan.context_parallel for split in self.degrees])[found.degrees]
        return self.parameters[found.degrees] * self._least_bytes(found.replicas * context, found.stages)[:, None]

    def skeleton_bounds(self, found: PlanSkeletons, limit_s: float) -> Floats:
        """What shapes take at least, were their microbatches endless but for the pipeline's filling and draining."""
        n, classes = len(found), self.parameters.shape[1]
        between = float(self.setting.alone.overheads.step_s)
        forward, backward = (part[found.degrees] * found.micro_batch[:, None] for part in self._layers)
        none, zero = np.zeros((n, classes)), np.zeros(n, np.int64)
        rows = np.arange(n)
        plans = PlanColumns(
            layer=rows,
            profile=zero,
            state=zero,
            partition=zero,
            schedule=found.schedule,
            stages=found.stages,
            microbatches=found.microbatches,
            chunks=found.chunks,
            group=group_sizes(found.stages, found.microbatches, found.chunks),
            zero_stage=zero,
            sending_s=np.zeros(n),
            delay_s=np.zeros(n),
        )
        nothing = np.zeros((1, classes))
        cells = ProfileColumns(
            nothing, np.zeros((1, classes, 0)), nothing, nothing, nothing, nothing, nothing, np.zeros(1)
        )
        bounds = least_seconds(
            plans,
            rows,
            LayerColumns(forward, backward, none, none, none),
            cells,
            self.state_bytes(found),
            self.tables.partitions.chain(listed=False),
            self.tables.facts,
            self.setting.capacity_bytes,
            np.full(n, (limit_s - between) * (1 + 2 * TOLERANCE)),
        )
        return bounds * (1 - TOLERANCE) + between
