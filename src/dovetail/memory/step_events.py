"""The allocations of one chip in two steps of a plan, tensor by tensor: what an allocator is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dovetail.arrays import Floats
from dovetail.graph import Kind
from dovetail.memory.allocator import Event
from dovetail.pipeline import Pipeline, PipelineSchedule
from dovetail.pipeline.work_order import WorkItem, WorkKind, work_order
from dovetail.plans.plan import Plan
from dovetail.plans.zero_stage import effective_zero_stage
from dovetail.profile.layer import LayerProfile
from dovetail.profile.layer_trace import HANDED, HANDED_GRADIENT, TAKEN, TAKEN_GRADIENT, Change, TracedLayer
from dovetail.profile.recompute import choose
from dovetail.profile.recompute_space import RecomputeSpace
from dovetail.step.evaluate import Step, is_block
from dovetail.step.facts import FrameworkFacts
from dovetail.step.memory import class_kinds
from dovetail.step.memory_kernels import IS_EMBEDDING, IS_HEAD
from dovetail.step.stages import LayerVariant, layer_variants

#: Streams of a chip: kernels, gathering of weights, reduction of gradients.
COMPUTE, GATHER, REDUCE = range(3)


@dataclass
class _Recorder:
    """Events so far, and what is alive."""

    events: list[Event] = field(default_factory=lambda: list[Event]())
    alive: dict[str, int] = field(default_factory=lambda: dict[str, int]())
    phase: str = ""
    _keys: int = 0

    def allocate(self, name: str, size: float, operator: str, stream: int = COMPUTE) -> None:
        """A tensor that is not there yet."""
        whole = round(size)
        if whole <= 0:
            return
        self.free(name, operator)
        self.alive[name] = self.new(whole, operator, stream)

    def new(self, size: int, operator: str, stream: int = COMPUTE) -> int:
        """A tensor without a name; returns its key."""
        key = self._keys
        self._keys += 1
        self.events.append(Event(key, size, stream, operator, self.phase))
        return key

    def free(self, name: str, operator: str) -> None:
        """A tensor, if it is there."""
        key = self.alive.pop(name, None)
        if key is not None:
            self.end(key, operator)

    def end(self, key: int, operator: str) -> None:
        """A tensor of a key."""
        self.events.append(Event(key, 0, COMPUTE, operator, self.phase))

    def free_all(self, beginning: str, operator: str) -> None:
        """All tensors whose names begin so."""
        for name in [name for name in self.alive if name.startswith(beginning)]:
            self.free(name, operator)


@dataclass(frozen=True)
class _StageLayer:
    """One layer of a stage: its place along the model, what it does, and its weights."""

    name: str
    place: int
    traced: TracedLayer
    kind: int
    #: parameters of each weight as used, and of all that is stored of them
    weights: tuple[float, ...]
    home: float
    #: parameters of each weight that is not trained, as used
    frozen: tuple[float, ...]
    #: what is stored of these, whole and in shards
    frozen_stored: tuple[float, float]
    #: of what is stored, that which is no matrix of a block where these have less optimizer state
    vectors: float
    #: the part of them that no other layer of the stage stores
    stored: float = 1.0

    @property
    def gathered(self) -> tuple[float, ...]:
        """Parameters of each weight that is gathered where weights are sharded."""
        return (*self.weights, *self.frozen)


def stage_events(plan: Plan, step: Step, facts: FrameworkFacts, stage: int) -> list[Event]:
    """Two steps of a stage's chips; of a step at most as many micro-batches as show its fullest moment."""
    chunks = _chunks(plan, step, facts, stage)
    recorder = _Recorder()
    sizes = facts.stored_bytes
    zero = effective_zero_stage(plan.zero_stage, plan.pipeline_parallel)
    run = _StageRun(plan, facts, recorder, zero, chunks)
    for chunk in chunks:
        for layer in chunk:
            run.store(layer, "weights", sizes.sharded_weight if zero == 3 else sizes.weight, zero == 3)
            run.store_frozen(layer)
            if not run.late:
                run.store(layer, "gradients", sizes.gradient, zero >= 2)
    items = _items(step.pipeline, stage)
    before = set(recorder.alive)
    start = len(recorder.events)
    for item in items:
        run.item(item)
    computed = recorder.events[start:]
    run.make_optimizer_state()
    start = len(recorder.events)
    run.update()
    for name in [name for name in recorder.alive if name not in before and not name.startswith("optimizer ")]:
        recorder.free(name, "optimizer")
    # they free all that they allocate, so that the second step has the keys of the first
    return recorder.events + computed + recorder.events[start:]


def _items(pipeline: Pipeline, stage: int) -> tuple[WorkItem, ...]:
    """What a stage does with as many micro-batches as fill it once and go on."""
    stages = pipeline.num_stages
    most = 2 * stages if pipeline.num_chunks > 1 else stages + 1
    if pipeline.schedule is PipelineSchedule.GPIPE:
        most = pipeline.num_microbatches
    fewer = replace(pipeline, num_microbatches=min(pipeline.num_microbatches, most))
    return work_order(fewer).items(stage)


def _chunks(plan: Plan, step: Step, facts: FrameworkFacts, stage: int) -> list[list[_StageLayer]]:
    """The layers of every chunk of a stage, in order."""
    graph = step.profiles.graph
    variants = layer_variants(graph, plan, step.contents)
    places: list[int] = step.pipeline.places()[stage].tolist()
    first = np.cumsum([0, *(sum(content.values()) for content in step.contents)])
    chunks: list[list[_StageLayer]] = []
    traced: dict[str, _StageLayer] = {}
    seen: set[str] = set()
    for place in places:
        names = [name for name, count in step.contents[place].items() for _ in range(count)]
        chunks.append([])
        for offset, name in enumerate(names):
            if name not in traced:
                traced[name] = _layer(name, variants, plan, step, facts)
            layer = replace(traced[name], place=int(first[place]) + offset)
            tied = step.profiles.layers[name].tied_parameters
            shared = sum(_number(tied[weight].parameters) for weight in seen.intersection(tied))
            seen.update(tied)
            chunks[-1].append(replace(layer, stored=1 - shared / max(sum((*layer.weights, *layer.frozen)), 1.0)))
    return chunks


def _layer(name: str, variants: dict[str, LayerVariant], plan: Plan, step: Step, facts: FrameworkFacts) -> _StageLayer:
    profile, graph = step.profiles.layers[name], step.profiles.graph.layers[variants[name].layer]
    sharded = effective_zero_stage(plan.zero_stage, plan.pipeline_parallel) >= 2
    block = is_block(graph)
    saving = facts.saves(sharded=sharded, narrow=block)
    space = RecomputeSpace(graph, profile, saving)
    chosen, when_read = choose(space, graph, facts.recomputed(variants[name].recompute) if block else "none")
    kind = int(class_kinds([name])[0])
    traced = TracedLayer(
        profile,
        space,
        chosen,
        saving,
        when_read,
        takes=kind != IS_EMBEDDING,
        hands=kind != IS_HEAD,
        losses=frozenset(o.name for o in graph.operators if o.kind is Kind.LOSS),
    )
    trained, frozen = _number(profile.trained_home_parameters), tuple(_number(w) for w in profile.frozen_weights)
    shards = _number(profile.home_parameters) - trained if frozen else 0.0
    whole = _number(profile.parameters) - _number(profile.trained_parameters) if frozen else 0.0
    tied = sum(_number(each.home_parameters) for each in profile.tied_parameters.values() if each.trained)
    vectors = _number(profile.update.vectors) + tied
    return _StageLayer(name, 0, traced, kind, _weights(profile), trained, frozen, (whole, shards), vectors)


def _weights(profile: LayerProfile) -> tuple[float, ...]:
    return tuple(_number(weight) for node in profile.nodes for weight in node.weights)


@dataclass
class _StageRun:
    """Plays work items of a stage."""

    plan: Plan
    facts: FrameworkFacts
    recorder: _Recorder
    zero: int
    chunks: list[list[_StageLayer]]
    #: keys of a micro-batch's tensors in a layer that nothing has freed yet
    alive: dict[tuple[int, int], dict[str, int]] = field(
        default_factory=lambda: dict[tuple[int, int], dict[str, int]]()
    )

    @property
    def units(self) -> bool:
        """Whether weights or gradients are sharded layer by layer."""
        return self.zero >= 2 and not self.facts.stored_bytes.by_weight

    @property
    def late(self) -> bool:
        """Whether gradients come with the backward."""
        alone = self.plan.pipeline_parallel == 1 and self.plan.num_microbatches == 1
        return self.facts.stored_bytes.late_gradients and alone

    def store(self, layer: _StageLayer, part: str, each: float, sharded: bool) -> None:
        """A part of the state of a layer's weights, tensor by tensor."""
        total = sum(layer.weights)
        share = layer.stored * (layer.home / total if sharded and total else 1.0)
        for number, weight in enumerate(layer.weights):
            self.recorder.allocate(f"{part} {layer.place} {number}", weight * share * each, part)

    def store_frozen(self, layer: _StageLayer) -> None:
        """The weights of a layer that are not trained."""
        share = layer.stored * layer.frozen_stored[self.zero == 3] / max(sum(layer.frozen), 1.0)
        each = self.facts.stored_bytes.frozen
        for number, weight in enumerate(layer.frozen):
            self.recorder.allocate(f"frozen {layer.place} {number}", weight * share * each, "weights")

    def item(self, item: WorkItem) -> None:
        """A forward or backward of a micro-batch on a chunk."""
        chunk = self.chunks[item.chunk]
        if item.kind is WorkKind.FORWARD:
            for number, layer in enumerate(chunk):
                self._forward(layer, item.microbatch, chunk[number + 1 : number + 2])
            self.recorder.free(f"{item.microbatch} stream {chunk[-1].place}", "send")
        elif item.kind is not WorkKind.WEIGHT_GRADIENT:
            for number, layer in reversed(list(enumerate(chunk))):
                self._backward(layer, item.microbatch, chunk[max(number - 1, 0) : number])
            self.recorder.free(f"{item.microbatch} gradient {chunk[0].place - 1}", "send")
            if self.units:
                self.recorder.free_all("sent ", "reduce")

    def make_optimizer_state(self) -> None:
        """What the first step of the optimizer allocates, and no other."""
        self.recorder.phase = "optimizer"
        for layer in itertools.chain.from_iterable(self.chunks):
            sizes = self.facts.stored_bytes
            self.store(layer, "optimizer", sizes.optimizer, self.zero >= 1)
            if sizes.vector_state:
                more = layer.vectors * layer.stored * sizes.vector_state
                self.recorder.allocate(f"optimizer {layer.place} vectors", more, "optimizer")

    def update(self) -> None:
        """The optimizer's step."""
        self.recorder.phase = "optimizer"
        for layer in itertools.chain.from_iterable(self.chunks):
            self.store(layer, "step", self.facts.stored_bytes.step_copy, self.zero >= 1)
        self.recorder.free_all("step ", "optimizer")
        if self.late:
            self.recorder.free_all("gradients ", "optimizer")

    def _play(self, layer: _StageLayer, microbatch: int, changes: Sequence[Change]) -> Iterator[Change]:
        """Plays changes of a layer; its streams have names of the whole step."""
        streams = {
            TAKEN: f"{microbatch} stream {layer.place - 1}",
            HANDED: f"{microbatch} stream {layer.place}",
            TAKEN_GRADIENT: f"{microbatch} gradient {layer.place - 1}",
            HANDED_GRADIENT: f"{microbatch} gradient {layer.place}",
        }
        recorder, alive = self.recorder, self.alive.setdefault((microbatch, layer.place), {})
        for change in changes:
            tensor, size, operator = change
            if tensor in streams:
                if size:
                    recorder.allocate(streams[tensor], size, operator)
                else:
                    recorder.free(streams[tensor], operator)
            else:
                key = alive.pop(tensor, None)
                if key is not None:
                    recorder.end(key, operator)
                if size:
                    alive[tensor] = recorder.new(size, operator)
            yield change

    def _forward(self, layer: _StageLayer, microbatch: int, following: list[_StageLayer]) -> None:
        recorder = self.recorder
        recorder.phase = "forward"
        if layer.traced.takes and f"{microbatch} stream {layer.place - 1}" not in recorder.alive:
            stream = _number(layer.traced.profile.stream_bytes)
            recorder.allocate(f"{microbatch} stream {layer.place - 1}", stream, "receive")
        self._gather(layer, following)
        for _ in self._play(layer, microbatch, layer.traced.forward):
            pass
        if layer.kind == IS_HEAD:
            self._loss(layer, microbatch)
        elif self.units:
            recorder.free_all(f"gathered {layer.place} ", layer.name)

    def _loss(self, layer: _StageLayer, microbatch: int) -> None:
        """The loss and its backward up to the gradient of the logits."""
        self.recorder.phase = "loss"
        profile = layer.traced.profile
        left = _number(self.facts.loss_bytes(profile.logits, profile.sharded_vocabulary))
        each = 4.0 * _number(profile.logits) / self.facts.loss_chunks
        names: list[str] = []
        while left > 0:
            names.append(f"{microbatch} loss {len(names)}")
            self.recorder.allocate(names[-1], min(each, left), "loss")
            left -= each
        for name in names:
            self.recorder.free(name, "loss")

    def _gather(self, layer: _StageLayer, ahead: list[_StageLayer]) -> None:
        """Weights of a layer, whole, and those fetched ahead as they arrive."""
        if self.zero < 3 or not self.units:
            return
        recorder, each = self.recorder, self.facts.stored_bytes.weight
        if f"gathered {layer.place} 0" not in recorder.alive:
            recorder.allocate(f"fetched {layer.place}", sum(layer.gathered) * each, "gather", GATHER)
            for number, weight in enumerate(layer.gathered):
                recorder.allocate(f"gathered {layer.place} {number}", weight * each, "gather")
            recorder.free(f"fetched {layer.place}", "gather")
        for following in ahead:
            if f"gathered {following.place} 0" not in recorder.alive:
                recorder.allocate(f"fetched {following.place}", sum(following.gathered) * each, "gather", GATHER)

    def _backward(self, layer: _StageLayer, microbatch: int, ahead: list[_StageLayer]) -> None:
        recorder, sizes = self.recorder, self.facts.stored_bytes
        recorder.phase = "backward"
        if layer.traced.hands and f"{microbatch} gradient {layer.place}" not in recorder.alive:
            stream = _number(layer.traced.profile.stream_bytes)
            recorder.allocate(f"{microbatch} gradient {layer.place}", stream, "receive")
        self._gather(layer, ahead)
        written, done = 0, ""
        by_node = {node.operator: node.weights for node in layer.traced.profile.nodes}
        for change in self._play(layer, microbatch, layer.traced.backward):
            if change.operator != done and change.operator in by_node and change.bytes:
                done = change.operator
                for weight in by_node.pop(done):
                    if self.units:
                        name = f"gradient of {layer.place} {written}"
                        recorder.allocate(name, _number(weight) * sizes.layer_gradient, done)
                        written += 1
        for key in self.alive.pop((microbatch, layer.place), {}).values():
            recorder.end(key, layer.name)
        recorder.free(f"{microbatch} stream {layer.place - 1}", layer.name)
        if self.units:
            self._reduce(layer)

    def _reduce(self, layer: _StageLayer) -> None:
        """The gradients of a layer are summed over chips."""
        recorder, sizes, total = self.recorder, self.facts.stored_bytes, sum(layer.weights)
        recorder.free_all(f"gathered {layer.place} ", layer.name)
        recorder.free_all("sent ", "reduce")
        recorder.allocate(f"sent {layer.place}", total * sizes.reduce_buffer, "reduce", REDUCE)
        recorder.free_all(f"gradient of {layer.place} ", "reduce")
        name = f"gradients {layer.place} 0" if self.late else f"reduced {layer.place}"
        recorder.allocate(name, layer.home * sizes.gradient, "reduce", REDUCE)
        if not self.late:
            recorder.free(name, "reduce")


def _number(value: Floats | float) -> float:
    return float(np.ravel(value)[0])
