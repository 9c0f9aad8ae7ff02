"""A small model on a small wafer, and an encoding of it that breaks no rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from placed_layers import llama

from dovetail.graph import LayerGraph, ModelGraph, Operator, Run
from dovetail.layout import Mesh, Strategy
from dovetail.layout.encoding import AxesOnTile, Encoding, LayerInterval, OperatorEncoding, StageEncoding, Strings, Tile
from dovetail.layout.encoding.named import encode_strategy
from dovetail.layout.encoding.wafer_grid import WaferGrid

SEQ = 64
WAFER = WaferGrid(4, 4)
STRATEGY = Strategy(
    Mesh(data=("d",), tensor=("t",), zero=("d",)), sequence_parallel=True, zero_stage=1
)  # fmt: skip
ON = AxesOnTile(rows=(("t", 2),), cols=(("d", 2),))


@cache
def model() -> ModelGraph:
    """Two blocks between an embedding and a head."""
    layers = llama(hidden=64, heads=8, kv_heads=4)
    return ModelGraph("small", layers, (Run("embedding", 1), Run("block", 2), Run("head", 1)))


def block() -> LayerGraph:
    return model().layers["block"]


def operator(name: str) -> Operator:
    return next(o for o in block().operators if o.name == name)


@cache
def job() -> Encoding:
    """Two stages of 2 × 2 dies side by side: Megatron with sequence parallelism and ZeRO-1."""
    classes = {name: encode_strategy(graph, STRATEGY, ON) for name, graph in model().layers.items()}
    first = StageEncoding(Tile(0, 0, 2, 2), (LayerInterval(0, 2),), {n: classes[n] for n in ("embedding", "block")})
    last = StageEncoding(Tile(2, 0, 2, 2), (LayerInterval(2, 4),), {n: classes[n] for n in ("block", "head")})
    return Encoding(8, 4, (first, last))


def with_operator(encoding: Encoding, name: str, **changes: Any) -> Encoding:
    """The encoding with one operator of its first stage's block changed."""
    stage = encoding.stages[0]
    operators: Mapping[str, OperatorEncoding] = stage.classes["block"]
    # homes are sharded along factors of the strings: other strings, other homes
    kept = OperatorEncoding(Strings()) if "forward" in changes else operators[name]
    changed = {**operators, name: replace(kept, **changes)}
    return with_stage(encoding, classes={**stage.classes, "block": changed})


def with_stage(encoding: Encoding, number: int = 0, **changes: Any) -> Encoding:
    """The encoding with one stage changed."""
    stages = list(encoding.stages)
    stages[number] = replace(stages[number], **changes)
    return replace(encoding, stages=tuple(stages))
