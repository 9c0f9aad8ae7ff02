"""How a tensor sits on the mesh: per axis sharded along a dim, a partial sum, or replicated."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dovetail.frozen import frozen
from dovetail.graph import Tensor
from dovetail.graph.size import Size, Sizes, divided
from dovetail.graph.tensor import Element
from dovetail.layout.mesh import degree

#: Placements along an axis that are no dim: a sum not yet complete, and a flat shard of a weight's bytes.
PARTIAL = "+"
FLAT = "/"


@frozen
class Layout:
    """Axis → dim, PARTIAL or FLAT; axes that are not named replicate. The order along one dim is the mesh's."""

    placements: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, placements: Mapping[str, str]) -> Layout:
        """The layout with these placements, in canonical order."""
        return cls(tuple(sorted(placements.items())))

    def __getitem__(self, axis: str) -> str | None:
        for name, placement in self.placements:
            if name == axis:
                return placement
        return None

    def as_dict(self) -> dict[str, str]:
        """Axis → placement."""
        return dict(self.placements)

    def without(self, axes: Collection[str]) -> Layout:
        """The same, replicated along these axes."""
        return Layout(tuple(each for each in self.placements if each[0] not in axes))

    @property
    def partial(self) -> tuple[str, ...]:
        """Axes along which the tensor is a sum not yet complete."""
        return tuple(a for a, p in self.placements if p == PARTIAL)

    @property
    def sharded(self) -> tuple[str, ...]:
        """Axes along which the tensor is sharded."""
        return tuple(a for a, p in self.placements if p != PARTIAL)


REPLICATED = Layout()


def limited(tensor: Tensor, layout: Layout) -> Layout:
    """A layout without the dims the tensor does not have."""
    return Layout.of({a: d for a, d in layout.placements if d in tensor.dims})


def gradient_of_stream(tensor: Tensor, stream: Layout) -> Layout:
    """How layers hand on the gradient of a tensor between them.

    What is made of weights alone is the same for all sequences: its gradient stays the terms of a sum over these.
    """
    placed = limited(tensor, stream)
    if "batch" in tensor.dims:
        return placed
    return Layout.of(placed.as_dict() | {axis: PARTIAL for axis, dim in stream.placements if dim == "batch"})


def local_bytes(
    tensor: Tensor, layout: Layout, sizes: Sizes, axis_sizes: Mapping[str, Size], widths: Mapping[Element, int]
) -> Size:
    """Bytes of a tensor on one chip."""
    return divided(tensor.bytes(sizes, widths), degree(layout.sharded, axis_sizes))
