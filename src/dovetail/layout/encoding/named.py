"""Named strategies in the encoding: whatever shards operators along axes of a mesh, on a tile."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from dovetail.errors import InputError
from dovetail.graph import Backward, LayerGraph, Operator, Phase, Role, differentiate
from dovetail.layout.encoding.canonical import canonical_operator
from dovetail.layout.encoding.factor import MeshAxis, Strings
from dovetail.layout.encoding.operator_encoding import FactorPosition, Home, OperatorEncoding
from dovetail.layout.encoding.shards import AxesOnTile, decode, encode, gradients
from dovetail.layout.strategy import Strategy


def encode_strategy(
    graph: LayerGraph,
    strategy: Strategy,
    on: AxesOnTile,
    backward: Backward | None = None,
    *,
    streamed: Mapping[str, Collection[str]] | None = None,
) -> dict[str, OperatorEncoding]:
    """Every operator of a layer class under a strategy, canonical as it lies.

    Data, tensor, sequence, context and expert parallelism shard dims, a ring streams keys and values, ZeRO
    shards homes. Other axes along which operators stream an operand are given by operator.
    """
    missing = set(strategy.mesh.axes) - {name for axis in MeshAxis for name, _ in on.along(axis)}
    if missing:
        raise InputError("strategy", f"its axis {min(missing)} is not on the tile", "place every axis on the tile")
    backward = backward or differentiate(graph)
    encoded: dict[str, OperatorEncoding] = {}
    for operator in graph.operators:
        ring = strategy.mesh.context if strategy.context == "ring" and "key_seq" in operator.dims else ()
        forward = encode(_shards(strategy, operator), on, {*ring, *(streamed or {}).get(operator.name, ())})
        encoded[operator.name] = replace(OperatorEncoding(forward), **_homes(graph, operator, strategy, on))
    for (name, phase), operators in gradients(graph, backward).items():
        shards = {o.name: _shards(strategy, o) for o in operators}
        inherited = {o.name: _named(decode(o, encoded[name].forward, on.axes()), on) for o in operators}
        if any(_on_tile(shards[o], on) != inherited[o] for o in shards):
            field = "input_gradient" if phase is Phase.INPUT_GRADIENT else "weight_gradient"
            encoded[name] = replace(encoded[name], **{field: _override(operators, shards, on)})
    return {name: canonical_operator(encoding) for name, encoding in encoded.items()}


def _shards(strategy: Strategy, operator: Operator) -> dict[str, str]:
    return {axis: dim for axis, dim in strategy.shard(operator).items() if operator.split(dim) is not None}


def _on_tile(shards: Mapping[str, str], on: AxesOnTile) -> dict[str, str]:
    names = on.names()
    return {axis: dim for axis, dim in shards.items() if axis in names}


def _named(shards: Mapping[str, str], on: AxesOnTile) -> dict[str, str]:
    """Shards along atomic axes of the tile, under the mesh's names."""
    return {name: shards[atomic] for name, atomic in on.names().items() if atomic in shards}


def _override(operators: tuple[Operator, ...], shards: Mapping[str, Mapping[str, str]], on: AxesOnTile) -> Strings:
    """Strings that give each of an operator's gradients its shards."""
    together: dict[str, str] = {}
    for axis in on.names():
        for operator in operators:
            dim = shards[operator.name].get(axis)
            if dim is not None:
                together.setdefault(axis, dim)
    strings = encode(together, on)
    for operator in operators:
        if _named(decode(operator, strings, on.axes()), on) != _on_tile(shards[operator.name], on):
            raise InputError(
                f"strategy: {operator.name}",
                "is sharded differently from another gradient of the same operator",
                "one string per phase should serve all gradients of an operator",
            )
    return strings


def _homes(graph: LayerGraph, operator: Operator, strategy: Strategy, on: AxesOnTile) -> dict[str, Home]:
    weights = [set(o.indices) for o in operator.inputs if graph.tensors[o.tensor].role is Role.WEIGHT]
    if not weights or not strategy.zero_stage:
        return {}
    shards, sharded = _shards(strategy, operator), list[FactorPosition]()
    for axis in MeshAxis:
        longer = [name for name, size in on.along(axis) if size > 1]
        for position, name in enumerate(longer):
            if name in strategy.mesh.zero and any(shards.get(name) not in dims for dims in weights):
                sharded.append((axis, position))
    names = ("optimizer", "gradients", "weights")[: strategy.zero_stage]
    return {name: Home(sharded=tuple(sharded)) for name in names}
