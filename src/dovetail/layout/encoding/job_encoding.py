"""A whole job on a wafer: pipeline stages on tiles of dies, each with its layers and operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import TypeAlias

from dovetail.frozen import frozen
from dovetail.layout.encoding.factor import Strings
from dovetail.layout.encoding.operator_encoding import Activation, OperatorEncoding
from dovetail.layout.encoding.shards import TileAxes

#: A die of the wafer: column and row.
Die: TypeAlias = "tuple[int, int]"


class WaferSchedule(StrEnum):
    """The order in which a stage works on microbatches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero_bubble"


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    """A rectangle of dies: column and row of its first die, and its extent."""

    x: int
    y: int
    rows: int
    cols: int

    def dies(self) -> Iterator[Die]:
        """Its dies, row by row."""
        return ((x, y) for y, x in product(range(self.y, self.y + self.rows), range(self.x, self.x + self.cols)))


@dataclass(frozen=True, slots=True, order=True)
class LayerInterval:
    """Layers of the model's chain: `first` and those after it, up to but without `end`."""

    first: int
    end: int


@frozen
class ActivationOverride:
    """Layers of a stage that save or recompute other outputs than the rest of their class does."""

    layers: LayerInterval
    #: operator → what becomes of its output in these layers
    activation: Mapping[str, Activation]


@frozen
class StageEncoding:
    """One pipeline stage: a tile, the layers on it, and one encoding per layer class."""

    tile: Tile
    #: one interval; several where the schedule is interleaved
    layers: tuple[LayerInterval, ...]
    classes: Mapping[str, Mapping[str, OperatorEncoding]]
    #: the stage whose dies store what operators with the policy `helper` write
    helper: int | None = None
    #: of several wafers, the one the tile is on
    wafer: int = 0
    #: how the residual stream is sharded between layers; None: as each layer class reads it
    stream: Strings | None = None
    overrides: tuple[ActivationOverride, ...] = ()
    #: the atomic axes that collectives run along, where these are finer than the strings need
    axes: TileAxes | None = None

    def transposed(self) -> StageEncoding:
        """Rows become columns: in the tile and in every operator of the stage at once."""
        tile = Tile(self.tile.x, self.tile.y, self.tile.cols, self.tile.rows)
        return replace(
            self,
            tile=tile,
            classes={c: {n: o.transposed() for n, o in e.items()} for c, e in self.classes.items()},
            stream=None if self.stream is None else self.stream.transposed(),
            axes=None if self.axes is None else TileAxes(self.axes.cols, self.axes.rows),
        )


@frozen
class Encoding:
    """A job on a wafer: microbatches, their order, and the stages."""

    #: sequences of a microbatch, and microbatches of a step
    microbatch: int
    microbatches: int
    stages: tuple[StageEncoding, ...]
    schedule: WaferSchedule = WaferSchedule.ONE_F_ONE_B
