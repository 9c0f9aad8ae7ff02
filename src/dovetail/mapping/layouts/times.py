"""Seconds of every operator for every way to shard it: each distinct shape is timed once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dovetail.arrays import Floats, Ints
from dovetail.cost.operators import ChipUnits, PlacedWork, operator_seconds
from dovetail.graph import DerivedSize, LayerGraph, Operator
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.graph.size import Size, Sizes
from dovetail.graph.tensor import Element
from dovetail.layout import PlacedOperator
from dovetail.mapping.layouts.scoped import Scoped
from dovetail.mapping.layouts.shards import LayerShards


def seconds_of(
    operators: Sequence[Operator],
    graph: LayerGraph,
    shards: LayerShards,
    sizes: Sizes,
    chip: ChipUnits,
    widths: Mapping[Element, int],
) -> dict[str, Scoped]:
    """Operator → its seconds on one chip, over its sharding options."""
    assert chip.sharing == "none", "operators that share units are not supported"
    tokens = graph.sizes.get(EXPERT_TOKENS)
    imbalance = tokens.imbalance if isinstance(tokens, DerivedSize) else 1.0
    shapes = {o.name: _shapes(o, shards) for o in operators}
    most = max(len(rows) for rows, _ in shapes.values())
    placed: list[PlacedOperator] = []
    axis_sizes: dict[str, Size] = {}
    for operator in operators:
        rows = shapes[operator.name][0]
        filled = np.ones((most, rows.shape[1]))
        filled[: len(rows)] = rows
        names = {f"{operator.name}#{dim}": dim for dim in operator.dims}
        placed.append(PlacedOperator(operator, names))
        axis_sizes |= dict(zip(names, filled.T, strict=True))
    work = PlacedWork(placed, shards.tensors, sizes, axis_sizes, widths, imbalance)
    seconds = operator_seconds(work, chip)
    return {
        o.name: Scoped(
            shards.by_operator[o.name].scope,
            np.broadcast_to(seconds[o.name], (most,))[shapes[o.name][1]].reshape(
                shards.by_operator[o.name].values.shape[:-1]
            ),
        )
        for o in operators
    }


def _shapes(operator: Operator, shards: LayerShards) -> tuple[Floats, Ints]:
    """The distinct ways an operator's dims are divided, and which of them each option uses."""
    values = shards.by_operator[operator.name].values
    codes = values.reshape(math.prod(values.shape[:-1]), len(shards.tile.names))
    lengths = np.array([shards.tile.sizes[axis] for axis in shards.tile.names])
    parts = {dim: np.prod(np.where(codes == shards.code[dim], lengths, 1), axis=1) for dim in operator.dims}
    is_sharded = {dim: (codes == shards.code[dim]).any(axis=1) for dim in operator.dims}
    for source, target in operator.regroups:
        # tokens regrouped by expert are sharded like the tokens
        if source in parts and target in parts:
            parts[target] = np.where(
                is_sharded[source] & ~is_sharded[target], parts[target] * parts[source], parts[target]
            )
    # one number per row: much faster to compare than rows
    number = np.zeros(len(codes), np.int64)
    for dim in operator.dims:
        distinct, place = np.unique(parts[dim], return_inverse=True)
        number = number * len(distinct) + place.reshape(-1)
    _, first, place = np.unique(number, return_index=True, return_inverse=True)
    rows = np.stack([parts[dim][first] for dim in operator.dims], axis=1) if operator.dims else np.ones((len(first), 0))
    return rows.astype(np.float64), place.reshape(-1)
