"""A lower bound of a stage with a price on memory: it combines layouts, recompute and capacity.

This is a Lagrangian relaxation. For any price of a byte, n blocks cost at least n times the lowest seconds plus priced
bytes of one block, and the blocks of a stage use at most the memory of a die. So their seconds are at least that sum
minus the price of a full die. Every block may choose by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dovetail.arrays import Floats
from dovetail.mapping.elimination.messages import Messages, tree_of
from dovetail.mapping.layouts.groups import Together
from dovetail.mapping.layouts.layer_problem import LayoutSpace, layer_problem
from dovetail.mapping.layouts.tile import LayerTile
from dovetail.mapping.tiles.least_step import TilePipeline
from dovetail.mapping.tiles.tile_layers import TileLayers

#: Most entries of a table: with recompute, tables are larger than with layouts alone.
MOST_ENTRIES = 100_000_000

#: Prices of a full die, as multiples of the seconds of its blocks.
PRICES = (0.1, 0.3, 0.2, 0.03, 0.5)


def priced_stage_seconds(
    layers: TileLayers, tile: LayerTile, together: Together, pipeline: TilePipeline, block_s: float
) -> Iterator[Floats]:
    """Lower bounds of a micro-batch's seconds by stage and number of blocks, tighter with every price tried."""
    setting = layers.setting(layers.main_block, tile)
    space = LayoutSpace(together=together, recompute_singly=True, most_entries=MOST_ENTRIES)
    problem = layer_problem(setting, tile, space).problem
    tree = tree_of(problem)
    numbers = np.arange(pipeline.blocks + 1)
    share = pipeline.capacity_bytes * pipeline.stages / pipeline.blocks
    flights = pipeline.flights
    bounds: Floats = np.tile(numbers * np.float64(block_s), (pipeline.stages, 1))
    # the lowest cost with some micro-batches in flight is a bound for more of them too
    for in_flight in sorted({1, int(flights.max() + 1) // 2, int(flights.max())}):
        for price in (part * block_s / share for part in PRICES):
            lowest = Messages(problem, tree, np.array([1.0, price, price * in_flight])).lowest
            bound = np.maximum(numbers * lowest - price * pipeline.capacity_bytes, 0.0)
            bounds[flights >= in_flight] = np.maximum(bounds[flights >= in_flight], bound)
            yield bounds
