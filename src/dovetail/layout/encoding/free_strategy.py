"""Layouts of a plan as a strategy: every layer class has its own shards."""

from __future__ import annotations

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.graph import Backward, LayerGraph, Operator, differentiate
from dovetail.layout.encoding.encoded_strategy import EncodedStrategy, token_shards
from dovetail.layout.encoding.factor import Strings
from dovetail.layout.encoding.operator_encoding import OperatorEncoding
from dovetail.layout.encoding.shards import TileAxes, backward_shards, decode, stream_layout
from dovetail.layout.encoding.tile_layouts import TileLayouts
from dovetail.layout.mesh import Mesh
from dovetail.layout.strategy import Strategy


@frozen
class FreeStrategy(Strategy):
    """Shards as the layouts say; axes that replicate a weight shard its home, as far as the ZeRO stage goes."""

    layouts: TileLayouts | None = None

    @staticmethod
    def on(layouts: TileLayouts, zero_stage: int) -> FreeStrategy:
        """The strategy on the axes of a tile."""
        names = tuple(layouts.axes().sizes())
        return FreeStrategy(Mesh(data=names, zero=names), rule="free", zero_stage=zero_stage, layouts=layouts)

    def of(self, graph: LayerGraph) -> Strategy:
        """The strategy of one layer class."""
        assert self.layouts is not None, "made by `on`"
        classes = dict(self.layouts.classes)
        if graph.name not in classes:
            fix = f"say how {graph.name} is sharded"
            raise InputError("plan: layouts", f"are missing the layer class {graph.name}", fix)
        operators, axes = dict(classes[graph.name]), self.layouts.axes()
        missing = next((o.name for o in graph.operators if o.name not in operators), None)
        if missing is not None:
            fix = f"say how {missing} is sharded"
            raise InputError(f"plan: layouts.{graph.name}", f"is missing the operator {missing}", fix)
        return layer_strategy(graph, operators, axes, stream_layout(self.layouts.stream, axes), self.zero_stage)

    def shard(self, operator: Operator) -> dict[str, str]:
        """Operators are not sharded alike in all classes."""
        raise AssertionError(f"{operator.name} is one of a layer class: ask `of` for its strategy")

    def stream_shard(self) -> dict[str, str]:
        """How the residual stream is sharded between layers."""
        assert self.layouts is not None, "made by `on`"
        return stream_layout(self.layouts.stream, self.layouts.axes())


def layer_strategy(
    graph: LayerGraph,
    operators: dict[str, Strings],
    axes: TileAxes,
    stream: dict[str, str],
    zero_stage: int,
    backward: Backward | None = None,
) -> EncodedStrategy:
    """A layer class whose operators have these strings; gradients are sharded as their operators."""
    backward = backward or differentiate(graph)
    encoded = {name: OperatorEncoding(strings) for name, strings in operators.items()}
    shards = {o.name: decode(o, operators[o.name], axes) for o in graph.operators}
    shards |= backward_shards(graph, encoded, backward, axes, stream)
    names = tuple(axes.sizes())
    group = {axis for sharded in shards.values() for axis, dim in sharded.items() if dim == "group"}
    # query groups count as context, not tensor: weights may be sharded along both kinds of axes alike
    mesh = Mesh(
        data=tuple(a for a in names if a not in group),
        context=tuple(a for a in names if a in group),
        zero=names,
        group=tuple(a for a in names if a in group),
    )
    return EncodedStrategy(
        mesh,
        rule="free",
        zero_stage=zero_stage,
        shards_of=shards,
        stream=stream,
        tokens=token_shards(graph, encoded, axes),
    )
