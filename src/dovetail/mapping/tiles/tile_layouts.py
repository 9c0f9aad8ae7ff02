"""Layouts worth placing on the stages of a skeleton: the fastest at every price of memory, and a bound for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dovetail.graph import LayerGraph, Operator
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.layout.encoding import Strings, TileLayouts
from dovetail.mapping.elimination.messages import Messages, tree_of
from dovetail.mapping.layouts.groups import Together, mixture_operators
from dovetail.mapping.layouts.layer_problem import LayoutSpace, layer_problem, tile_strings
from dovetail.mapping.layouts.options import Allowed
from dovetail.mapping.layouts.setting import LayerSetting
from dovetail.mapping.layouts.tile import LayerTile, tiles
from dovetail.mapping.tiles.tile_layers import TileLayers


def searched_tiles(layers: TileLayers, rows: int, cols: int) -> Iterator[LayerTile]:
    """Tiles whose axes shard as many sequences as possible: along an axis tokens are sharded as sequences or positions.

    This restricts the space: positions are rarely better, and then by less than a percent.
    """
    graph = layers.main_block
    candidates = list(tiles(graph, layers.sizes(graph), rows, cols))
    for tile in candidates:
        larger = (
            other
            for other in candidates
            if (other.axes, other.group_axes) == (tile.axes, tile.group_axes)
            and set(other.batch_axes) > set(tile.batch_axes)
        )
        if next(larger, None) is None:
            yield tile


class TileSearch:
    """Layouts of all layer classes along the axes of one tile."""

    def __init__(self, layers: TileLayers, tile: LayerTile, allowed: Allowed | None = None) -> None:
        self._layers, self._tile, self._allowed = layers, tile, allowed
        self._main = self._priced(layers.main_block, None)
        self._followers: dict[tuple[str, tuple[tuple[str, str], ...]], PricedLayer] = {}

    @property
    def together(self) -> Together:
        """How many operators of a block are sharded alike."""
        return self._main.together

    @property
    def least_s(self) -> float:
        """A lower bound of a block's seconds, whatever it saves."""
        return self._main.least_s

    def ends_s(self) -> tuple[float, float]:
        """Lowest seconds of a micro-batch before the blocks, and after them."""
        graph, blocks = self._layers.job.graph(), self._layers.blocks()
        seconds = {
            name: count * self._priced(graph.layers[name], None).least_s
            for name, count in graph.counts().items()
            if name not in blocks
        }
        first = seconds.pop(graph.chain[0].layer, 0.0)
        return first, sum(seconds.values())

    def layouts(self) -> tuple[TileLayouts, ...]:
        """The cheapest layouts at each price of memory; other classes follow the residual stream of the main one."""
        tile, main = self._tile, self._layers.main_block.name
        causes: dict[TileLayouts, tuple[dict[str, str], tuple[float, float]]] = {}
        for price in self._layers.prices(self.least_s):
            strings, stream = self._main.best(price)
            layouts = TileLayouts.of(tile.rows, tile.cols, tile_strings(tile, stream), {main: strings})
            causes.setdefault(layouts, (stream, price))
        return tuple(self._with_other_classes(layouts, *cause) for layouts, cause in causes.items())

    def _with_other_classes(
        self, layouts: TileLayouts, stream: dict[str, str], price: tuple[float, float]
    ) -> TileLayouts:
        """The main class's layouts completed with all other classes."""
        main = self._layers.main_block.name
        classes: dict[str, Mapping[str, Strings]] = {main: layouts.operators(main)}
        for name, graph in self._layers.job.graph().layers.items():
            if name != main:
                classes[name] = self._follower(graph, stream).best(price)[0]
        return TileLayouts.of(layouts.rows, layouts.cols, layouts.stream, classes)

    def _follower(self, graph: LayerGraph, stream: dict[str, str]) -> PricedLayer:
        key = graph.name, tuple(sorted(stream.items()))
        if key not in self._followers:
            self._followers[key] = self._priced(graph, stream)
        return self._followers[key]

    def _priced(self, graph: LayerGraph, stream: Mapping[str, str] | None) -> PricedLayer:
        allowed = self._allowed
        if graph is not self._layers.main_block and mixture_operators(graph):
            # a class of few layers with operators of all kinds (multi-token prediction): its tables would be too large
            allowed = _coarse
        return PricedLayer(self._layers.setting(graph, self._tile), self._tile, stream, allowed)


def _coarse(operator: Operator, dim: str) -> bool:
    """Whether this shards tokens, experts or the vocabulary."""
    return dim in operator.dims and dim in ("batch", "seq", "experts", EXPERT_TOKENS, "vocab")


class PricedLayer:
    """A layer class on a tile, solved at different prices of memory."""

    def __init__(
        self,
        setting: LayerSetting,
        tile: LayerTile,
        stream: Mapping[str, str] | None = None,
        allowed: Allowed | None = None,
    ) -> None:
        self._problem = layer_problem(setting, tile, LayoutSpace(stream=stream, allowed=allowed, recompute=False))
        self.together = self._problem.together
        self._tree = tree_of(self._problem.problem)
        self.least_s = self._solved((0.0, 0.0)).lowest

    def _solved(self, price: tuple[float, float]) -> Messages:
        return Messages(self._problem.problem, self._tree, np.array([1.0, *price]))

    def best(self, price: tuple[float, float]) -> tuple[dict[str, Strings], dict[str, str]]:
        """Strings and stream with the lowest sum of seconds and priced state and saved bytes."""
        choice = np.array(self._solved(price).choice(), np.int64)
        return self._problem.strings(choice), self._problem.stream(choice)
