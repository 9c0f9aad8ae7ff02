"""Whole encodings of a job on a wafer: sampled, and varied one choice at a time; always valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from random import Random

from sampled_operators import SampledOperatorSpace

from dovetail.graph import LayerGraph, ModelGraph, Operator, Phase, Role, differentiate
from dovetail.layout.encoding.canonical import canonicalise
from dovetail.layout.encoding.factor import REPLICATE, Factor, MeshAxis, Strings, places, primes
from dovetail.layout.encoding.job_encoding import Encoding, LayerInterval, StageEncoding, Tile, WaferSchedule
from dovetail.layout.encoding.operator_encoding import Activation, Home, OperatorEncoding, StateStore
from dovetail.layout.encoding.shards import gradients
from dovetail.layout.encoding.validate import Gradients, Memory, validate_encoding
from dovetail.layout.encoding.wafer_grid import WaferGrid

#: Tries before sampling or a change is given up.
TRIES = 200


class EncodingSpace:
    """The encodings of a model on a wafer, tiles being rectangles of one shape on a regular grid."""

    def __init__(
        self,
        model: ModelGraph,
        wafer: WaferGrid,
        *,
        seq: int,
        global_batch: int,
        memory: Memory | None = None,
        dominated: bool = True,
    ) -> None:
        self.model, self.wafer, self.seq, self.global_batch = model, wafer, seq, global_batch
        self.memory, self.dominated = memory, dominated
        self._spaces: dict[object, SampledOperatorSpace] = {}

    @cached_property
    def chain(self) -> tuple[str, ...]:
        """The layer class of every layer."""
        return tuple(run.layer for run in self.model.chain for _ in range(run.count))

    @cached_property
    def _gradients(self) -> Mapping[str, Gradients]:
        return {name: gradients(graph, differentiate(graph)) for name, graph in self.model.layers.items()}

    def is_valid(self, encoding: Encoding) -> bool:
        """Whether no rule is broken."""
        return not validate_encoding(
            encoding, self.model, self.wafer, seq=self.seq, memory=self.memory, known_gradients=self._gradients
        )

    def sample(self, random: Random) -> Encoding:
        """A random encoding in canonical form."""
        for _ in range(TRIES):
            encoding = self._sampled(random)
            if encoding is not None and self.is_valid(encoding):
                return canonicalise(encoding, self.wafer)
        raise AssertionError(f"no valid encoding among {TRIES}")

    def mutate(self, encoding: Encoding, random: Random) -> Encoding:
        """Another encoding, one choice away, in canonical form."""
        before = canonicalise(encoding, self.wafer)
        changes: tuple[Callable[[Encoding, Random], Encoding], ...] = (
            *(self._with_operator,) * 6, self._with_layers, self._with_microbatch, self._with_helper,
        )  # fmt: skip
        for _ in range(TRIES):
            after = canonicalise(random.choice(changes)(before, random), self.wafer)
            if after != before and self.is_valid(after):
                return after
        return self.sample(random)

    def _sampled(self, random: Random) -> Encoding | None:
        rows, cols = random.randint(1, self.wafer.rows), random.randint(1, self.wafer.cols)
        tiles = [t for t in self._tiles(rows, cols) if not set(t.dies()) & self.wafer.dead]
        tiles = [t for t in tiles if self.wafer.is_connected(t)]
        if not tiles:
            return None
        number = random.randint(1, min(len(tiles), len(self.chain)))
        chunks = 2 if 2 * number <= len(self.chain) and random.random() < 0.25 else 1
        ends = [0, *sorted(random.sample(range(1, len(self.chain)), number * chunks - 1)), len(self.chain)]
        microbatch = random.choice([n for n in range(1, self.global_batch + 1) if self.global_batch % n == 0])
        stages: list[StageEncoding] = []
        for index in range(number):
            parts = tuple(LayerInterval(ends[i], ends[i + 1]) for i in range(index, number * chunks, number))
            tile = tiles[index]
            chain = {axis: _chain(size, random) for axis, size in zip(MeshAxis, (rows, cols), strict=True)}
            helper = random.choice([None, *(n for n in range(number) if n != index)])
            classes = {
                name: {
                    o.name: self._operator(name, o, tile, microbatch, chain, random, helps=helper is not None)
                    for o in self.model.layers[name].operators
                }
                for name in sorted({n for part in parts for n in self.chain[part.first : part.end]})
            }
            stages.append(StageEncoding(tile, parts, classes, helper))
        plain = random.choice((WaferSchedule.ONE_F_ONE_B, WaferSchedule.ZERO_BUBBLE))
        schedule = WaferSchedule.INTERLEAVED if chunks > 1 else plain
        return Encoding(microbatch, self.global_batch // microbatch, tuple(stages), schedule)

    def _tiles(self, rows: int, cols: int) -> list[Tile]:
        """A grid of tiles in snake order: stages that follow each other lie side by side."""
        tiles: list[Tile] = []
        for line, y in enumerate(range(0, self.wafer.rows - rows + 1, rows)):
            row = [Tile(x, y, rows, cols) for x in range(0, self.wafer.cols - cols + 1, cols)]
            tiles += row[::-1] if line % 2 else row
        return tiles

    def _operator(
        self,
        layer: str,
        operator: Operator,
        tile: Tile,
        microbatch: int,
        chain: Mapping[MeshAxis, set[int]],
        random: Random,
        *,
        helps: bool,
    ) -> OperatorEncoding:
        graph = self.model.layers[layer]
        forward = self._strings(graph, operator, tile, microbatch, chain, random)
        encoded = OperatorEncoding(forward, activation=random.choice(_policies(helps=helps)))
        for phase, name in ((Phase.INPUT_GRADIENT, "input_gradient"), (Phase.WEIGHT_GRADIENT, "weight_gradient")):
            gradients = self._gradients[layer].get((operator.name, phase), ())
            if len(gradients) == 1 and random.random() < 0.125:
                strings = self._strings(graph, gradients[0], tile, microbatch, chain, random)
                encoded = replace(encoded, **{name: strings})
        return replace(encoded, **self._homes(graph, operator, forward, random))

    def _strings(
        self,
        graph: LayerGraph,
        operator: Operator,
        tile: Tile,
        microbatch: int,
        chain: Mapping[MeshAxis, set[int]],
        random: Random,
    ) -> Strings:
        space = self.space(graph, operator, tile, microbatch)
        for _ in range(TRIES):
            drawn = space.sample(random)
            turned = drawn.transposed() if tile.rows == tile.cols and random.random() < 0.5 else drawn
            if all({p.high for p in places(turned.along(axis))} <= chain[axis] for axis in MeshAxis):
                return turned
        return Strings(*(((Factor(n, REPLICATE),) if n > 1 else ()) for n in (tile.rows, tile.cols)))

    def space(self, graph: LayerGraph, operator: Operator, tile: Tile, microbatch: int) -> SampledOperatorSpace:
        """The space of one operator on a tile, made once."""
        key = (graph.name, operator.name, tile.rows, tile.cols, microbatch)
        if key not in self._spaces:
            sizes = graph.resolve(batch=microbatch, seq=self.seq)
            self._spaces[key] = SampledOperatorSpace(operator, sizes, tile.rows, tile.cols, dominated=self.dominated)
        return self._spaces[key]

    def _homes(self, graph: LayerGraph, operator: Operator, strings: Strings, random: Random) -> dict[str, Home]:
        weights = [o.indices for o in operator.inputs if graph.tensors[o.tensor].role is Role.WEIGHT]
        if not weights:
            return {}
        replicated = [
            (axis, position)
            for axis in MeshAxis
            for position, factor in enumerate(strings.along(axis))
            if any(factor.dim not in indices for indices in weights)
        ]
        stores = [store for store in StateStore if self.wafer.hbm or store is not StateStore.HBM]
        names = ("weights", "gradients", "optimizer")
        return {n: Home(random.choice(stores), tuple(c for c in replicated if random.random() < 0.5)) for n in names}

    def _with_operator(self, encoding: Encoding, random: Random) -> Encoding:
        """One operator with other strings, policy, homes or gradients of its own."""
        number = random.randrange(len(encoding.stages))
        stage = encoding.stages[number]
        layer = random.choice(sorted(stage.classes))
        graph = self.model.layers[layer]
        operator = random.choice(graph.operators)
        before = stage.classes[layer][operator.name]
        helps = stage.helper is not None
        match random.randrange(4):
            case 0:
                forward = self.space(graph, operator, stage.tile, encoding.microbatch).mutate(before.forward, random)
                turned = forward.transposed() if random.random() < 0.5 else forward
                after = replace(before, forward=turned, **self._homes(graph, operator, turned, random))
            case 1:
                after = replace(before, activation=random.choice(_policies(helps=helps)))
            case 2:
                after = replace(before, **self._homes(graph, operator, before.forward, random))
            case _:
                extents = zip(MeshAxis, (stage.tile.rows, stage.tile.cols), strict=True)
                chain = {axis: _group_ends(size) for axis, size in extents}
                fresh = self._operator(layer, operator, stage.tile, encoding.microbatch, chain, random, helps=helps)
                after = replace(before, input_gradient=fresh.input_gradient, weight_gradient=fresh.weight_gradient)
        classes = {**stage.classes, layer: {**stage.classes[layer], operator.name: after}}
        return _with_stage(encoding, number, replace(stage, classes=classes))

    def _with_layers(self, encoding: Encoding, random: Random) -> Encoding:
        """One layer more on one stage and one less on the next, or the other plain schedule."""
        if len(encoding.stages) == 1 or encoding.schedule is WaferSchedule.INTERLEAVED or random.random() < 0.25:
            other = {
                WaferSchedule.ONE_F_ONE_B: WaferSchedule.ZERO_BUBBLE,
                WaferSchedule.ZERO_BUBBLE: WaferSchedule.ONE_F_ONE_B,
            }
            return replace(encoding, schedule=other.get(encoding.schedule, encoding.schedule))
        number, step = random.randrange(len(encoding.stages) - 1), random.choice((-1, 1))
        one, two = encoding.stages[number], encoding.stages[number + 1]
        meet = one.layers[0].end + step
        moved = _with_stage(encoding, number, replace(one, layers=(LayerInterval(one.layers[0].first, meet),)))
        return _with_stage(moved, number + 1, replace(two, layers=(LayerInterval(meet, two.layers[0].end),)))

    def _with_microbatch(self, encoding: Encoding, random: Random) -> Encoding:
        sizes = [n for n in range(1, self.global_batch + 1) if self.global_batch % n == 0]
        microbatch = random.choice(sizes)
        return replace(encoding, microbatch=microbatch, microbatches=self.global_batch // microbatch)

    def _with_helper(self, encoding: Encoding, random: Random) -> Encoding:
        number = random.randrange(len(encoding.stages))
        helper = random.choice([None, *(n for n in range(len(encoding.stages)) if n != number)])
        return _with_stage(encoding, number, replace(encoding.stages[number], helper=helper))


def _with_stage(encoding: Encoding, number: int, stage: StageEncoding) -> Encoding:
    stages = (*encoding.stages[:number], stage, *encoding.stages[number + 1 :])
    return replace(encoding, stages=stages)


def _chain(size: int, random: Random) -> set[int]:
    """A random chain of group sizes that nest, as fine as can be: strings of one stage end on one chain."""
    parts = list(primes(size))
    random.shuffle(parts)
    ends = {1}
    for part in parts:
        ends.add(max(ends) * part)
    return ends


def _policies(*, helps: bool) -> list[Activation]:
    return [policy for policy in Activation if helps or policy is not Activation.HELPER]


def _group_ends(size: int) -> set[int]:
    return {n for n in range(1, size + 1) if size % n == 0}
