"""Derives collectives: each operator's shards say which layout its operands need, and conversions follow."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from dovetail.frozen import frozen
from dovetail.graph import Backward, Exchange, LayerGraph, Operand, Operator, Phase, Role, Tensor, differentiate
from dovetail.graph.tensor import Element
from dovetail.layout.collective import Collective, CollectivePhase
from dovetail.layout.convert import CollectiveKind, ConversionStep, convert
from dovetail.layout.layout import FLAT, PARTIAL, REPLICATED, Layout, gradient_of_stream, limited
from dovetail.layout.strategy import Strategy
from dovetail.layout.version import TensorVersion


@frozen
class PlacedOperator:
    """An operator and the dim each axis shards."""

    operator: Operator
    shards: Mapping[str, str]


@frozen
class PlacedWeight:
    """A weight: the layout operators use, its home (gradient and optimizer state), and its gradient as written."""

    tensor: Tensor
    use: Layout
    home: Layout
    gradient: tuple[Tensor, Layout] | None = None


@frozen
class PlacedLayer:
    """A layer class under a strategy: everything a cost model needs, for any sizes of dims and axes."""

    forward: tuple[PlacedOperator, ...]
    backward: tuple[PlacedOperator, ...]
    collectives: tuple[Collective, ...]
    saved: tuple[tuple[Tensor, Layout], ...]
    weights: tuple[PlacedWeight, ...]
    #: every tensor of the layer, forward and backward, in the layout it is written in
    written: Mapping[str, Layout]
    tensors: Mapping[str, Tensor]
    #: every layout a tensor of the forward takes, except weights, in order of creation
    versions: tuple[TensorVersion, ...]
    #: the same of gradients, and of saved tensors in the layouts the backward reads
    backward_versions: tuple[TensorVersion, ...]
    #: what the layer passes on, in the layout the next one takes
    handed_on: tuple[tuple[Tensor, Layout], ...]


def place_layer(graph: LayerGraph, strategy: Strategy, backward: Backward | None = None) -> PlacedLayer:
    """Forward, backward and step of one layer class under a strategy; a given `backward` is not derived."""
    backward = backward or differentiate(graph)
    forward_pass = _Pass(graph.operators, graph.tensors, strategy, CollectivePhase.FORWARD)
    stream, tokens = Layout.of(strategy.stream_shard()), Layout.of(strategy.token_shard())
    for name in graph.inputs:
        tensor = graph.tensors[name]
        forward_pass.give(name, limited(tensor, tokens if tensor.role is Role.INDEX else stream))
    forward_pass.run(_home_layouts(graph, strategy))
    for name in graph.outputs:
        if graph.tensors[name].role is Role.ACTIVATION:
            forward_pass.require(name, limited(graph.tensors[name], stream), graph.name)
    saved = _saved_layouts(graph, strategy, forward_pass)
    weights = _placed_weights(graph, strategy, forward_pass)
    backward_pass = _backward_pass(graph, backward, strategy, saved, weights)
    weights = tuple(replace(w, gradient=_gradient(w, backward, backward_pass)) for w in weights)
    return PlacedLayer(
        tuple(forward_pass.placed),
        tuple(backward_pass.placed),
        (*forward_pass.collectives, *backward_pass.collectives, *state_collectives(weights, strategy.zero_stage)),
        tuple((graph.tensors[name], layout) for name, layout in saved),
        weights,
        {**backward_pass.written, **forward_pass.written},
        {**backward.graph.tensors, **graph.tensors},
        forward_pass.versions(frozenset(saved)),
        backward_pass.versions(()),
        tuple((tensor, limited(tensor, stream)) for tensor in graph.stream(graph.outputs)),
    )


#: Functions that run on partial sums if all their terms are partial: the sum is then reduced once.
SUMS = frozenset({"add", "sum", "sum.grad0", "sum.grad1", "lookup.grad"})


class _Pass:
    """One run over a graph's operators: which layouts of each tensor exist so far."""

    def __init__(
        self, operators: Iterable[Operator], tensors: Mapping[str, Tensor], strategy: Strategy, phase: CollectivePhase
    ) -> None:
        self.operators = tuple(operators)
        self.tensors = tensors
        self.strategy = strategy
        self.phase = phase
        self.placed: list[PlacedOperator] = []
        self.collectives: list[Collective] = []
        self.written: dict[str, Layout] = {}
        #: keys and values that travel around a ring, and their gradients
        self.streamed: set[str] = set()
        self._available: dict[str, list[Layout]] = {}
        #: how a layout of a tensor was made from another, and who reads it
        self._made: dict[tuple[str, Layout], tuple[Layout, tuple[Collective, ...]]] = {}
        self._readers: dict[tuple[str, Layout], list[str]] = {}

    def give(self, name: str, layout: Layout) -> None:
        """A tensor exists in this layout."""
        self.written.setdefault(name, layout)
        self._available.setdefault(name, []).append(layout)

    def run(self, homes: Mapping[str, Layout]) -> None:
        """Places every operator in order, with weights from their homes."""
        for operator in self.operators:
            shards = self._shards(operator)
            for operand in operator.inputs:
                needed = _seen(operator, operand, shards, self.tensors[operand.tensor])
                if operand.tensor not in self._available:
                    assert self.tensors[operand.tensor].role in (Role.WEIGHT, Role.CONSTANT), operand.tensor
                    self.give(operand.tensor, _home(needed, homes.get(operand.tensor)))
                if _streams(self.strategy, operand):
                    self.streamed.add(operand.tensor)
                self._readers.setdefault((operand.tensor, needed), []).append(operator.name)
                self.require(operand.tensor, needed, operator.name)
            self.placed.append(PlacedOperator(operator, shards))
            for exchange in operator.exchanges:
                self._exchange(operator, exchange, shards)
            for operand in operator.outputs:
                if _streams(self.strategy, operand):
                    self.streamed.add(operand.tensor)
                self.give(operand.tensor, self._result(operator, operand, shards))

    def require(self, name: str, layout: Layout, user: str) -> None:
        """Converts a tensor unless it exists in this layout already."""
        available = self._available[name]
        if layout in available:
            return
        reachable = [a for a in available if _reachable(a, layout)]
        before, steps = min(((a, convert(a, layout)) for a in reachable), key=lambda way: _weight(way[1]))
        made: list[Collective] = []
        for collective in _collectives(self.tensors[name], steps, user, self.phase):
            streamed = name in self.streamed and set(collective.axes) <= set(self.strategy.mesh.context)
            kind = CollectiveKind.PERMUTE if streamed else collective.kind
            made.append(replace(collective, kind=kind, streamed=streamed))
        self.collectives += made
        self._made[name, layout] = before, tuple(made)
        available.append(layout)

    def versions(self, saved: Collection[tuple[str, Layout]]) -> tuple[TensorVersion, ...]:
        """Every layout of every tensor but weights and constants, in the order they came to be."""
        return tuple(
            TensorVersion(
                self.tensors[name],
                layout,
                *self._made.get((name, layout), (None, ())),
                tuple(self._readers.get((name, layout), ())),
                (name, layout) in saved,
            )
            for name, layouts in self._available.items()
            if self.tensors[name].role not in (Role.WEIGHT, Role.CONSTANT)
            for layout in layouts
        )

    def _shards(self, operator: Operator) -> dict[str, str]:
        shards = {a: d for a, d in self.strategy.shard(operator).items() if operator.split(d) is not None}
        terms = [o.tensor for o in operator.inputs if is_term(operator, self.tensors[o.tensor])]
        for axis in self.strategy.mesh.axes:
            open_sum = bool(terms) and all(self._is_partial(t, axis) for t in terms)
            if open_sum and (operator.function in SUMS or self.strategy.leaves_open(operator, axis)):
                shards[axis] = PARTIAL
        return shards

    def _is_partial(self, name: str, axis: str) -> bool:
        return name in self.written and self.written[name][axis] == PARTIAL

    def _result(self, operator: Operator, operand: Operand, shards: Mapping[str, str]) -> Layout:
        tensor = self.tensors[operand.tensor]
        placements: dict[str, str] = {}
        for axis, dim in shards.items():
            if dim == PARTIAL:
                placements[axis] = PARTIAL
                continue
            tensor_dim = tensor_dim_of(operator, operand, tensor, dim)
            split = operator.split(dim)
            if tensor_dim is not None:
                placements[axis] = tensor_dim
            elif split is not None and operand.tensor in split.partial:
                placements[axis] = PARTIAL
        return Layout.of(placements)

    def _exchange(self, operator: Operator, exchange: Exchange, shards: Mapping[str, str]) -> None:
        axes = tuple(a for a, d in shards.items() if d == exchange.dim)
        if axes:
            kind = CollectiveKind.PERMUTE if exchange.passed_on else CollectiveKind.ALL_REDUCE
            others = tuple(a for a, d in shards.items() if d in exchange.dims and a not in axes)
            statistic = Tensor(f"{operator.name}.exchange", exchange.dims, Role.STATISTIC, Element.FLOAT32)
            self.collectives.append(
                Collective(kind, axes, statistic, others, operator.name, self.phase, values=exchange.values)
            )


def _backward_pass(
    graph: LayerGraph,
    backward: Backward,
    strategy: Strategy,
    saved: Iterable[tuple[str, Layout]],
    weights: Iterable[PlacedWeight],
) -> _Pass:
    tensors = {**graph.tensors, **backward.graph.tensors}
    result = _Pass(backward.graph.operators, tensors, strategy, CollectivePhase.BACKWARD)
    stream = Layout.of(strategy.stream_shard())
    for output, seed in backward.seeds.items():
        tensor = graph.tensors[output]
        result.give(seed, REPLICATED if tensor.role is Role.LOSS else gradient_of_stream(tensor, stream))
    for name, layout in saved:
        if name in backward.graph.tensors:
            result.give(name, layout)
    at_home = strategy.zero_stage == 3 and not strategy.keep_gathered
    for weight in weights:
        result.give(weight.tensor.name, weight.home if at_home else weight.use)
    result.run({})
    for weight in weights:
        # a layer's weights are gathered together, including those its backward does not read (biases)
        result.require(weight.tensor.name, weight.use, graph.name)
    for name in graph.stream(graph.inputs):
        gradient = backward.gradients.get(name.name)
        if gradient is not None:
            handed = gradient_of_stream(name, stream)
            whole = {axis for axis in handed.partial if result.written[gradient][axis] != PARTIAL}
            result.require(gradient, handed.without(whole), graph.name)
    return result


def _saved_layouts(graph: LayerGraph, strategy: Strategy, done: _Pass) -> tuple[tuple[str, Layout], ...]:
    """What each operator saves: operands as it used them, or the shard they were gathered from."""
    saved: dict[tuple[str, Layout], None] = {}
    for placed in done.placed:
        operator = placed.operator
        used = {o.tensor: o for o in operator.inputs}
        for name in operator.saves:
            layout = done.written[name]
            if name in used:
                needed = _seen(operator, used[name], placed.shards, graph.tensors[name])
                gathers = all(s.kind in (None, CollectiveKind.ALL_GATHER) for s in convert(layout, needed))
                shard = gathers and (strategy.saves_shards or name in done.streamed)
                layout = layout if shard else needed
            saved[(name, layout)] = None
    return tuple(saved)


def _streams(strategy: Strategy, operand: Operand) -> bool:
    return strategy.context == "ring" and "key_seq" in operand.indices


def _placed_weights(graph: LayerGraph, strategy: Strategy, forward: _Pass) -> tuple[PlacedWeight, ...]:
    uses: dict[str, Layout] = {}
    for placed in forward.placed:
        for operand in placed.operator.inputs:
            tensor = graph.tensors[operand.tensor]
            if tensor.role is Role.WEIGHT:
                uses.setdefault(tensor.name, _seen(placed.operator, operand, placed.shards, tensor))
    zero = strategy.mesh.zero if strategy.zero_stage else ()
    return tuple(
        PlacedWeight(w, uses[w.name], Layout.of(uses[w.name].as_dict() | _flat(uses[w.name], zero)))
        for w in graph.weights()
    )


def _flat(use: Layout, axes: Iterable[str]) -> dict[str, str]:
    return {axis: FLAT for axis in axes if use[axis] is None}


def _home(use: Layout, zero: Layout | None) -> Layout:
    """A weight's home: as it is used, and flat along the ZeRO axes that do not shard it already."""
    return use if zero is None else Layout.of(use.as_dict() | _flat(use, zero.sharded))


def _home_layouts(graph: LayerGraph, strategy: Strategy) -> dict[str, Layout]:
    if strategy.zero_stage < 3:
        return {}
    flat = Layout.of(dict.fromkeys(strategy.mesh.zero, FLAT))
    return {w.name: flat for w in graph.weights()}


def _gradient(weight: PlacedWeight, backward: Backward, done: _Pass) -> tuple[Tensor, Layout] | None:
    name = backward.gradients.get(weight.tensor.name)
    return None if name is None else (backward.graph.tensors[name], done.written[name])


def state_collectives(weights: Iterable[PlacedWeight], zero_stage: int) -> list[Collective]:
    """Reduction of weight gradients to their homes, and ZeRO-1/2's gathering of updated weights."""
    collectives: list[Collective] = []
    # whole gradients can be accumulated first; shards only after each micro-batch is reduced
    phase = CollectivePhase.BACKWARD if zero_stage >= 2 else CollectivePhase.STEP
    for weight in weights:
        if weight.gradient is None:
            continue
        tensor, written = weight.gradient
        home = weight.home if zero_stage else weight.use
        collectives += _collectives(tensor, convert(written, home), "gradient", phase)
        if zero_stage in (1, 2):
            collectives += _collectives(
                weight.tensor, convert(weight.home, weight.use), "updated", CollectivePhase.STEP
            )
    return collectives


def gather_collectives(weights: Iterable[PlacedWeight], phase: CollectivePhase) -> list[Collective]:
    """ZeRO-3's gathering of weights for one direction of a layer."""
    return [c for w in weights for c in _collectives(w.tensor, convert(w.home, w.use), w.tensor.name, phase)]


def with_state_axes(
    weights: Iterable[PlacedWeight], axes: Mapping[str, str | None], zero: Collection[str]
) -> tuple[PlacedWeight, ...]:
    """Weights on a mesh whose axes each do what one of the derived mesh does, or (None) shard only the batch.

    What an axis does to a weight does not depend on the other axes: along data-parallel replicas a weight is whole and
    its gradient a partial sum.
    """
    return tuple(_with_state_axes(weight, axes, zero) for weight in weights)


def _with_state_axes(weight: PlacedWeight, axes: Mapping[str, str | None], zero: Collection[str]) -> PlacedWeight:
    use = _renamed(weight.use, axes, None)
    home = Layout.of(use.as_dict() | _flat(use, zero))
    if weight.gradient is None:
        return PlacedWeight(weight.tensor, use, home)
    tensor, written = weight.gradient
    return PlacedWeight(weight.tensor, use, home, (tensor, _renamed(written, axes, PARTIAL)))


def _renamed(layout: Layout, axes: Mapping[str, str | None], replicated: str | None) -> Layout:
    placements = {axis: replicated if source is None else layout[source] for axis, source in axes.items()}
    return Layout.of({axis: placement for axis, placement in placements.items() if placement is not None})


def _collectives(
    tensor: Tensor, steps: Iterable[ConversionStep], user: str, phase: CollectivePhase
) -> Iterator[Collective]:
    for step in steps:
        if step.kind is not None:
            larger = step.after if step.kind is CollectiveKind.ALL_GATHER else step.before
            yield Collective(step.kind, step.axes, tensor, larger.sharded, user, phase)


def _seen(operator: Operator, operand: Operand, shards: Mapping[str, str], tensor: Tensor) -> Layout:
    """The layout an operator needs for an operand: sharded where the operand has the dim, whole elsewhere."""
    placements: dict[str, str] = {}
    partial = PARTIAL if is_term(operator, tensor) else None
    for axis, dim in shards.items():
        tensor_dim = partial if dim == PARTIAL else tensor_dim_of(operator, operand, tensor, dim)
        if tensor_dim is not None:
            placements[axis] = tensor_dim
    return Layout.of(placements)


def is_term(operator: Operator, tensor: Tensor) -> bool:
    """Whether the operator is linear in this operand: a sum in its terms, a gradient in the arriving one."""
    if operator.phase is Phase.FORWARD:
        return operator.function in SUMS and tensor.role is not Role.INDEX
    return tensor.role in (Role.GRADIENT, Role.WEIGHT_GRADIENT)


def tensor_dim_of(operator: Operator, operand: Operand, tensor: Tensor, dim: str) -> str | None:
    """The tensor's dim that is sharded with the operator's dim (tokens regrouped by expert included)."""
    same = [dim, *(b for a, b in operator.regroups if a == dim), *(a for a, b in operator.regroups if b == dim)]
    for tensor_dim, seen in zip(tensor.dims, operand.indices, strict=True):
        if seen in same:
            return tensor_dim
    return None


def _reachable(before: Layout, after: Layout) -> bool:
    return all(before[axis] == PARTIAL for axis in after.partial)


def _weight(steps: tuple[ConversionStep, ...]) -> tuple[int, int]:
    """Fewer and lighter collectives first: without sizes, reductions count more than gathers."""
    kinds = [s.kind for s in steps if s.kind is not None]
    return (len(kinds), sum(k is CollectiveKind.ALL_REDUCE for k in kinds))
