"""What a framework does with a job on a cluster, as the numbers that kernels take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.plans.stage_degrees import StageDegrees
from dovetail.step.layer_tables import Setting
from dovetail.step.offload import host_state_bytes, single_rates, update_rates
from dovetail.step.plan_columns import FrameworkColumns


def framework_columns(setting: Setting, degrees: Sequence[StageDegrees]) -> FrameworkColumns:
    """Those of a search; which communication is hidden follows from what all its plans say."""
    overlaps = [setting.alone.overlaps, setting.staged.overlaps]
    if degrees:
        # the switches of the state are the same in all plans of a space
        plan = degrees[0].plan
        overlaps = [setting.overlaps(stages, setting.switches(plan, stages)) for stages in (1, 2)]
    return FrameworkColumns(
        alone=setting.alone.parameter_bytes,
        staged=setting.staged.parameter_bytes,
        hidden_reduction=np.array([float(o.gradient_reduction) for o in overlaps]),
        hidden_gathering=np.array([float(o.updated_weights) for o in overlaps]),
        min_overlap_s=setting.alone.overlaps.min_overlap_s,
        update=single_rates(update_rates(setting.alone, setting.chip, setting.cluster)),
        hosted=host_state_bytes(setting.alone),
        hosts_activations="activations" in setting.alone.offload,
        host_bytes=setting.cluster.chip.host.chip_bytes(setting.cluster.chips),
        context_bytes=setting.alone.context_bytes,
        allocator=setting.alone.allocator_overhead,
    )
