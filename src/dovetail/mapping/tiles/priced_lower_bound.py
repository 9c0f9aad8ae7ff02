"""What a stage takes at least when memory has a price: a bound that knows layouts, recompute and capacity together.

For any price of a byte, seconds and priced bytes of every block together are at least as many times the least of one
block, and all blocks of a stage hold no more bytes than a die has (Lagrangian relaxation): so their seconds are at
least that sum without the price of a full die. Every block may choose by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dovetail.arrays import Floats
from dovetail.mapping.elimination.messages import Messages, tree_of
from dovetail.mapping.layouts.groups import Together
from dovetail.mapping.layouts.layer_problem import layer_problem
from dovetail.mapping.layouts.tile import LayerTile
from dovetail.mapping.tiles.least_step import TilePipeline
from dovetail.mapping.tiles.tile_layers import TileLayers

#: Most entries of a table: with recompute tables are larger than those of layouts alone.
MOST_ENTRIES = 100_000_000

#: Prices of what fills a die, in times of the seconds of its blocks.
PRICES = (0.1, 0.3, 0.2, 0.03, 0.5)


def priced_stage_seconds(
    layers: TileLayers, tile: LayerTile, together: Together, pipeline: TilePipeline, block_s: float
) -> Iterator[Floats]:
    """Least seconds of a microbatch by stage and number of blocks on it, on a tile; every price makes them better."""
    setting = layers.setting(layers.main_block, tile)
    problem = layer_problem(
        setting, tile, recompute=True, together=together, each_by_itself=True, most_entries=MOST_ENTRIES
    ).problem
    tree = tree_of(problem)
    numbers = np.arange(pipeline.blocks + 1)
    share = pipeline.capacity_bytes * pipeline.stages / pipeline.blocks
    flights = pipeline.flights
    bounds: Floats = np.tile(numbers * np.float64(block_s), (pipeline.stages, 1))
    # what is least with some microbatches in flight is not more than with more of them
    for in_flight in sorted({1, int(flights.max() + 1) // 2, int(flights.max())}):
        for price in (part * block_s / share for part in PRICES):
            lowest = Messages(problem, tree, np.array([1.0, price, price * in_flight])).lowest
            bound = np.maximum(numbers * lowest - price * pipeline.capacity_bytes, 0.0)
            bounds[flights >= in_flight] = np.maximum(bounds[flights >= in_flight], bound)
            yield bounds
