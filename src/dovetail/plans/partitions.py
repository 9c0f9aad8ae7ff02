"""Which partitions of a model's layers into stages are tried one by one, and where any is allowed."""

from __future__ import annotations

from dovetail.frameworks.framework import UnevenStages
from dovetail.plans.derive import even_layers
from dovetail.plans.domains import Partition
from dovetail.plans.pipeline_schedule import PipelineSchedule

Blocks = tuple[int, ...]

#: Schedules for which the partition solver chooses freely.
FREE = frozenset({PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZB_H1})


def runs_partition(layers: Blocks, uneven: UnevenStages) -> bool:
    """Whether a framework with these uneven stages runs a partition."""
    match uneven:
        case "never":
            return len(set(layers)) <= 1
        case "ends":
            return len(set(layers[1:-1])) <= 1
        case "any":
            return True


def listed_partitions(
    blocks: int, stages: int, chunks: int, schedule: str, allowed: Partition, uneven: UnevenStages
) -> list[Blocks]:
    """The partitions that are tried one by one: the even one, and those whose first and last part differ.

    Parts between the first and the last are alike: as many blocks as even parts would have, rounded up, or one more;
    the first and the last have no more than that.
    """
    parts = stages * chunks
    even = even_layers(parts, blocks)
    partitions = [even] if runs_partition(even, uneven) else []
    if allowed == "even" or schedule == PipelineSchedule.DUAL_PIPE or parts == 1:
        return partitions
    even_size = -(-blocks // parts)
    for size in (even_size, even_size + 1):
        ends = blocks - (parts - 2) * size
        partitions += [
            (first, *[size] * (parts - 2), ends - first)
            for first in range(max(0, ends - size), min(size, ends) + 1)
            if ends >= 0
        ]
    return list(dict.fromkeys(partitions))


def is_free(schedule: str, allowed: Partition, stages: int) -> bool:
    """Whether any partition is allowed: then the partition solver chooses."""
    return allowed == "any" and schedule in FREE and stages > 1
