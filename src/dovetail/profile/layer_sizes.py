"""The sizes a layer is profiled at: numbers, or arrays over plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dovetail.arrays import Floats
from dovetail.graph.size import Size, Sizes, as_array
from dovetail.graph.tensor import Element, Tensor
from dovetail.layout import Collective, Layout, PlacedLayer, local_bytes

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


@dataclass(frozen=True, slots=True)
class VersionSizes:
    """Bytes of a layer's tensors in their layouts: of what travels around a ring two shards are there at a time."""

    sizes: LayerSizes
    #: tensor and layout → the layout that travels to or from it
    travelling: Mapping[tuple[str, Layout], Layout]

    @staticmethod
    def of(placed: PlacedLayer, sizes: LayerSizes) -> VersionSizes:
        """Those of a placed layer."""
        travelling: dict[tuple[str, Layout], Layout] = {}
        for version in (*placed.versions, *placed.backward_versions):
            if version.made_of is not None and any(collective.streamed for collective in version.collectives):
                travelling[version.tensor.name, version.layout] = version.made_of
                travelling[version.tensor.name, version.made_of] = version.layout
        return VersionSizes(sizes, travelling)

    def bytes(self, tensor: Tensor, layout: Layout) -> Floats:
        """Bytes of a tensor on one chip."""
        whole, other = self.sizes.bytes(tensor, layout), self.travelling.get((tensor.name, layout))
        return whole if other is None else np.minimum(whole, 2 * self.sizes.bytes(tensor, other))
