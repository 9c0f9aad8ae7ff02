"""Free layouts of a layer class on a tile of dies: every operator is sharded in its own way."""

from dovetail.mapping.layouts.free_layouts import LayoutPoint, free_layouts, tile_price
from dovetail.mapping.layouts.groups import Together
from dovetail.mapping.layouts.layer_problem import LayerProblem, LayoutSpace, layer_problem, tile_strings
from dovetail.mapping.layouts.setting import LayerSetting, group_of
from dovetail.mapping.layouts.tile import LayerTile, axis_orders, tiles

__all__ = [
    "LayerProblem",
    "LayerSetting",
    "LayerTile",
    "LayoutPoint",
    "LayoutSpace",
    "Together",
    "axis_orders",
    "free_layouts",
    "group_of",
    "layer_problem",
    "tile_price",
    "tile_strings",
    "tiles",
]
