"""Free layouts of a layer class on a tile of dies: every operator cut in its own way."""

from dovetail.search.layouts.evaluate import layout_costs, strategy_costs
from dovetail.search.layouts.free_layouts import LayoutPoint, free_layouts, tile_price
from dovetail.search.layouts.groups import Together
from dovetail.search.layouts.layer_problem import LayerProblem, layer_problem, tile_strings
from dovetail.search.layouts.setting import LayerSetting, group_of
from dovetail.search.layouts.tile import LayerTile, axis_orders, tiles

__all__ = [
    "LayerProblem",
    "LayerSetting",
    "LayerTile",
    "LayoutPoint",
    "Together",
    "axis_orders",
    "free_layouts",
    "group_of",
    "layer_problem",
    "layout_costs",
    "strategy_costs",
    "tile_price",
    "tile_strings",
    "tiles",
]
