"""What each axis of a tile may cut of a group of operators: the options of a variable."""

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

#: The dims of tokens: along one axis a layer cuts one of them.
TOKEN_DIMS = ("batch", "seq")

#: Whether a layout may cut a dim of an operator.
Allowed = Callable[[Operator, str], bool]

#: What an axis is to a mixture of experts: to its tokens, and to the experts.
Role = tuple[str, str]

#: The dim each axis cuts, in the order of the tile's axes; None copies.
Labels = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """Operators that are cut together, and the ways to cut them."""

    operators: tuple[str, ...]
    #: by option: the cuts of each operator
    options: tuple[Mapping[str, Labels], ...]
    #: by option: how the residual stream lies, for the variable that says so
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
    found = [_stream_variable(graph, sizes, tile, [by_name[n] for n in by_name if n in lying], stream, allowed)]
    mixture = mixture_operators(graph)
    for group in groups:
        operators = [by_name[name] for name in group]
        if set(group) & set(mixture):
            options = _mixture_options(operators, sizes, tile, allowed)
        else:
            options = _options(operators, sizes, tile, allowed)
        if not options:
            raise InputError(f"layer {graph.name}: {group[0]}", "has no layout", "allow it to be cut less")
        found.append(Variable(group, tuple(options)))
    return tuple(found)


def _options(
    operators: Sequence[Operator], sizes: Sizes, tile: LayerTile, allowed: Allowed | None
) -> list[dict[str, Labels]]:
    """Every way to cut the operators alike; one that lacks a dim copies."""
    labels = [axis_labels(operators, sizes, tile, axis, allowed) for axis in tile.names]
    return [
        {o.name: tuple(_own(o, dim, allowed) for dim in chosen) for o in operators}
        for chosen in product(*labels)
        if _divides(chosen, sizes, tile)
    ]


def axis_labels(
    operators: Iterable[Operator], sizes: Sizes, tile: LayerTile, axis: str, allowed: Allowed | None = None
) -> list[str | None]:
    """What an axis may cut of operators."""
    token = "batch" if axis in tile.batch_axes else "seq"
    found: dict[str | None, None] = {}
    forced = False
    for operator in operators:
        for dim in operator.dims:
            other = dim in TOKEN_DIMS and dim != token
            group = dim == "group" and axis not in tile.group_axes
            fits = may_shard(operator, dim) and divides(dim, sizes, tile.sizes[axis])
            if fits and not other and not group and _own(operator, dim, allowed) is not None:
                found[dim] = None
        forced = forced or (operator.kind is Kind.ATTENTION and axis in tile.group_axes and "group" in operator.dims)
    return ["group"] if forced else [None, *found]


def _own(operator: Operator, dim: str | None, allowed: Allowed | None) -> str | None:
    if dim is None or not may_shard(operator, dim) or not (allowed is None or allowed(operator, dim)):
        return None
    return dim


def _divides(chosen: Iterable[str | None], sizes: Sizes, tile: LayerTile) -> bool:
    parts: dict[str, int] = {}
    for axis, dim in zip(tile.names, chosen, strict=True):
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
    """How the residual stream lies, and the operators that lie as it does."""
    tensors = (*graph.stream(graph.inputs), *graph.stream(graph.outputs))
    dims = tuple(dict.fromkeys(dim for tensor in tensors for dim in tensor.dims))
    if stream is not None:
        ways = [tuple(stream.get(axis) for axis in tile.names)]
    else:
        labels: list[list[str | None]] = []
        for axis in tile.names:
            token = "batch" if axis in tile.batch_axes else "seq"
            kept = [d for d in dims if d not in TOKEN_DIMS or d == token]
            labels.append([None, *(d for d in kept if divides(d, sizes, tile.sizes[axis]))])
        ways = [chosen for chosen in product(*labels) if _divides(chosen, sizes, tile)]
    options = tuple({o.name: tuple(_own(o, dim, allowed) for dim in chosen) for o in lying} for chosen in ways)
    return Variable(tuple(o.name for o in lying), options, tuple(ways))


def _mixture_options(
    operators: Sequence[Operator], sizes: Sizes, tile: LayerTile, allowed: Allowed | None
) -> list[dict[str, Labels]]:
    """Joint cuts of a mixture of experts: those of named strategies, each axis in every role it can have.

    An axis cuts tokens or is tensor-parallel; along it experts are spread, each expert is cut, or neither. An axis by
    which tokens cannot be cut may also copy everything.
    """
    found: dict[tuple[Labels, ...], dict[str, Labels]] = {}
    roles_of: list[list[Role]] = []
    for axis in tile.names:
        token = "batch" if axis in tile.batch_axes else "seq"
        cut = "tokens" if divides(token, sizes, tile.sizes[axis]) else "copies"
        roles_of.append([(lying, expert) for lying in (cut, "tensor") for expert in ("", "expert", "expert_tensor")])
    for sequence_parallel in (False, True):
        for roles in product(*roles_of):
            by_axis = dict(zip(tile.names, roles, strict=True))
            # along an axis tokens are cut as batch or as sequence, in the mixture as elsewhere
            mixed = sequence_parallel and any(by_axis[axis][0] == "tensor" for axis in tile.batch_axes)
            if mixed or any(role in (("copies", "expert"), ("copies", "expert_tensor")) for role in roles):
                continue
            strategy = _role_strategy(by_axis, tile, sequence_parallel)
            option: dict[str, Labels] = {}
            for operator in operators:
                cuts = strategy.shard(operator)
                option[operator.name] = tuple(_own(operator, cuts.get(axis), allowed) for axis in tile.names)
                if not _divides(option[operator.name], sizes, tile):
                    break
            else:
                found.setdefault(tuple(option.values()), option)
    return list(found.values())


def _role_strategy(roles: Mapping[str, Role], tile: LayerTile, sequence_parallel: bool) -> Strategy:
    mesh = Mesh(
        data=tuple(a for a, (lies, _) in roles.items() if lies == "tokens" and a in tile.batch_axes),
        context=tuple(a for a, (lies, _) in roles.items() if lies == "tokens" and a not in tile.batch_axes),
        tensor=tuple(a for a, (lies, _) in roles.items() if lies == "tensor"),
        expert=tuple(a for a, (_, expert) in roles.items() if expert == "expert"),
        expert_tensor=tuple(a for a, (_, expert) in roles.items() if expert == "expert_tensor"),
    )
    return Strategy(mesh, sequence_parallel=sequence_parallel)
