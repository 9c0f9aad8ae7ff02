"""Every rule an encoding breaks, from the wafer down to the factors of a string."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from dovetail.errors import InputError
from dovetail.graph import HALF_PRECISION, LayerGraph, ModelGraph, Operator, Phase, Role, differentiate
from dovetail.graph.size import Sizes, as_array
from dovetail.graph.tensor import Element
from dovetail.layout.encoding.factor import REPLICATE, MeshAxis, Strings, places, sharded_by
from dovetail.layout.encoding.job_encoding import Encoding, LayerInterval, StageEncoding, Tile, WaferSchedule
from dovetail.layout.encoding.operator_encoding import Activation, Home, OperatorEncoding, StateStore
from dovetail.layout.encoding.reshard import placed
from dovetail.layout.encoding.rules import Violation, divides, operator_violations
from dovetail.layout.encoding.shards import TileAxes, axis_name, gradients, stage_strings, tile_axes, tile_extent
from dovetail.layout.encoding.stream import stream_buffer_bytes
from dovetail.layout.encoding.wafer_grid import WaferGrid
from dovetail.layout.layout import PARTIAL

#: Peak bytes on a die of a stage, stream buffers apart; who knows costs knows this.
Memory = Callable[[StageEncoding], int]
#: Gradient operators by forward operator and phase.
Gradients = Mapping[tuple[str, Phase], tuple[Operator, ...]]


def validate_encoding(
    encoding: Encoding,
    model: ModelGraph,
    wafer: WaferGrid | Sequence[WaferGrid],
    *,
    seq: int,
    memory: Memory | None = None,
    widths: Mapping[Element, int] = HALF_PRECISION,
    known_gradients: Mapping[str, Gradients] | None = None,
) -> tuple[Violation, ...]:
    """The rules an encoding of a model on a wafer, or on several, breaks; none where it is valid.

    Gradient operators in `known_gradients` are not derived again.
    """
    gradients = dict(known_gradients or {})
    wafers = (wafer,) if isinstance(wafer, WaferGrid) else tuple(wafer)
    limits = dict.fromkeys(limit for each in wafers for limit in each.broken_limits)
    broken = [Violation("physical", "wafer", limit.rstrip(".")) for limit in limits]
    broken += _tile_violations(encoding, wafers)
    chain = [run.layer for run in model.chain for _ in range(run.count)]
    broken += _layer_violations(encoding, len(chain))
    for number, stage in enumerate(encoding.stages):
        own = wafers[min(stage.wafer, len(wafers) - 1)]
        check = _StageCheck(encoding, number, model, own, seq, widths, gradients)
        classes = {name for part in stage.layers for name in chain[part.first : part.end]}
        broken += check.violations(classes)
        broken += check.override_violations(chain)
        if memory is not None and own.capacity_bytes is not None:
            broken += check.memory_violations(memory, own.capacity_bytes)
    return tuple(broken)


def _tile_violations(encoding: Encoding, wafers: tuple[WaferGrid, ...]) -> Iterator[Violation]:
    taken: dict[tuple[int, int, int], int] = {}
    for number, stage in enumerate(encoding.stages):
        where, tile = f"stage {number}", stage.tile
        if stage.wafer >= len(wafers):
            yield Violation("inside", where, f"wafer {stage.wafer} does not exist, there are {len(wafers)}")
            continue
        wafer = wafers[stage.wafer]
        if not wafer.holds(tile):
            yield Violation("inside", where, f"{_text(tile)} reaches beyond {wafer.rows} × {wafer.cols} dies")
            continue
        dead = sorted(set(tile.dies()) & wafer.dead)
        if dead:
            yield Violation("live", where, f"die {dead[0]} of {_text(tile)} is dead")
        elif not wafer.is_connected(tile):
            yield Violation("connected", where, f"dead links disconnect {_text(tile)}")
        dies = [(stage.wafer, *die) for die in tile.dies()]
        others = {taken[die] for die in dies if die in taken}
        if others:
            yield Violation("disjoint", where, f"{_text(tile)} shares dies with stage {min(others)}")
        taken |= dict.fromkeys(dies, number)


def _layer_violations(encoding: Encoding, layers: int) -> Iterator[Violation]:
    longest = max(len(stage.layers) for stage in encoding.stages)
    if (longest > 1) != (encoding.schedule is WaferSchedule.INTERLEAVED):
        sentence = f"{encoding.schedule} has up to {longest} intervals of layers on a stage"
        yield Violation("layers", "job", f"{sentence}; interleaved has several, the others one")
    order: list[tuple[int, LayerInterval]] = []
    for chunk in range(longest):
        order += [(n, stage.layers[chunk]) for n, stage in enumerate(encoding.stages) if chunk < len(stage.layers)]
    ends = [0, *(end for _, interval in order for end in (interval.first, interval.end)), layers]
    # ends come in pairs that meet: 0 and the first beginning, an end and the next beginning, the last end and the total
    for position, (before, after) in enumerate(list(pairwise(ends))[::2]):
        if before != after:
            where = f"stage {order[min(position, len(order) - 1)][0]}"
            yield Violation("layers", where, f"the layers so far end at {before}, the next begin at {after}")
    for number, interval in order:
        if interval.first >= interval.end:
            yield Violation("layers", f"stage {number}", f"layers {interval.first} to {interval.end} do not exist")


class _StageCheck:
    """The rules of one stage."""

    def __init__(
        self,
        encoding: Encoding,
        number: int,
        model: ModelGraph,
        wafer: WaferGrid,
        seq: int,
        widths: Mapping[Element, int],
        gradients: dict[str, Gradients],
    ) -> None:
        self.encoding, self.number, self.stage = encoding, number, encoding.stages[number]
        self.model, self.wafer, self.seq, self.widths = model, wafer, seq, widths
        self._gradients = gradients
        self._known_sizes: dict[str, Sizes] = {}

    def violations(self, needed: set[str]) -> Iterator[Violation]:
        """The rules of layer classes, operators and homes."""
        where, classes = f"stage {self.number}", self.stage.classes
        for name in sorted(needed ^ set(classes)):
            what = "has layers here but no encoding" if name in needed else "is encoded but has no layer here"
            yield Violation("operators", f"{where}, {name}", f"the layer class {what}")
        for name in sorted(needed & set(classes)):
            yield from self._class_violations(name, f"{where}, {name}")
        yield from self._stream_violations(sorted(needed & set(classes)), f"{where}, stream")
        yield from self._axes_violations(f"{where}, axes")
        helper = self.stage.helper
        if helper is not None and (helper == self.number or not 0 <= helper < len(self.encoding.stages)):
            yield Violation("helper", where, f"stage {helper} cannot be its helper")

    def override_violations(self, chain: Sequence[str]) -> Iterator[Violation]:
        """Layers that save or recompute something of their own: they are on the stage and have these operators."""
        for override in self.stage.overrides:
            layers, where = override.layers, f"stage {self.number}, overrides"
            inside = any(part.first <= layers.first < layers.end <= part.end for part in self.stage.layers)
            if not inside:
                yield Violation("layers", where, f"layers {layers.first} to {layers.end} are not on the stage")
                continue
            classes = sorted(set(chain[layers.first : layers.end]) & set(self.stage.classes))
            for name, policy in sorted(override.activation.items()):
                if any(name not in self.stage.classes[layer] for layer in classes):
                    yield Violation("operators", f"{where}, {name}", "not every one of these layers has the operator")
                if policy is Activation.HELPER and self.stage.helper is None:
                    yield Violation("helper", f"{where}, {name}", "is saved on a helper, but the stage names none")

    def memory_violations(self, memory: Memory, capacity: int) -> Iterator[Violation]:
        """Peak bytes and stream buffers against a die's memory."""
        buffers = max((self._buffers(name) for name in self.stage.classes if name in self.model.layers), default=0.0)
        needed = memory(self.stage) + buffers
        if needed > capacity:
            sentence = f"a die needs {needed:.0f} bytes, {buffers:.0f} of them for streams, and has {capacity}"
            yield Violation("memory", f"stage {self.number}", sentence)

    def _buffers(self, name: str) -> float:
        graph = self.model.layers[name]
        sizes, encoded = self._sizes(graph), self.stage.classes[name]
        each = [
            stream_buffer_bytes(graph, o, encoded[o.name].forward, sizes, self.widths)
            for o in graph.operators
            if o.name in encoded
        ]
        return max((float(as_array(size)) for size in each), default=0.0)

    def _sizes(self, graph: LayerGraph) -> Sizes:
        if graph.name not in self._known_sizes:
            self._known_sizes[graph.name] = graph.resolve(batch=self.encoding.microbatch, seq=self.seq)
        return self._known_sizes[graph.name]

    def _class_violations(self, name: str, where: str) -> Iterator[Violation]:
        graph, encoded = self.model.layers[name], self.stage.classes[name]
        operators = {o.name: o for o in graph.operators}
        for operator in sorted(set(operators) ^ set(encoded)):
            what = "is not encoded" if operator in operators else "is not one of the layer's operators"
            yield Violation("operators", f"{where}, {operator}", f"the operator {what}")
        broken: list[Violation] = []
        for operator in (o for n, o in operators.items() if n in encoded):
            broken += self._operator_violations(graph, operator, encoded[operator.name], f"{where}, {operator.name}")
        yield from broken
        try:
            axes = tile_axes(stage_strings(encoded))
        except InputError as error:
            yield Violation("nested", where, error.what)
            return
        if not broken and set(operators) == set(encoded):
            yield from _open_sums(graph, encoded, axes, where)

    def _stream_violations(self, classes: list[str], where: str) -> Iterator[Violation]:
        stream, tile = self.stage.stream, self.stage.tile
        if stream is None:
            return
        if tile_extent(stream) != (tile.rows, tile.cols):
            rows, cols = tile_extent(stream)
            yield Violation("product", where, f"{rows} × {cols} is not {tile.rows} × {tile.cols}")
        # layers of all classes hand on the same tensor
        yield from dict.fromkeys(each for name in classes for each in self._handed_on(stream, name, where))

    def _axes_violations(self, where: str) -> Iterator[Violation]:
        axes, tile = self.stage.axes, self.stage.tile
        if axes is None:
            return
        own = [strings for operators in self.stage.classes.values() for strings in stage_strings(operators)]
        for axis, extent in ((MeshAxis.ROWS, tile.rows), (MeshAxis.COLS, tile.cols)):
            ends = axes.ends(axis)
            needed = {place.high for strings in own for place in places(strings.along(axis))}
            nests = all(low < high and high % low == 0 for low, high in pairwise(ends))
            if not nests or (ends[0], ends[-1]) != (1, extent) or not needed <= set(ends):
                listed = ", ".join(map(str, ends))
                yield Violation("nested", where, f"groups of {listed} dies along {axis} are not those of the strings")

    def _handed_on(self, stream: Strings, name: str, where: str) -> Iterator[Violation]:
        graph = self.model.layers[name]
        sizes = self._sizes(graph)
        dims = [dim for tensor in graph.stream((*graph.inputs, *graph.outputs)) for dim in tensor.dims]
        for dim, parts in sharded_by(stream).items():
            if dim == REPLICATE or not dims:
                continue
            if dim not in dims:
                yield Violation("dim", where, f"{dim} is not one of its dims ({', '.join(dict.fromkeys(dims))})")
            elif not divides(dim, sizes, parts):
                yield Violation("divides", where, f"{dim} of {sizes[dim]} is sharded into {parts} parts")
        try:
            tile_axes([stream, *stage_strings(self.stage.classes[name])])
        except InputError as error:
            yield Violation("nested", where, error.what)

    def _operator_violations(
        self, graph: LayerGraph, operator: Operator, encoded: OperatorEncoding, where: str
    ) -> Iterator[Violation]:
        tile, sizes = self.stage.tile, self._sizes(graph)
        yield from operator_violations(operator, sizes, encoded.forward, tile.rows, tile.cols, where)
        for phase, strings in (
            (Phase.INPUT_GRADIENT, encoded.input_gradient),
            (Phase.WEIGHT_GRADIENT, encoded.weight_gradient),
        ):
            if strings is not None:
                yield from self._gradient_violations(graph, operator, strings, phase, where)
        if encoded.activation is Activation.HELPER and self.stage.helper is None:
            yield Violation("helper", where, "is saved on a helper, but the stage names none")
        weights = [o.indices for o in operator.inputs if graph.tensors[o.tensor].role is Role.WEIGHT]
        for state, home in encoded.homes.items():
            for sentence in _home_faults(home, weights, encoded.forward, hbm=self.wafer.hbm):
                yield Violation("home", f"{where}, {state}", sentence)

    def _gradient_violations(
        self, graph: LayerGraph, operator: Operator, strings: Strings, phase: Phase, where: str
    ) -> Iterator[Violation]:
        where, tile = f"{where}, {phase}", self.stage.tile
        if graph.name not in self._gradients:
            self._gradients[graph.name] = gradients(graph, differentiate(graph))
        operators = self._gradients[graph.name].get((operator.name, phase), ())
        if not operators:
            yield Violation("operators", where, "the operator has no such gradient")
        for gradient in operators:
            yield from operator_violations(gradient, self._sizes(graph), strings, tile.rows, tile.cols, where)


def _home_faults(home: Home, weights: list[tuple[str, ...]], strings: Strings, *, hbm: bool) -> Iterator[str]:
    if home != Home() and not weights:
        yield "the operator has no weights"
        return
    if home.store is StateStore.HBM and not hbm:
        yield "the wafer has no HBM"
    if len(set(home.sharded)) < len(home.sharded):
        yield "a factor appears twice"
    for axis, position in home.sharded:
        string = strings.along(axis)
        if not 0 <= position < len(string):
            yield f"there is no factor {position} along {axis}"
        elif all(string[position].dim in indices for indices in weights):
            yield f"factor {position} along {axis} already shards the weights along {string[position].dim}"


def _open_sums(
    graph: LayerGraph, encoded: Mapping[str, OperatorEncoding], axes: TileAxes, where: str
) -> Iterator[Violation]:
    """A sum may stay open only along axes where every term is one."""
    claims = {
        name: [(axis, p) for axis in MeshAxis for p in places(o.forward.along(axis)) if p.factor.dim == PARTIAL]
        for name, o in encoded.items()
    }
    if not any(claims.values()):
        return
    shards = {p.operator.name: p.shards for p in placed(graph, encoded, axes).forward}
    for name, claimed in claims.items():
        for axis, place in claimed:
            lows = [low for low in axes.ends(axis) if place.low <= low < place.high]
            if any(shards[name].get(axis_name(axis, low)) != PARTIAL for low in lows):
                sentence = f"not every term is a partial sum along {axis}, {place.low} dies apart"
                yield Violation("partial_sums", f"{where}, {name}", sentence)


def _text(tile: Tile) -> str:
    return f"the tile of {tile.rows} × {tile.cols} dies at ({tile.x}, {tile.y})"
