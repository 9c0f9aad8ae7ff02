"""The dims of operators an axis of a tile may shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dovetail.graph import Kind, Operator
from dovetail.graph.size import Sizes
from dovetail.layout.encoding.rules import divides, may_shard
from dovetail.mapping.layouts.tile import LayerTile

#: The dims of tokens; a layer shards one of them along an axis.
TOKEN_DIMS = ("batch", "seq")

#: Whether a layout may shard a dim of an operator.
Allowed = Callable[[Operator, str], bool]

#: The dim each axis shards, in the order of the tile's axes; None replicates.
Labels = tuple[str | None, ...]


def token_dim(tile: LayerTile, axis: str) -> str:
    """The dim of tokens that an axis may shard."""
    return "batch" if axis in tile.batch_axes else "seq"


def axis_labels(
    operators: Iterable[Operator], sizes: Sizes, tile: LayerTile, axis: str, allowed: Allowed | None = None
) -> list[str | None]:
    """The dims of operators an axis may shard."""
    token = token_dim(tile, axis)
    dims: dict[str | None, None] = {}
    forced = False
    for operator in operators:
        # tokens of experts are sharded with the tokens they were: one label for both
        regrouped = {target for _, target in operator.regroups}
        for dim in (dim for dim in operator.dims if dim not in regrouped):
            other = dim in TOKEN_DIMS and dim != token
            group = dim == "group" and axis not in tile.group_axes
            fits = may_shard(operator, dim) and divides(dim, sizes, tile.sizes[axis])
            if fits and not other and not group and allowed_dim(operator, dim, allowed) is not None:
                dims[dim] = None
        forced = forced or (operator.kind is Kind.ATTENTION and axis in tile.group_axes and "group" in operator.dims)
    return ["group"] if forced else [None, *dims]


def allowed_dim(operator: Operator, dim: str | None, allowed: Allowed | None) -> str | None:
    """The dim if an axis may shard it of this operator, else None."""
    if dim is None or not may_shard(operator, dim) or not (allowed is None or allowed(operator, dim)):
        return None
    return dim


def divides_all(labels: Iterable[str | None], sizes: Sizes, tile: LayerTile) -> bool:
    """Whether all axes together leave equal parts of every dim."""
    parts: dict[str, int] = {}
    for axis, dim in zip(tile.names, labels, strict=True):
        if dim is not None:
            parts[dim] = parts.get(dim, 1) * tile.sizes[axis]
    return all(divides(dim, sizes, n) for dim, n in parts.items())
