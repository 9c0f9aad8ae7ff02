"""The sizes a layer is profiled at: numbers, or arrays over plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.arrays import Floats
from dovetail.graph.size import Size, Sizes, as_array
from dovetail.graph.tensor import Element, Tensor
from dovetail.layout import Collective, Layout, local_bytes

_ONE_BYTE = dict.fromkeys(Element, 1)


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Sizes of the layer's dims and of the mesh axes, and bytes per element."""

    dims: Sizes
    axes: Mapping[str, Size]
    widths: Mapping[Element, int]

    def bytes(self, tensor: Tensor, layout: Layout) -> Floats:
        """Bytes of a tensor on one chip."""
        return as_array(local_bytes(tensor, layout, self.dims, self.axes, self.widths))

    def elements(self, tensor: Tensor, layout: Layout) -> Floats:
        """Elements of a tensor on one chip."""
        return as_array(local_bytes(tensor, layout, self.dims, self.axes, _ONE_BYTE))

    def collective_bytes(self, collective: Collective) -> Floats:
        """Bytes of a collective on one chip."""
        return as_array(collective.bytes(self.dims, self.axes, self.widths))
