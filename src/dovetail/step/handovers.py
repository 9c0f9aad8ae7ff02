"""What a stage hands over to the next, of plans as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats, Ints, distinct
from dovetail.plans.arrange import arrange, stage_hops
from dovetail.plans.skeletons import AXIS_ORDERS, NAMES, PlanSkeletons
from dovetail.plans.stage_degrees import StageDegrees
from dovetail.step.layer_tables import Setting
from dovetail.step.times import handover_seconds, is_routed


class Handovers:
    """Activations that stages send on, and their gradients on the way back."""

    def __init__(self, setting: Setting, degrees: Sequence[StageDegrees]) -> None:
        self._setting = setting
        self._degrees = degrees
        #: chips of a replica's stage, and parts that they share the stream in
        self._stream = np.array(
            [(each.plan.tensor_parallel * each.plan.context_parallel, each.plan.stream_replicas) for each in degrees],
            np.int64,
        ).T.reshape(2, -1)

    def seconds(self, skeletons: PlanSkeletons, streams: Floats) -> tuple[Floats, Floats]:
        """Seconds that stages spend on sending, and seconds that receivers wait (`transfer_seconds`)."""
        cluster = self._setting.cluster
        if not cluster.tiers:
            return np.zeros(len(skeletons)), np.zeros(len(skeletons))
        replica_chips, parts = self._stream[:, skeletons.degrees]
        neighbours = 2 * replica_chips * np.where(skeletons.inside == 1, 1, skeletons.replicas)
        hops = self._hops(skeletons) if is_routed(cluster) else np.zeros(len(skeletons), np.int64)
        seconds = handover_seconds(streams / parts, neighbours, hops, cluster, self._setting.efficiencies)
        seconds = np.where(skeletons.stages > 1, seconds, 0.0)
        hidden = np.array([NAMES[s] in self._setting.framework.overlaps.pipeline_transfers for s in range(len(NAMES))])
        overlapped = hidden[skeletons.schedule] | (skeletons.stages == 1)
        return np.where(overlapped, 0.0, seconds), np.where(overlapped, seconds, 0.0)

    def _hops(self, skeletons: PlanSkeletons) -> Ints:
        """Links of a grid between neighbouring stages; 0 without a grid."""
        columns = (skeletons.degrees, skeletons.replicas, skeletons.stages, skeletons.inside)
        keys, kind = distinct(*columns)
        hops: list[int] = []
        for index, replicas, stages, inside in keys:
            plan, order = self._degrees[index].plan, AXIS_ORDERS[inside]
            plan = replace(plan, data_parallel=replicas, pipeline_parallel=stages, axis_order=order, zero_stage=0)
            plan = replace(plan, zero_group=replicas * plan.context_parallel)
            hops.append(
                stage_hops(arrange(plan, self._setting.graph, self._setting.cluster), self._setting.cluster) or 0
            )
        return np.array(hops, np.int64)[kind]
