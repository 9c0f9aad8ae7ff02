"""Layouts of a whole model on tiles of dies: how every operator and the residual stream are sharded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from dovetail.errors import InputError, quoted
from dovetail.frozen import frozen
from dovetail.layout.encoding.factor import REPLICATE, Factor, String, Strings, sharded_by
from dovetail.layout.encoding.shards import TileAxes, tile_axes, tile_extent

#: A factor as in a plan file: dies, then the dim they shard.
_FACTOR = re.compile(r"(\d{1,8}) ([a-z_+]{1,100})")


@frozen
class TileLayouts:
    """How a model is sharded on the tile of a stage, alike on all stages; the residual stream has the dims of x."""

    rows: int
    cols: int
    stream: Strings
    #: layer class → operator → its strings, in order of names
    classes: tuple[tuple[str, tuple[tuple[str, Strings], ...]], ...]

    @staticmethod
    def of(rows: int, cols: int, stream: Strings, classes: Mapping[str, Mapping[str, Strings]]) -> TileLayouts:
        """Layouts with everything in order, so that equal ones are equal."""
        ordered = tuple((name, tuple(sorted(classes[name].items()))) for name in sorted(classes))
        return TileLayouts(rows, cols, stream, ordered)

    @property
    def chips(self) -> int:
        """Dies of a tile."""
        return self.rows * self.cols

    @property
    def stream_replicas(self) -> int:
        """Dies of a tile with the same shard of the residual stream."""
        return sharded_by(self.stream).get(REPLICATE, 1)

    def operators(self, layer: str) -> dict[str, Strings]:
        """The strings of a layer class."""
        return dict(dict(self.classes)[layer])

    def strings(self) -> Iterable[Strings]:
        """Everything that is written along the tile's axes."""
        return (self.stream, *(strings for _, operators in self.classes for _, strings in operators))

    def axes(self) -> TileAxes:
        """The fewest atomic axes all of them can be written along."""
        return _axes(self)


@lru_cache(maxsize=1024)
def _axes(layouts: TileLayouts) -> TileAxes:
    for strings in layouts.strings():
        if tile_extent(strings) != (layouts.rows, layouts.cols):
            extent = " × ".join(map(str, tile_extent(strings)))
            fix = f"factors should multiply to {layouts.rows} rows and {layouts.cols} columns"
            raise InputError("plan: layouts", f"has strings for {extent} dies", fix)
    return tile_axes(layouts.strings())


def string_text(string: String) -> str:
    """A string as in a plan file: `4 seq, 2 replicate`, innermost first."""
    return ", ".join(f"{factor.size} {factor.dim}" for factor in string)


def string_of(text: str, where: str) -> String:
    """The string that a text means."""
    factors: list[Factor] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = _FACTOR.fullmatch(part)
        if match is None or int(match[1]) < 1:
            fix = f"write dies and the dim they shard, innermost first: 4 seq, 2 {REPLICATE}"
            raise InputError(where, f"has {quoted(part)}", fix)
        factors.append(Factor(int(match[1]), match[2]))
    return tuple(factors)
