"""Layouts worth placing on the stages of a skeleton: the fastest at every price of memory, and a bound for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from dovetail.graph import LayerGraph, Operator
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.layout.encoding import Strings, TileLayouts
from dovetail.mapping.layouts.axis_labels import Allowed
from dovetail.mapping.layouts.groups import Together, mixture_operators
from dovetail.mapping.layouts.layer_problem import LayerProblem, LayoutSpace, layer_problem, tile_strings
from dovetail.mapping.layouts.tile import LayerTile, tiles
from dovetail.mapping.tiles.every_layout import every_layout
from dovetail.mapping.tiles.priced_lower_bound import PricedBlock, PricedLayout
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
        self._followers: dict[tuple[str, tuple[tuple[str, str], ...]], PricedBlock] = {}

    @cached_property
    def _main_problem(self) -> LayerProblem:
        return self._problem(self._layers.main_block, None)

    @cached_property
    def plain(self) -> PricedBlock:
        """The main block if everything is saved."""
        return PricedBlock(self._main_problem)

    @cached_property
    def fastest(self) -> PricedLayout | None:
        """The layout of a block with the fewest seconds, whatever it saves."""
        return self.plain.at(0.0, 1)

    @property
    def together(self) -> Together:
        """How many operators of a block are sharded alike."""
        return self._main_problem.together

    @property
    def least_s(self) -> float:
        """A lower bound of a block's seconds, whatever it saves."""
        return float("inf") if self.fastest is None else self.fastest.lowest

    def priced(self, together: Together, *, recompute: bool) -> PricedBlock:
        """The main block with a choice of what is recomputed."""
        space = LayoutSpace(
            allowed=self._allowed,
            recompute=recompute,
            together=together,
            recompute_singly=True,
            most_entries=MOST_ENTRIES,
        )
        main = self._layers.main_block
        return PricedBlock(layer_problem(self._layers.setting(main, self._tile), self._tile, space))

    def ends_s(self) -> tuple[float, float]:
        """Lowest seconds of a micro-batch before the blocks, and after them."""
        graph, blocks = self._layers.job.graph(), self._layers.blocks()
        seconds: dict[str, float] = {}
        for name, count in graph.counts().items():
            if name not in blocks:
                fastest = PricedBlock(self._problem(graph.layers[name], None)).at(0.0, 1)
                seconds[name] = float("inf") if fastest is None else count * fastest.lowest
        first = seconds.pop(graph.chain[0].layer, 0.0)
        return first, sum(seconds.values())

    def layouts(self) -> tuple[TileLayouts, ...]:
        """The cheapest layouts at several prices of memory."""
        return self.completed(self.at_prices())

    def at_prices(self) -> list[PricedLayout]:
        """The cheapest layouts of the main class at several prices of memory, everything saved."""
        found = [self.plain.at_prices(*prices) for prices in self._layers.prices(self.least_s)]
        return [each for each in found if each is not None]

    def every_layout(self, most: int) -> tuple[TileLayouts, ...] | None:
        """All layouts of all classes if they are at most so many; None if there are more."""
        main = self._layers.main_block
        others = {name: each for name, each in self._layers.job.graph().layers.items() if name != main.name}
        return every_layout(main, others, self._any_problem, most)

    def _any_problem(self, graph: LayerGraph, stream: Mapping[str, str] | None) -> LayerProblem:
        free = graph is self._layers.main_block and stream is None
        return self._main_problem if free else self._problem(graph, stream)

    def completed(self, found: Sequence[PricedLayout]) -> tuple[TileLayouts, ...]:
        """Different layouts of the main class with all other classes, which follow its residual stream."""
        tile, main = self._tile, self._layers.main_block.name
        causes: dict[TileLayouts, PricedLayout] = {}
        for each in found:
            layouts = TileLayouts.of(tile.rows, tile.cols, tile_strings(tile, each.stream), {main: each.strings})
            causes.setdefault(layouts, each)
        return tuple(dict.fromkeys(self._with_other_classes(*cause) for cause in causes.items()))

    def _with_other_classes(self, layouts: TileLayouts, cause: PricedLayout) -> TileLayouts:
        """The main class's layouts completed with all other classes."""
        main = self._layers.main_block.name
        classes: dict[str, Mapping[str, Strings]] = {main: layouts.operators(main)}
        for name, graph in self._layers.job.graph().layers.items():
            if name != main:
                follower = self._follower(graph, cause.stream).at_prices(*cause.prices)
                assert follower is not None, "every class has a layout with any stream"
                classes[name] = follower.strings
        return TileLayouts.of(layouts.rows, layouts.cols, layouts.stream, classes)

    def _follower(self, graph: LayerGraph, stream: dict[str, str]) -> PricedBlock:
        key = graph.name, tuple(sorted(stream.items()))
        if key not in self._followers:
            self._followers[key] = PricedBlock(self._problem(graph, stream))
        return self._followers[key]

    def _problem(self, graph: LayerGraph, stream: Mapping[str, str] | None) -> LayerProblem:
        allowed = self._allowed
        if graph is not self._layers.main_block and mixture_operators(graph):
            # a class of few layers with operators of all kinds (multi-token prediction): its tables would be too large
            allowed = _coarse
        space = LayoutSpace(stream=stream, allowed=allowed, recompute=False)
        return layer_problem(self._layers.setting(graph, self._tile, working=True), self._tile, space)


#: Most entries of a table: with recompute, tables are larger than with layouts alone.
MOST_ENTRIES = 5_000_000


def _coarse(operator: Operator, dim: str) -> bool:
    """Whether this shards tokens, experts or the vocabulary."""
    return dim in operator.dims and dim in ("batch", "seq", "experts", EXPERT_TOKENS, "vocab")
