"""The sizes a layer is profiled at: numbers, or arrays over plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.graph import LayerGraph
from dovetail.graph.size import DimSize, SettledSizes, Size, Sizes, as_array, divided, resolve
from dovetail.graph.tensor import NF4_SCALE_BYTES, Element, Tensor
from dovetail.layout import Collective, Layout, PlacedLayer, PlacedWeight, degree, local_bytes

_BytesKey = tuple[tuple[str, ...], Element, Layout]
_ElementsKey = tuple[tuple[str, ...], Layout]


@frozen
class LayerSizes:
    """Sizes of the layer's dims and of the mesh axes, and bytes per element."""

    dims: Sizes
    axes: Mapping[str, Size]
    widths: Mapping[Element, int]
    #: what tensors of these dims, elements and layouts were found to have
    _bytes: dict[_BytesKey, Floats] = field(default_factory=dict[_BytesKey, Floats], init=False, repr=False)
    _elements: dict[_ElementsKey, Floats] = field(default_factory=dict[_ElementsKey, Floats], init=False, repr=False)

    def bytes(self, tensor: Tensor, layout: Layout) -> Floats:
        """Bytes of a tensor on one chip."""
        key = (tensor.dims, tensor.element, layout)
        if (known := self._bytes.get(key)) is None:
            known = as_array(local_bytes(tensor, layout, self.dims, self.axes, self.widths))
            self._bytes[key] = known
        return known

    def elements(self, tensor: Tensor, layout: Layout) -> Floats:
        """Elements of a tensor on one chip."""
        key = (tensor.dims, layout)
        if (known := self._elements.get(key)) is None:
            known = as_array(divided(tensor.points(self.dims), degree(layout.sharded, self.axes)))
            self._elements[key] = known
        return known

    def sent(self, weight: PlacedWeight, layout: Layout) -> Floats:
        """Parameters of a weight on one chip, those of 4 bits as so many of the job's elements as have their bytes."""
        elements = self.elements(weight.tensor, layout)
        return elements / (2 * self.widths[Element.COMPUTE]) if weight.tensor.element is Element.NF4 else elements

    def stored(self, weight: PlacedWeight, layout: Layout) -> Floats:
        """The same with the scales of 4-bit weights, which ZeRO neither shards nor sends."""
        if weight.tensor.element is not Element.NF4:
            return self.sent(weight, layout)
        scales = NF4_SCALE_BYTES * self.elements(weight.tensor, weight.use)
        return self.sent(weight, layout) + scales / self.widths[Element.COMPUTE]

    def dequantized(self, placed: PlacedLayer) -> dict[str, Floats]:
        """Weight of 4 bits → bytes of the copy that its products multiply."""
        narrow = (w for w in placed.weights if w.tensor.element is Element.NF4)
        return {w.tensor.name: self.widths[Element.COMPUTE] * self.elements(w.tensor, w.use) for w in narrow}

    def collective_bytes(self, collective: Collective) -> Floats:
        """Bytes of a collective on one chip."""
        return as_array(collective.bytes(self.dims, self.axes, self.widths))


def sizes_of_layers(
    layers: Mapping[str, LayerGraph], axes: Mapping[str, Size], widths: Mapping[Element, int], **free: Size
) -> dict[str, LayerSizes]:
    """The sizes of layer classes, given those of free dims; classes whose dims do not contradict each other share."""
    shared: list[dict[str, DimSize]] = []
    place: dict[str, int] = {}
    for name, layer in layers.items():
        fits = [n for n, dims in enumerate(shared) if all(dims.get(dim, s) == s for dim, s in layer.sizes.items())]
        if not fits:
            shared.append({})
        place[name] = fits[0] if fits else len(shared) - 1
        shared[place[name]].update(layer.sizes)
    made = [LayerSizes(SettledSizes(resolve(dims, free)), axes, widths) for dims in shared]
    return {name: made[number] for name, number in place.items()}


@frozen
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
