"""What each axis of a tile may shard of a group of operators: the options of a variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.graph import LayerGraph, Operator
from dovetail.graph.size import Sizes
from dovetail.layout.encoding.rules import divides
from dovetail.mapping.layouts.axis_labels import (
    TOKEN_DIMS,
    Allowed,
    Labels,
    allowed_dim,
    axis_labels,
    divides_all,
    token_dim,
)
from dovetail.mapping.layouts.groups import Together, mixture_operators, operator_groups, routing_operators
from dovetail.mapping.layouts.mixture_options import mixture_options, routing_options
from dovetail.mapping.layouts.tile import LayerTile

__all__ = ["Allowed", "Labels", "Variable", "layer_variables"]


@frozen
class Variable:
    """Operators that are sharded together, and the ways to shard them."""

    operators: tuple[str, ...]
    #: by option: the sharded dims of each operator
    options: tuple[Mapping[str, Labels], ...]
    #: by option: the layout of the residual stream, for the variable that decides it
    stream: tuple[Labels, ...] = ()


def layer_variables(
    graph: LayerGraph,
    sizes: Sizes,
    tile: LayerTile,
    together: Together,
    stream: Mapping[str, str] | None = None,
    allowed: Allowed | None = None,
) -> tuple[Variable, ...]:
    """The variables of a layer: the residual stream first, then groups of operators."""
    by_name = {operator.name: operator for operator in graph.operators}
    groups, lying = operator_groups(graph, together)
    variables = [_stream_variable(graph, sizes, tile, [by_name[n] for n in by_name if n in lying], stream, allowed)]
    routing = routing_operators(graph)
    for group in groups:
        operators = [by_name[name] for name in group]
        if together is Together.MIXTURE and set(group) & set(mixture_operators(graph)):
            options = mixture_options(operators, sizes, tile, allowed)
        elif routing and set(group) == set(routing):
            options = routing_options(operators, sizes, tile, allowed)
        else:
            options = _options(operators, sizes, tile, allowed)
        if not options:
            raise InputError(
                f"layer {graph.name}: {group[0]}", "has no layout", "allow more of its dims to be replicated"
            )
        variables.append(Variable(group, tuple(options)))
    return tuple(variables)


def _options(
    operators: Sequence[Operator], sizes: Sizes, tile: LayerTile, allowed: Allowed | None
) -> list[dict[str, Labels]]:
    """Every way to shard the operators alike; an operator without the dim is replicated."""
    labels = [axis_labels(operators, sizes, tile, axis, allowed) for axis in tile.names]
    return [
        {o.name: tuple(allowed_dim(o, dim, allowed) for dim in labels_by_axis) for o in operators}
        for labels_by_axis in product(*labels)
        if divides_all(labels_by_axis, sizes, tile)
    ]


def _stream_variable(
    graph: LayerGraph,
    sizes: Sizes,
    tile: LayerTile,
    lying: Sequence[Operator],
    stream: Mapping[str, str] | None,
    allowed: Allowed | None,
) -> Variable:
    """The layout of the residual stream, and the operators laid out like it."""
    tensors = (*graph.stream(graph.inputs), *graph.stream(graph.outputs))
    dims = tuple(dict.fromkeys(dim for tensor in tensors for dim in tensor.dims))
    if stream is not None:
        ways = [tuple(stream.get(axis) for axis in tile.names)]
    else:
        labels: list[list[str | None]] = []
        for axis in tile.names:
            usable = [d for d in dims if d not in TOKEN_DIMS or d == token_dim(tile, axis)]
            labels.append([None, *(d for d in usable if divides(d, sizes, tile.sizes[axis]))])
        ways = [way for way in product(*labels) if divides_all(way, sizes, tile)]
    options = tuple({o.name: tuple(allowed_dim(o, dim, allowed) for dim in way) for o in lying} for way in ways)
    return Variable(tuple(o.name for o in lying), options, tuple(ways))
