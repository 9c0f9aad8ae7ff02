"""What each axis of a tile may shard of a group of operators: the options of a variable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from dovetail.errors import InputError
from dovetail.graph import Kind, LayerGraph, Operator
from dovetail.graph.size import Sizes
from dovetail.layout import Mesh, Strategy
from dovetail.layout.encoding.rules import divides, may_shard
from dovetail.mapping.layouts.groups import Together, mixture_operators, operator_groups
from dovetail.mapping.layouts.tile import LayerTile

#: The dims of tokens; a layer shards one of them along an axis.
TOKEN_DIMS = ("batch", "seq")

#: Whether a layout may shard a dim of an operator.
Allowed = Callable[[Operator, str], bool]

#: What an axis is to a mixture of experts: to its tokens, and to the experts.
Role = tuple[str, str]

#: The dim each axis shards, in the order of the tile's axes; None replicates.
Labels = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
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
    mixture = mixture_operators(graph)
    for group in groups:
        operators = [by_name[name] for name in group]
        if set(group) & set(mixture):
            options = _mixture_options(operators, sizes, tile, allowed)
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
        {o.name: tuple(_allowed_dim(o, dim, allowed) for dim in labels_by_axis) for o in operators}
        for labels_by_axis in product(*labels)
        if _divides(labels_by_axis, sizes, tile)
    ]


def axis_labels(
    operators: Iterable[Operator], sizes: Sizes, tile: LayerTile, axis: str, allowed: Allowed | None = None
) -> list[str | None]:
    """The dims of operators an axis may shard."""
    token = "batch" if axis in tile.batch_axes else "seq"
    dims: dict[str | None, None] = {}
    forced = False
    for operator in operators:
        for dim in operator.dims:
            other = dim in TOKEN_DIMS and dim != token
            group = dim == "group" and axis not in tile.group_axes
            fits = may_shard(operator, dim) and divides(dim, sizes, tile.sizes[axis])
            if fits and not other and not group and _allowed_dim(operator, dim, allowed) is not None:
                dims[dim] = None
        forced = forced or (operator.kind is Kind.ATTENTION and axis in tile.group_axes and "group" in operator.dims)
    return ["group"] if forced else [None, *dims]


def _allowed_dim(operator: Operator, dim: str | None, allowed: Allowed | None) -> str | None:
    if dim is None or not may_shard(operator, dim) or not (allowed is None or allowed(operator, dim)):
        return None
    return dim


def _divides(labels: Iterable[str | None], sizes: Sizes, tile: LayerTile) -> bool:
    parts: dict[str, int] = {}
    for axis, dim in zip(tile.names, labels, strict=True):
        if dim is not None:
            parts[dim] = parts.get(dim, 1) * tile.sizes[axis]
    return all(divides(dim, sizes, n) for dim, n in parts.items())


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
            token = "batch" if axis in tile.batch_axes else "seq"
            usable = [d for d in dims if d not in TOKEN_DIMS or d == token]
            labels.append([None, *(d for d in usable if divides(d, sizes, tile.sizes[axis]))])
        ways = [way for way in product(*labels) if _divides(way, sizes, tile)]
    options = tuple({o.name: tuple(_allowed_dim(o, dim, allowed) for dim in way) for o in lying} for way in ways)
    return Variable(tuple(o.name for o in lying), options, tuple(ways))


def _mixture_options(
    operators: Sequence[Operator], sizes: Sizes, tile: LayerTile, allowed: Allowed | None
) -> list[dict[str, Labels]]:
    """Joint shardings of a mixture of experts: those of named strategies, each axis in every role it can have.

    An axis shards tokens or is tensor-parallel; along it experts are spread, each expert is sharded, or neither. An
    axis that cannot shard tokens may also replicate everything.
    """
    distinct: dict[tuple[Labels, ...], dict[str, Labels]] = {}
    roles_of: list[list[Role]] = []
    for axis in tile.names:
        token = "batch" if axis in tile.batch_axes else "seq"
        token_role = "tokens" if divides(token, sizes, tile.sizes[axis]) else "replicas"
        roles_of.append(
            [(lying, expert) for lying in (token_role, "tensor") for expert in ("", "expert", "expert_tensor")]
        )
    for sequence_parallel in (False, True):
        for roles in product(*roles_of):
            by_axis = dict(zip(tile.names, roles, strict=True))
            # along an axis tokens are sharded as batch or as sequence, in the mixture as elsewhere
            mixed = sequence_parallel and any(by_axis[axis][0] == "tensor" for axis in tile.batch_axes)
            if mixed or any(role in (("replicas", "expert"), ("replicas", "expert_tensor")) for role in roles):
                continue
            strategy = _role_strategy(by_axis, tile, sequence_parallel)
            option: dict[str, Labels] = {}
            for operator in operators:
                shards = strategy.shard(operator)
                option[operator.name] = tuple(_allowed_dim(operator, shards.get(axis), allowed) for axis in tile.names)
                if not _divides(option[operator.name], sizes, tile):
                    break
            else:
                distinct.setdefault(tuple(option.values()), option)
    return list(distinct.values())


def _role_strategy(roles: Mapping[str, Role], tile: LayerTile, sequence_parallel: bool) -> Strategy:
    mesh = Mesh(
        data=tuple(a for a, (lies, _) in roles.items() if lies == "tokens" and a in tile.batch_axes),
        context=tuple(a for a, (lies, _) in roles.items() if lies == "tokens" and a not in tile.batch_axes),
        tensor=tuple(a for a, (lies, _) in roles.items() if lies == "tensor"),
        expert=tuple(a for a, (_, expert) in roles.items() if expert == "expert"),
        expert_tensor=tuple(a for a, (_, expert) in roles.items() if expert == "expert_tensor"),
    )
    return Strategy(mesh, sequence_parallel=sequence_parallel)
