"""A layer class's encoding as a strategy: so collectives, saved bytes and homes are derived as for any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.graph import Backward, LayerGraph, Operator, Role, differentiate
from dovetail.layout.encoding.factor import MeshAxis, places
from dovetail.layout.encoding.operator_encoding import OperatorEncoding
from dovetail.layout.encoding.shards import TileAxes, axis_name, backward_shards, decode, streamed_axes, tensor_shards
from dovetail.layout.mesh import Mesh
from dovetail.layout.strategy import Strategy


def _nothing() -> dict[str, str]:
    return {}


@frozen
class EncodedStrategy(Strategy):
    """Shards by operator name instead of a rule; axes are atomic axes of the tile."""

    shards_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    stream: Mapping[str, str] = field(default_factory=_nothing)
    tokens: Mapping[str, str] = field(default_factory=_nothing)

    def shard(self, operator: Operator) -> dict[str, str]:
        """Axis → the dim of this operator it shards."""
        return dict(self.shards_of[operator.name])

    def stream_shard(self) -> dict[str, str]:
        """How the residual stream is sharded between layers."""
        return dict(self.stream)

    def token_shard(self) -> dict[str, str]:
        """How token ids and labels are sharded."""
        return dict(self.tokens)


def stream_shards(graph: LayerGraph, operators: Mapping[str, OperatorEncoding], axes: TileAxes) -> dict[str, str]:
    """How a layer class takes the residual stream: sharded as any of its readers shards it."""
    shards: dict[str, str] = {}
    for tensor in graph.stream(graph.inputs):
        shards = tensor_shards(graph, operators, tensor.name, axes) | shards
    return shards


def as_strategy(
    graph: LayerGraph,
    operators: Mapping[str, OperatorEncoding],
    axes: TileAxes,
    *,
    stream: Mapping[str, str] | None = None,
    rule: str = "megatron",
    keep_gathered: bool = False,
    backward: Backward | None = None,
) -> EncodedStrategy:
    """A layer class's encoding for `place_layer`.

    `stream` says how the residual stream is sharded where the class takes none (an embedding); `rule` and
    `keep_gathered` say what is saved of gathered activations and weights, as for a named strategy.
    """
    backward = backward or differentiate(graph)
    stream = stream_shards(graph, operators, axes) if stream is None else stream
    shards = {o.name: decode(o, operators[o.name].forward, axes) for o in graph.operators}
    shards |= backward_shards(graph, operators, backward, axes, stream)
    ring = {a for o in graph.operators for a in streamed_axes(operators[o.name].forward, axes) if "key_seq" in o.dims}
    group = {a for sharded in shards.values() for a, dim in sharded.items() if dim == "group"} - ring
    zero, stage = _zero(operators, axes)
    names = tuple(axes.sizes())
    if zero & group:
        raise InputError(
            "encoding", "shards homes along an axis that shards query groups", "derive its homes separately"
        )
    mesh = Mesh(
        data=tuple(a for a in names if a not in ring | group),
        tensor=tuple(a for a in names if a in group),
        context=tuple(a for a in names if a in ring),
        zero=tuple(a for a in names if a in zero),
        group=tuple(a for a in names if a in group),
    )
    return EncodedStrategy(
        mesh,
        rule=rule,
        context="ring" if ring else "all_gather",
        zero_stage=stage,
        keep_gathered=keep_gathered,
        shards_of=shards,
        stream=stream,
        tokens=token_shards(graph, operators, axes),
    )


def token_shards(graph: LayerGraph, operators: Mapping[str, OperatorEncoding], axes: TileAxes) -> dict[str, str]:
    """How ids and labels are sharded, as their readers need them; whole along an axis where one reader needs that."""
    shards: dict[str, str] = {}
    whole: set[tuple[str, str]] = set()
    for name in (n for n in graph.inputs if graph.tensors[n].role is Role.INDEX):
        seen = tensor_shards(graph, operators, name, axes)
        whole |= {(axis, dim) for axis in axes.sizes() for dim in graph.tensors[name].dims if axis not in seen}
        shards |= seen
    return {axis: dim for axis, dim in shards.items() if (axis, dim) not in whole}


def _zero(operators: Mapping[str, OperatorEncoding], axes: TileAxes) -> tuple[set[str], int]:
    """The axes along which homes are sharded, and the ZeRO stage that says which homes are."""
    along: dict[str, set[str]] = {name: set() for name in ("optimizer", "gradients", "weights")}
    for operator in operators.values():
        for name, home in operator.homes.items():
            for axis, position in home.sharded:
                place = places(operator.forward.along(axis))[position]
                lows = [low for low in axes.ends(axis) if place.low <= low < place.high]
                along[name] |= {axis_name(MeshAxis(axis), low) for low in lows}
    used = [name for name in along if along[name]]
    stage = len(used)
    if used != list(along)[:stage] or any(along[name] != along["optimizer"] for name in used):
        raise InputError(
            "encoding",
            "shards weights or gradients along other factors than optimizer state",
            "ZeRO's stages shard optimizer state, then gradients, then weights, along the same factors",
        )
    return along["optimizer"], stage
