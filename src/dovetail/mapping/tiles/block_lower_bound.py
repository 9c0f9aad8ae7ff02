"""A lower bound of a block's time on some dies under any layout: its work, and what it saves or recomputes."""

from __future__ import annotations

from math import prod

import numpy as np

from dovetail.arrays import Floats
from dovetail.frameworks.parameter_bytes import state_bytes
from dovetail.graph import LayerGraph, Role, differentiate
from dovetail.graph.count import parameters
from dovetail.graph.size import as_array
from dovetail.mapping.layouts.groups import Together
from dovetail.mapping.layouts.options import layer_variables
from dovetail.mapping.layouts.shards import LayerShards
from dovetail.mapping.layouts.tile import LayerTile
from dovetail.mapping.layouts.times import seconds_of
from dovetail.mapping.tiles.least_step import BlockLowerBound
from dovetail.mapping.tiles.tile_layers import TileLayers
from dovetail.mapping.tiles.tile_layouts import searched_tiles


def block_lower_bound(layers: TileLayers) -> BlockLowerBound:
    """The lower bound of the main block of a job.

    Every operator has the sharding that is best for it alone and messages take no time. A die saves at least its share
    of each saved tensor. Recomputing a tensor runs its operator once more, but nothing that operator needs.
    """
    bounds = [_tile_bound(layers, tile) for tile in _tiles(layers)]
    # below the bound of every tile: the lowest work of any, and the lowest extra seconds for the same bytes
    knots = np.unique(np.concatenate([bound.saved_bytes for bound in bounds]))
    more = [_interpolated(knots, bound) for bound in bounds]
    work = min(float(bound.seconds[-1]) for bound in bounds)
    forward = min(bound.forward_s for bound in bounds)
    return BlockLowerBound(knots, work + np.min(more, axis=0), bounds[0].state_bytes, forward)


def _interpolated(knots: Floats, bound: BlockLowerBound) -> Floats:
    """Extra seconds over the plain work, by bytes a block saves."""
    more: Floats = bound.seconds - bound.seconds[-1]
    return np.interp(knots, bound.saved_bytes, more)


def _tiles(layers: TileLayers) -> list[LayerTile]:
    """One tile per number of batch and query-group shards: which axes shard them does not matter."""
    by_parts: dict[tuple[int, ...], LayerTile] = {}
    for tile in searched_tiles(layers, 1, layers.skeleton.dies):
        by_parts.setdefault(
            tuple(prod(tile.sizes[a] for a in axes) for axes in (tile.batch_axes, tile.group_axes)), tile
        )
    return list(by_parts.values())


def _tile_bound(layers: TileLayers, tile: LayerTile) -> BlockLowerBound:
    graph, setting = layers.main_block, layers.work_setting(layers.main_block)
    backward = differentiate(graph)
    shards = LayerShards(graph, backward, tile, layer_variables(graph, setting.sizes, tile, Together.SIBLINGS))
    forward, behind = (
        {
            name: float(each.values.min())
            for name, each in seconds_of(operators, graph, shards, setting.sizes, setting.chip, setting.widths).items()
        }
        for operators in (graph.operators, backward.graph.operators)
    )
    work = sum(forward.values()) + sum(behind.values())
    inputs_saved, saved_by = _saved_bytes(layers, graph)
    # fewest seconds per byte first: no choice of operators takes less for the same bytes
    order = sorted(saved_by, key=lambda name: forward[name] / saved_by[name])
    saved_bytes = inputs_saved + sum(saved_by.values()) - np.cumsum([0.0, *(saved_by[name] for name in order)])
    seconds = work + np.cumsum([0.0, *(forward[name] for name in order)])
    share = parameters(graph) / layers.skeleton.dies
    # whatever a lower ZeRO stage replicates, a die stores at least its share of it
    sizes = layers.facts.parameter_bytes
    state = min(float(sum(state_bytes(share, share, zero_stage, sizes))) for zero_stage in (0, 3))
    return BlockLowerBound(saved_bytes[::-1], seconds[::-1], state, sum(forward.values()))


def _saved_bytes(layers: TileLayers, graph: LayerGraph) -> tuple[float, dict[str, float]]:
    """A die's share of the saved inputs of the layer, and of the saved outputs of each operator."""
    sizes, widths = layers.sizes(graph), layers.job.element_bytes()
    saved_names = {name for operator in graph.operators for name in operator.saves}
    makers = {operand.tensor: operator.name for operator in graph.operators for operand in operator.outputs}
    inputs_saved, saved_by = 0.0, dict[str, float]()
    for name in sorted(saved_names):
        tensor = graph.tensors[name]
        if tensor.role in (Role.WEIGHT, Role.CONSTANT):
            continue
        share = float(as_array(tensor.bytes(sizes, widths))) * layers.facts.operand_share / layers.skeleton.dies
        if name in makers:
            saved_by[makers[name]] = saved_by.get(makers[name], 0.0) + share
        else:
            inputs_saved += share
    return inputs_saved, saved_by
