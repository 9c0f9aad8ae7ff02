"""Where the stages of a pipeline go on a wafer: disjoint tiles of live dies, communicating stages nearby."""

from dovetail.mapping.tilings.lent_memory import helpers
from dovetail.mapping.tilings.most_tiles import most_tiles
from dovetail.mapping.tilings.place_tiles import TilePlacement, place_tiles
from dovetail.mapping.tilings.problem import Minimise, StageEdge, StageShapes, TileProblem, tile_problem

__all__ = [
    "Minimise",
    "StageEdge",
    "StageShapes",
    "TilePlacement",
    "TileProblem",
    "helpers",
    "most_tiles",
    "place_tiles",
    "tile_problem",
]
