"""What a layer class's encoding makes tensors pay between operators that hold them differently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail.frozen import frozen
from dovetail.graph import Backward, LayerGraph
from dovetail.layout.convert import CollectiveKind
from dovetail.layout.derive import PlacedLayer, place_layer
from dovetail.layout.encoding.encoded_strategy import as_strategy
from dovetail.layout.encoding.operator_encoding import Home, OperatorEncoding
from dovetail.layout.encoding.shards import TileAxes
from dovetail.layout.layout import Layout


@frozen
class Reshard:
    """A tensor of the forward that its readers need otherwise than it lies: no broken rule, but a price."""

    tensor: str
    before: Layout
    after: Layout
    readers: tuple[str, ...]
    collectives: tuple[CollectiveKind, ...]


def placed(
    graph: LayerGraph,
    operators: Mapping[str, OperatorEncoding],
    axes: TileAxes,
    *,
    stream: Mapping[str, str] | None = None,
    backward: Backward | None = None,
) -> PlacedLayer:
    """The layer class as it lies on its tile; homes change no activation and are left aside."""
    plain = {n: replace(o, weights=Home(), gradients=Home(), optimizer=Home()) for n, o in operators.items()}
    return place_layer(graph, as_strategy(graph, plain, axes, stream=stream, backward=backward), backward)


def reshards(layer: PlacedLayer) -> tuple[Reshard, ...]:
    """Every conversion of a tensor between the operators of a layer class, slices (which cost nothing) apart."""
    return tuple(
        Reshard(v.tensor.name, v.made_of, v.layout, v.readers, tuple(c.kind for c in v.collectives))
        for v in layer.versions
        if v.made_of is not None and v.collectives
    )
