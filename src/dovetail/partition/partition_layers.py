"""Where to partition the layers, and what each of them recomputes; with a lower bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from dovetail.arrays import TOLERANCE
from dovetail.frozen import frozen
from dovetail.partition.interleaved_partitions import InterleavedPartitions
from dovetail.partition.layer_chain import LayerChain, LayerPartition
from dovetail.partition.plain_partitions import PlainPartitions
from dovetail.plans.pipeline_schedule import PipelineSchedule


@frozen
class PartitionSolution:
    """The best partition and a lower bound over all of them; None where none fits."""

    status: Literal["optimal", "feasible", "infeasible"]
    placement: LayerPartition | None
    seconds: float
    lower_bound_s: float

    @property
    def gap(self) -> float:
        """How far the answer may be from the best, as a part of it."""
        return 1 - self.lower_bound_s / self.seconds if self.placement is not None and self.seconds else 0.0


def partition_layers(
    chain: LayerChain, poll: Callable[[], None] = lambda: None, *, below_s: float = float("inf")
) -> PartitionSolution:
    """The partition with the least step time; of equal ones the first found, which the input alone decides.

    Partitions that take `below_s` or longer may be left out.

    `poll` is called from time to time; what it raises ends the search.
    """
    assert chain.pipeline.schedule is not PipelineSchedule.DUAL_PIPE, "both directions hold the same partition"
    interleaved = chain.pipeline.schedule is PipelineSchedule.INTERLEAVED
    search = InterleavedPartitions(chain, poll) if interleaved else PlainPartitions(chain, poll, below_s=below_s)
    bound = search.solve()
    if search.placement is None:
        if search.seconds == below_s < float("inf") and bound < below_s * (1 - TOLERANCE):
            return partition_layers(chain, poll)  # given up: whether one is below is open
        return PartitionSolution("infeasible", None, float("inf"), float("inf"))
    proven = bound >= search.seconds * (1 - TOLERANCE)
    return PartitionSolution(
        "optimal" if proven else "feasible", search.placement, search.seconds, min(bound, search.seconds)
    )
