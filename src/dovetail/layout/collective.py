"""A collective of a layer: who takes part, on which tensor, when; its bytes for any sizes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from dovetail.frozen import frozen
from dovetail.graph import Tensor
from dovetail.graph.size import Size, Sizes, divided, times
from dovetail.graph.tensor import Element
from dovetail.layout.convert import CollectiveKind
from dovetail.layout.mesh import degree


class CollectivePhase(StrEnum):
    """When a collective happens: in each micro-batch's forward or backward, or at the end of the step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


@frozen
class Collective:
    """One collective; gathers and scatters state the whole tensor of the group, as NCCL does."""

    kind: CollectiveKind
    axes: tuple[str, ...]
    tensor: Tensor
    #: axes that shard the tensor on its larger side: after a gather, before any other collective
    sharded_by: tuple[str, ...]
    #: the operator that needs it
    user: str
    phase: CollectivePhase
    #: numbers per point, for exchanged statistics
    values: int = 1
    #: a permute that passes every shard round the whole ring, instead of one hop to the next chip
    streamed: bool = False

    def bytes(self, sizes: Sizes, axis_sizes: Mapping[str, Size], widths: Mapping[Element, int]) -> Size:
        """Bytes on one chip: of the gathered result, the scattered input, or what is reduced or exchanged."""
        whole = times(self.tensor.bytes(sizes, widths), self.values)
        return divided(whole, degree(self.sharded_by, axis_sizes))

    def group_size(self, axis_sizes: Mapping[str, Size]) -> Size:
        """How many chips take part."""
        return degree(self.axes, axis_sizes)
