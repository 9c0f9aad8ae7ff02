"""The operator-centric encoding: how every operator of every stage runs on its tile of dies."""

from dovetail.layout.encoding.encoded_strategy import EncodedStrategy, as_strategy, stream_shards
from dovetail.layout.encoding.factor import REPLICATE, Factor, MeshAxis, String, Strings
from dovetail.layout.encoding.free_strategy import FreeStrategy, layer_strategy
from dovetail.layout.encoding.job_encoding import (
    ActivationOverride,
    Encoding,
    LayerInterval,
    StageEncoding,
    Tile,
    WaferSchedule,
)
from dovetail.layout.encoding.operator_encoding import Activation, Home, OperatorEncoding, StateStore
from dovetail.layout.encoding.shards import AxesOnTile, TileAxes, decode, encode, gradient_shards, tile_axes
from dovetail.layout.encoding.tile_layouts import TileLayouts

__all__ = [
    "REPLICATE",
    "Activation",
    "ActivationOverride",
    "AxesOnTile",
    "EncodedStrategy",
    "Encoding",
    "Factor",
    "FreeStrategy",
    "Home",
    "LayerInterval",
    "MeshAxis",
    "OperatorEncoding",
    "StageEncoding",
    "StateStore",
    "String",
    "Strings",
    "Tile",
    "TileAxes",
    "TileLayouts",
    "WaferSchedule",
    "as_strategy",
    "decode",
    "encode",
    "gradient_shards",
    "layer_strategy",
    "stream_shards",
    "tile_axes",
]
