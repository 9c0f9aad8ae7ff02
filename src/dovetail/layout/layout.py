"""How a tensor sits on the mesh: per axis sharded along a dim, a partial sum, or replicated."""

from __future__ import annotations

from collections.abc import Mapping

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

    @property
    def partial(self) -> tuple[str, ...]:
        """Axes along which the tensor is a sum not yet complete."""
        return tuple(a for a, p in self.placements if p == PARTIAL)

    @property
    def sharded(self) -> tuple[str, ...]:
        """Axes along which the tensor is sharded."""
        return tuple(a for a, p in self.placements if p != PARTIAL)


REPLICATED = Layout()


def local_bytes(
    tensor: Tensor, layout: Layout, sizes: Sizes, axis_sizes: Mapping[str, Size], widths: Mapping[Element, int]
) -> Size:
    """Bytes of a tensor on one chip."""
    return divided(tensor.bytes(sizes, widths), degree(layout.sharded, axis_sizes))
