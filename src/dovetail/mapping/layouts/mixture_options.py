"""Options of the operators of a mixture of experts that are sharded together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from dovetail.graph import Operator
from dovetail.graph.size import Sizes
from dovetail.layout import Mesh, Strategy
from dovetail.layout.encoding.rules import divides
from dovetail.mapping.layouts.axis_labels import Allowed, Labels, allowed_dim, axis_labels, divides_all, token_dim
from dovetail.mapping.layouts.tile import LayerTile

#: What an axis is to a mixture of experts: to its tokens, and to the experts.
Role = tuple[str, str]


def routing_options(
    operators: Sequence[Operator], sizes: Sizes, tile: LayerTile, allowed: Allowed | None
) -> list[dict[str, Labels]]:
    """Joint shardings of router, gates and dispatch: along an axis router and dispatch take the same part of tokens.

    That is a part of the tokens, a part of their hidden dim, or all; only in the last case may experts be sharded, by
    the dispatch or by all three.
    """
    by_axis: list[list[Labels]] = []
    for axis in tile.names:
        token = token_dim(tile, axis)
        router, gates, dispatch = ({*axis_labels([o], sizes, tile, axis, allowed)} for o in operators)
        ways = [
            (None, None, None),
            (token, token, token),
            ("hidden", token if token in gates else None, "hidden"),
            (None, None, "experts"),
            ("experts", "experts", "experts"),
        ]
        by_axis.append([way for way in ways if way[0] in router and way[1] in gates and way[2] in dispatch])
    options: list[dict[str, Labels]] = []
    for joint in product(*by_axis):
        option = {o.name: tuple(labels[number] for labels in joint) for number, o in enumerate(operators)}
        if all(divides_all(labels, sizes, tile) for labels in option.values()):
            options.append(option)
    return options


def mixture_options(
    operators: Sequence[Operator], sizes: Sizes, tile: LayerTile, allowed: Allowed | None
) -> list[dict[str, Labels]]:
    """Joint shardings of a mixture of experts: those of named strategies, each axis in every role it can have.

    An axis shards tokens or is tensor-parallel; along it experts are spread, each expert is sharded, or neither. An
    axis that cannot shard tokens may also replicate everything.
    """
    distinct: dict[tuple[Labels, ...], dict[str, Labels]] = {}
    roles_of: list[list[Role]] = []
    for axis in tile.names:
        token_role = "tokens" if divides(token_dim(tile, axis), sizes, tile.sizes[axis]) else "replicas"
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
                option[operator.name] = tuple(allowed_dim(operator, shards.get(axis), allowed) for axis in tile.names)
                if not divides_all(option[operator.name], sizes, tile):
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
