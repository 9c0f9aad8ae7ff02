"""Lower bounds of all free plans of a job from the work of its operators alone: for every skeleton at once.

Every operator has the sharding that is best for it alone and messages take no time. A die stores at least its share of
the state and of what is saved; recomputing a tensor runs its operator once more, and those before it whose outputs
would take as much memory. Each stage takes as many layers as it can, in order; embedding and heads are on the first
and the last stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from dovetail.arrays import Floats, Ints, largest_two
from dovetail.cost.calibration import calibration
from dovetail.frameworks import Framework
from dovetail.frameworks.parameter_bytes import state_bytes
from dovetail.frozen import frozen
from dovetail.graph import LayerGraph, Role
from dovetail.graph.size import as_array
from dovetail.hardware import Cluster
from dovetail.mapping.tiles.least_step_kernels import pipelines_least_s
from dovetail.mapping.tiles.local_shapes import LocalShapes, local_shapes
from dovetail.mapping.tiles.pipeline_bound import PipelineBound
from dovetail.mapping.tiles.skeletons import TileSkeleton, tile_skeletons
from dovetail.models import Job
from dovetail.plans.stage_tiles import num_wafers
from dovetail.plans.wafer_part import Stored
from dovetail.step.capacity import memory_limit
from dovetail.step.evaluate import is_block, units_of
from dovetail.step.facts import facts_of
from dovetail.step.formulas import UpdateRates, optimizer_seconds, tensor_capacity
from dovetail.step.store import least_store_seconds

#: ZeRO stages to try: sharding the optimizer state costs nothing that replicating it would not.
ZERO_STAGES = (1, 3)


def least_free_s(
    job: Job,
    cluster: Cluster,
    framework: Framework,
    *,
    below_s: float = float("inf"),
    zero_stages: Sequence[int] = ZERO_STAGES,
) -> float:
    """A lower bound of every free plan; infinite if none fits.

    It need not be as high as it could where it is `below_s` or more, nor where one skeleton is known to stay below.
    """
    lowest = float("inf")
    by_store = skeletons_by_store(cluster, job)
    for store, skeletons in by_store.items():
        floors = SkeletonBounds(job, cluster, framework, {skeleton.dies for skeleton in skeletons}, store)
        zero_stage = floors.lightest(zero_stages)
        lowest = min(lowest, floors.lowest_s(skeletons, zero_stage, min(below_s, lowest)))
    return lowest


def skeletons_by_store(cluster: Cluster, job: Job) -> dict[tuple[Stored, ...], list[TileSkeleton]]:
    """Every skeleton, by what a store has."""
    by_store: dict[tuple[Stored, ...], list[TileSkeleton]] = {}
    for skeleton in tile_skeletons(cluster, job.global_batch, job.model.num_layers):
        by_store.setdefault(skeleton.store, []).append(skeleton)
    return by_store


@frozen
class ClassBounds:
    """Lower bounds of a layer class, by number of dies and sequences of a micro-batch."""

    #: bytes a micro-batch saves, ascending along the last axis, and the fewest seconds with each
    saved_bytes: Floats
    seconds: Floats
    forward_s: Floats

    @property
    def least_s(self) -> Floats:
        """Fewest seconds, whatever is saved."""
        return self.seconds[..., -1]


class SkeletonBounds:
    """Lower bounds of the skeletons of a job on a cluster."""

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        framework: Framework,
        dies: Iterable[int],
        store: tuple[Stored, ...] = (),
    ) -> None:
        self.job, self._cluster, self._store = job, cluster, store
        self._dies = tuple(sorted(dies))
        self._facts = {
            staged: facts_of(framework, job, schedule="1f1b", stages=1 + staged, store=store)
            for staged in (False, True)
        }
        facts = self._facts[False]
        efficiencies = calibration(cluster.chip, job.precision).efficiencies
        self._units = units_of(job, cluster, facts, efficiencies)
        limit = memory_limit(cluster.chip, framework)
        self._capacity = float(tensor_capacity(limit, facts.context_bytes, facts.allocator_overhead))
        graph = job.graph()
        counts, shapes = graph.counts(), local_shapes(job)
        self._blocks = [name for name in counts if is_block(graph.layers[name])]
        self._classes = {name: self._class_bounds(shapes[name]) for name in counts}
        self._main = max(range(len(self._blocks)), key=lambda place: counts[self._blocks[place]])

    @property
    def batches(self) -> tuple[int, ...]:
        """Sequences a micro-batch may have."""
        return next(iter(local_shapes(self.job).values())).batches

    def lightest(self, zero_stages: Sequence[int]) -> int:
        """The ZeRO stage with the least state: these bounds are lowest with it."""
        return min(zero_stages, key=lambda stage: min(self._bytes_each(stage, staged=each) for each in (False, True)))

    def lowest_s(self, skeletons: Sequence[TileSkeleton], zero_stage: int, below_s: float = float("inf")) -> float:
        """The lowest of the bounds of all skeletons; see `least_free_s` for `below_s`."""
        order, rough = self._ordered(skeletons)
        lowest = float("inf")
        for start in range(0, len(order), CHUNK):
            if lowest < below_s or rough[start] >= min(lowest, below_s):
                # known to stay below, or no other can be lower
                return min(lowest, float(rough[start]))
            part = [skeletons[i] for i in order[start : start + CHUNK]]
            lowest = min(lowest, float(self.bounds(part, zero_stage, below_s).min()))
        return lowest

    def rough(self, skeletons: Sequence[TileSkeleton]) -> Floats:
        """A lower bound of each skeleton from work alone: all of it spread evenly over all stages."""
        columns = _columns(skeletons)
        return self._even_s(*self._places(columns), columns)

    def _ordered(self, skeletons: Sequence[TileSkeleton]) -> tuple[list[int], Floats]:
        """Skeletons by their rough bounds, and these."""
        rough = self.rough(skeletons)
        order = np.argsort(rough, kind="stable")
        return order.tolist(), rough[order]

    def _even_s(self, dies: Ints, batch: Ints, columns: Ints) -> Floats:
        work = sum(
            (count * self._classes[name].least_s[dies, batch] for name, count in self.job.graph().counts().items()),
            np.zeros(()),
        )
        return work * (self.job.global_batch // columns[:, 3]) / columns[:, 2]

    def _places(self, columns: Ints) -> tuple[Ints, Ints]:
        """The number of the dies and of the batch of each skeleton."""
        dies = np.searchsorted(np.array(self._dies), columns[:, 0] * columns[:, 1])
        return dies, np.searchsorted(np.array(self.batches), columns[:, 3])

    def bounds(self, skeletons: Sequence[TileSkeleton], zero_stage: int, enough_s: float = float("inf")) -> Floats:
        """A lower bound of each skeleton; infinite if it does not fit; from `enough_s` on it need not be exact."""
        columns = _columns(skeletons)
        dies, batch = self._places(columns)
        stages, microbatches = columns[:, 2], self.job.global_batch // columns[:, 3]
        update = np.where(stages == 1, self._update_s[dies], 0.0)
        even = self._even_s(dies, batch, columns)
        least = pipelines_least_s(
            self._order,
            self._main,
            np.stack([stages, microbatches, dies, batch, (stages > 1).astype(np.int64)], axis=1),
            *self._block_tables,
            self._state(zero_stage),
            self._working_bytes(zero_stage),
            np.stack(self._ends_s, axis=-1),
            self._ends_bytes(zero_stage),
            self._capacity,
            even,
            np.maximum(enough_s - update, 0.0),
        )
        return np.maximum(least, self._streamed_s(columns)) + update

    def pipeline(self, skeleton: TileSkeleton, zero_stage: int) -> PipelineBound:
        """The bound of one skeleton."""
        dies, batch = self._dies.index(skeleton.dies), self.batches.index(skeleton.batch)
        staged, microbatches = int(skeleton.stages > 1), self.job.global_batch // skeleton.batch
        saved, seconds, forward = self._block_tables
        return PipelineBound(
            self._order,
            self._main,
            (skeleton.stages, microbatches),
            saved[:, dies, batch],
            seconds[:, dies, batch],
            forward[:, dies, batch],
            self._state(zero_stage)[staged, :, dies],
            float(self._working_bytes(zero_stage)[staged, dies, batch]),
            np.stack(self._ends_s, axis=-1)[dies, batch],
            self._ends_bytes(zero_stage)[staged, :, dies],
            self._capacity,
            0.0 if staged else float(self._update_s[dies]),
            float(self._streamed_s(_columns([skeleton]))[0]),
        )

    @cached_property
    def _block_tables(self) -> tuple[Floats, Floats, Floats]:
        """Saved bytes, seconds and forward seconds of the classes of blocks, with as many knots each."""
        floors = [self._classes[name] for name in self._blocks]
        most = max(each.seconds.shape[-1] for each in floors)
        saved, seconds = (
            np.stack([np.pad(a, ((0, 0), (0, 0), (0, most - a.shape[-1])), mode="edge") for a in arrays])
            for arrays in ([each.saved_bytes for each in floors], [each.seconds for each in floors])
        )
        # what a store has takes no memory
        on_dies = 0.0 if "activations" in self._store else 1.0
        return on_dies * saved, seconds, np.stack([each.forward_s for each in floors])

    def _working_bytes(self, zero_stage: int) -> Floats:
        """Bytes a die of a stage with blocks needs for the block at work: by staging, dies and batch.

        Sharded weights are gathered and their gradients whole, the one at work and the next; of activations in a store
        two blocks are on the dies, or less and what one of them recomputes.
        """
        dies = np.array(self._dies, np.float64)[None, :, None]
        needed = np.zeros((2, len(self._dies), len(self.batches)))
        if zero_stage == 3:
            layers = [self.job.graph().layers[name] for name in self._blocks]
            for staged in (False, True):
                sizes = self._facts[staged].parameter_bytes
                two = [_largest_two(layer) if sizes.by_weight else (_parameters([layer]),) * 2 for layer in layers]
                at_work = min((one + other) * sizes.weight + one * sizes.sharded_gradient for one, other in two)
                needed[int(staged)] += at_work / dies[0]
        if "activations" in self._store:
            of_blocks = [self._classes[name].saved_bytes for name in self._blocks]
            needed += np.min([saved[..., 0] + saved[..., -1] for saved in of_blocks], axis=0)
        return needed

    def _streamed_s(self, columns: Ints) -> Floats:
        """What streams between wafers and their stores take at least, or computing again what they do not carry."""
        if self._cluster.store is None or not self._store:
            return np.zeros(len(columns))
        count, wafers = float(self.job.graph().parameters()), num_wafers(self._cluster)
        sizes, rate = self._facts[False].streamed, self._cluster.store.bytes_per_s
        microbatches = self.job.global_batch // columns[:, 3]
        streams = np.array(
            [least_store_seconds(count, m, self._store, sizes, wafers, rate) for m in microbatches.tolist()]
        )
        if "activations" not in self._store:
            return streams
        dies, batch = self._places(columns)
        main = self._classes[self._blocks[self._main]]
        blocks = microbatches * int((self._order == self._main).sum())
        # of all main blocks: saved less, they take longer
        sent = 2 * (columns[:, 0] * columns[:, 1] * blocks)[:, None] * main.saved_bytes[dies, batch] / (wafers * rate)
        again = (blocks / columns[:, 2])[:, None] * (main.seconds - main.least_s[..., None])[dies, batch]
        return _lowest_crossing(streams[:, None] + sent, self._even_s(dies, batch, columns)[:, None] + again)

    @cached_property
    def _order(self) -> Ints:
        """The class of every block, in order."""
        names = [run.layer for run in self.job.graph().chain for _ in range(run.count)]
        return np.array([self._blocks.index(name) for name in names if name in self._blocks], np.int64)

    @cached_property
    def _update_s(self) -> Floats:
        """A lower bound of the optimizer's time by dies, if one stage has all parameters."""
        rate = self._facts[False].update_bytes / float(self._units.vector.memory_bytes_per_s)
        parameters = float(self.job.graph().parameters())
        return np.array([float(optimizer_seconds(parameters / n, UpdateRates(rate))) for n in self._dies])

    @cached_property
    def _end_classes(self) -> tuple[list[str], list[str]]:
        """Layers before the blocks, and after them."""
        chain = [run.layer for run in self.job.graph().chain]
        first = [chain[0]] if chain[0] not in self._blocks else []
        return first, [name for name in chain if name not in (*self._blocks, *first)]

    @cached_property
    def _ends_s(self) -> tuple[Floats, Floats]:
        counts, none = self.job.graph().counts(), np.zeros((len(self._dies), len(self.batches)))
        first, last = (
            sum((counts[name] * self._classes[name].least_s for name in names), none) for names in self._end_classes
        )
        return first, last

    def _bytes_each(self, zero_stage: int, *, staged: bool) -> float:
        """Bytes a die stores at least for its share of a parameter."""
        return float(sum(state_bytes(1.0, 1.0, zero_stage, self._facts[staged].parameter_bytes)))

    def _state(self, zero_stage: int) -> Floats:
        """Bytes of a block's state by whether there are several stages, class and dies."""
        graph = self.job.graph()
        parameters = np.array([_parameters([graph.layers[name]]) for name in self._blocks])
        each = [self._bytes_each(zero_stage, staged=staged) for staged in (False, True)]
        return np.array(each)[:, None, None] * parameters[None, :, None] / np.array(self._dies, np.float64)

    def _ends_bytes(self, zero_stage: int) -> Floats:
        """The same of the first and the last stage's other layers; one stage has weights that are tied once."""
        layers, (first, last) = self.job.graph().layers, self._end_classes
        of_first, of_last = ([layers[name] for name in names] for names in (first, last))
        both = [_parameters(of_first), _parameters(of_last)]
        alone = [both[0], _parameters([*of_first, *of_last]) - both[0]]
        each = [self._bytes_each(zero_stage, staged=staged) for staged in (False, True)]
        parameters = np.array([alone, both])
        return np.array(each)[:, None, None] * parameters[:, :, None] / np.array(self._dies, np.float64)

    def _class_bounds(self, shapes: LocalShapes) -> ClassBounds:
        least = shapes.least_seconds(self._dies, self._units, self.job.element_bytes())
        forward = least[..., : shapes.forward]
        inputs, outputs = self._saved(shapes)
        saving = [place for place in range(shapes.forward) if outputs[:, place].all()]
        bytes_by = outputs[None, :, saving] / np.array(self._dies, np.float64)[:, None, None]
        again_s = forward @ self._recomputed(shapes, outputs[0], saving)
        # fewest seconds per byte first: no choice of operators takes less for the same bytes
        order = np.argsort(again_s / bytes_by, axis=-1, kind="stable")
        bytes_by, again_s = (np.take_along_axis(each, order, axis=-1) for each in (bytes_by, again_s))
        nothing = np.zeros((*bytes_by.shape[:-1], 1))
        everything = inputs[None, :] / np.array(self._dies, np.float64)[:, None] + bytes_by.sum(axis=-1)
        saved = everything[..., None] - np.concatenate([nothing, bytes_by.cumsum(axis=-1)], axis=-1)
        seconds = least.sum(axis=-1)[..., None] + np.concatenate([nothing, again_s.cumsum(axis=-1)], axis=-1)
        return ClassBounds(saved[..., ::-1].copy(), seconds[..., ::-1].copy(), forward.sum(axis=-1))

    def _recomputed(self, shapes: LocalShapes, outputs: Floats, saving: Sequence[int]) -> Floats:
        """By operator, its share in not saving the outputs of each operator that saves some: operators × those.

        An operator that runs again needs its inputs. One that no other operator reads, that is as large as what is not
        saved and not saved itself, gains nothing if saved instead: what makes it runs again too. An operator that
        several outputs need counts in part for each of them.
        """
        graph, widths, sizes = shapes.graph, self.job.element_bytes(), shapes.sizes[self.batches[0]]
        makers = {o.tensor: place for place, operator in enumerate(graph.operators) for o in operator.outputs}
        readers = Counter(i.tensor for operator in graph.operators for i in operator.inputs)
        saved = {name for operator in graph.operators for name in operator.saves}
        needs = np.zeros((shapes.forward, len(saving)))
        for column, place in enumerate(saving):
            pending = [place]
            while pending:
                needs[pending[0], column] = 1.0
                names = {each.tensor for each in graph.operators[pending.pop(0)].inputs}
                for name in names & makers.keys() - saved:
                    size = self._share * float(as_array(graph.tensors[name].bytes(sizes, widths)))
                    if readers[name] == 1 and size >= outputs[place]:
                        pending.append(makers[name])
        return needs / np.maximum(needs.sum(axis=1, keepdims=True), 1.0)

    @property
    def _share(self) -> float:
        """The width in which products save their inputs, over the width they are written in."""
        return self._facts[False].saving.operand_share

    def _saved(self, shapes: LocalShapes) -> tuple[Floats, Floats]:
        """Bytes of a micro-batch of each size on all dies: of saved inputs, and of saved outputs by operator."""
        graph, widths = shapes.graph, self.job.element_bytes()
        makers = {o.tensor: place for place, operator in enumerate(graph.operators) for o in operator.outputs}
        inputs, outputs = np.zeros(len(self.batches)), np.zeros((len(self.batches), shapes.forward))
        for name in sorted({name for operator in graph.operators for name in operator.saves}):
            tensor = graph.tensors[name]
            if tensor.role in (Role.WEIGHT, Role.CONSTANT):
                continue
            whole = np.array([float(as_array(tensor.bytes(shapes.sizes[b], widths))) for b in self.batches])
            if name in makers:
                outputs[:, makers[name]] += whole * self._share
            else:
                inputs += whole * self._share
        return inputs, outputs


#: Skeletons bounded at once.
CHUNK = 256


def _columns(skeletons: Sequence[TileSkeleton]) -> Ints:
    rows = [(each.rows, each.cols, each.stages, each.batch) for each in skeletons]
    return np.array(rows, np.int64).reshape(len(rows), 4)


def _lowest_crossing(rising: Floats, falling: Floats) -> Floats:
    """The lowest value of the larger of two functions that are linear between columns."""
    drop = falling[:, :-1] - falling[:, 1:] + rising[:, 1:] - rising[:, :-1]
    part = np.clip((falling[:, :-1] - rising[:, :-1]) / np.where(drop > 0, drop, 1.0), 0.0, 1.0)
    low, high = (each[:, :-1] + part * (each[:, 1:] - each[:, :-1]) for each in (rising, falling))
    return np.maximum(low, high).min(axis=1)


def _largest_two(layer: LayerGraph) -> tuple[float, float]:
    """Parameters of a layer's largest weight, and of the next."""
    first, second = largest_two(as_array(weight.points(layer.fixed_sizes())) for weight in layer.weights())
    return float(first), float(second)


def _parameters(layers: Sequence[LayerGraph]) -> float:
    """Parameters of layers; tied ones count once."""
    total, seen = 0.0, set[str]()
    for layer in layers:
        for weight in layer.weights():
            if weight.tied not in seen:
                total += float(as_array(weight.points(layer.fixed_sizes())))
            seen |= {weight.tied} if weight.tied else set()
    return total
