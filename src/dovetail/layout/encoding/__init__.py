"""The operator-centric encoding: how every operator of every stage runs on its tile of dies."""

from dovetail.layout.encoding.canonical import canonical_as_placed, canonical_operator, canonical_strings, canonicalise
from dovetail.layout.encoding.document import EncodingHeader, from_json, read_encoding, to_json
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
from dovetail.layout.encoding.named import encode_strategy
from dovetail.layout.encoding.operator_encoding import Activation, Home, OperatorEncoding, StateStore
from dovetail.layout.encoding.operator_space import OperatorSpace, count_operator, dominated, enumerate_operator
from dovetail.layout.encoding.reshard import Reshard, placed, reshards
from dovetail.layout.encoding.rules import RULES, Violation, operator_violations
from dovetail.layout.encoding.shards import AxesOnTile, TileAxes, decode, encode, gradient_shards, tile_axes
from dovetail.layout.encoding.stream import stream_buffer_bytes, streamed_operand
from dovetail.layout.encoding.tile_layouts import TileLayouts
from dovetail.layout.encoding.validate import validate_encoding
from dovetail.layout.encoding.wafer_grid import WaferGrid

__all__ = [
    "REPLICATE",
    "RULES",
    "Activation",
    "ActivationOverride",
    "AxesOnTile",
    "EncodedStrategy",
    "Encoding",
    "EncodingHeader",
    "Factor",
    "FreeStrategy",
    "Home",
    "LayerInterval",
    "MeshAxis",
    "OperatorEncoding",
    "OperatorSpace",
    "Reshard",
    "StageEncoding",
    "StateStore",
    "String",
    "Strings",
    "Tile",
    "TileAxes",
    "TileLayouts",
    "Violation",
    "WaferGrid",
    "WaferSchedule",
    "as_strategy",
    "canonical_as_placed",
    "canonical_operator",
    "canonical_strings",
    "canonicalise",
    "count_operator",
    "decode",
    "dominated",
    "encode",
    "encode_strategy",
    "enumerate_operator",
    "from_json",
    "gradient_shards",
    "layer_strategy",
    "operator_violations",
    "placed",
    "read_encoding",
    "reshards",
    "stream_buffer_bytes",
    "stream_shards",
    "streamed_operand",
    "tile_axes",
    "to_json",
    "validate_encoding",
]
