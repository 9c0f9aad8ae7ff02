"""A whole job on a wafer: pipeline stages on tiles of dies, each with its layers and operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import TypeAlias

from dovetail.layout.encoding.operator_encoding import OperatorEncoding

#: A die of the wafer: column and row.
Die: TypeAlias = "tuple[int, int]"


class WaferSchedule(StrEnum):
    """The order in which a stage works on microbatches."""

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


@dataclass(frozen=True, slots=True)
class StageEncoding:
    """One pipeline stage: a tile, the layers on it, and one encoding per layer class."""

    tile: Tile
    #: one interval; several where the schedule is interleaved
    layers: tuple[LayerInterval, ...]
    classes: Mapping[str, Mapping[str, OperatorEncoding]]
    #: the stage whose dies store what operators with the policy `helper` write
    helper: int | None = None

    def transposed(self) -> StageEncoding:
        """Rows become columns: in the tile and in every operator of the stage at once."""
        tile = Tile(self.tile.x, self.tile.y, self.tile.cols, self.tile.rows)
        return replace(
            self, tile=tile, classes={c: {n: o.transposed() for n, o in e.items()} for c, e in self.classes.items()}
        )


@dataclass(frozen=True, slots=True)
class Encoding:
    """A job on a wafer: microbatches, their order, and the stages."""

    #: sequences of a microbatch, and microbatches of a step
    microbatch: int
    microbatches: int
    stages: tuple[StageEncoding, ...]
    schedule: WaferSchedule = WaferSchedule.ONE_F_ONE_B
