"""A model as a chain of layer classes with counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.frozen import frozen
from dovetail.graph.count import active_parameters, flops, matmul_flops, parameters, trained_parameters
from dovetail.graph.layer import LayerGraph
from dovetail.graph.operator import Kind, Operator, Phase, Unit
from dovetail.graph.size import Size, product, times, total
from dovetail.graph.tensor import Tensor
from dovetail.graph.verify import GraphError


@frozen
class Run:
    """`count` layers of one class in a row."""

    layer: str
    count: int


@frozen
class ModelGraph:
    """Layer classes, and the order in which they repeat from the embedding to the loss."""

    name: str
    layers: Mapping[str, LayerGraph]
    chain: tuple[Run, ...]

    def counts(self) -> dict[str, int]:
        """How often each layer class occurs."""
        counts = dict.fromkeys(self.layers, 0)
        for run in self.chain:
            counts[run.layer] += run.count
        return counts

    def parameters(self) -> int:
        """Parameters, trained and frozen; tied weights count once."""
        return self._over_layers(parameters) - self._tied_surplus(frozen=True)

    def trained_parameters(self) -> int:
        """Parameters with a gradient; tied weights count once."""
        return self._over_layers(trained_parameters) - self._tied_surplus(frozen=False)

    def trains_all(self) -> bool:
        """Whether every weight has a gradient."""
        return not any(weight.frozen for graph in self.layers.values() for weight in graph.weights())

    def active_parameters(self) -> int:
        """Parameters one token uses."""
        return self._over_layers(active_parameters) - self._tied_surplus(frozen=True)

    def forward_flops(self, batch: Size, seq: Size, *, causal: bool = False) -> Size:
        """Matrix FLOPs of one forward pass: head in, embedding lookup out."""
        parts: list[Size] = []
        for name, count in self.counts().items():
            graph = self.layers[name]
            sizes = graph.resolve(batch=batch, seq=seq)
            parts.append(times(matmul_flops(graph, sizes, (Phase.FORWARD,), causal=causal), count))
        return total(parts)

    def training_flops(self, batch: Size, seq: Size, *, causal: bool = False) -> Size:
        """Matrix FLOPs of one forward and backward: three times the forward's.

        Products with frozen weights have no weight gradient, and what no gradient comes back to runs once.
        """
        parts: list[Size] = []
        for name, count in self.counts().items():
            graph = self.layers[name]
            sizes = graph.resolve(batch=batch, seq=seq)
            trained = {operator.name for operator in graph.reached()}
            for operator in graph.operators:
                work = flops(operator, sizes, Unit.MATRIX, causal=causal)
                products = (2 if _has_frozen(operator, graph) else 3) if operator.name in trained else 1
                parts.append(times(work, products * count))
        return total(parts)

    def _over_layers(self, of: Callable[[LayerGraph], int]) -> int:
        counts = self.counts()
        return sum(of(graph) * counts[name] for name, graph in self.layers.items())

    def _tied_surplus(self, *, frozen: bool) -> int:
        """What tied weights were counted too often, with frozen ones or without."""
        surplus = 0
        seen: set[str] = set()
        for name, count in self.counts().items():
            sizes = self.layers[name].fixed_sizes()
            for weight in self.layers[name].weights():
                if not weight.tied or not count or (weight.frozen and not frozen):
                    continue
                points = product(sizes, weight.dims)
                assert isinstance(points, int)
                surplus += points * (count if weight.tied in seen else count - 1)
                seen.add(weight.tied)
        return surplus


def _has_frozen(operator: Operator, graph: LayerGraph) -> bool:
    return operator.kind is Kind.CONTRACTION and any(graph.tensors[o.tensor].frozen for o in operator.inputs)


def verify_chain(model: ModelGraph) -> ModelGraph:
    """The same model, once each layer is known to hand on what the next one takes."""
    links: dict[tuple[str, str], None] = {}
    for previous, run in zip((None, *model.chain), model.chain, strict=False):
        if run.count < 1:
            raise GraphError(f"{model.name}: a run of {run.count} layers of {run.layer}")
        if previous is not None:
            links[previous.layer, run.layer] = None
        if run.count > 1:
            links[run.layer, run.layer] = None
    for before, after in links:  # a long chain of few classes has few links
        _check_link(model.name, model.layers[before], model.layers[after])
    return model


def _check_link(model: str, before: LayerGraph, after: LayerGraph) -> None:
    handed, taken = _shapes(before, before.outputs), _shapes(after, after.inputs)
    if handed != taken:
        raise GraphError(f"{model}: {before.name} hands on {handed}, {after.name} takes {taken}")


def _shapes(graph: LayerGraph, names: tuple[str, ...]) -> list[list[tuple[str, object]]]:
    return [[(d, graph.sizes.get(d)) for d in t.dims] for t in graph.stream(names)]


def shared_weights(model: ModelGraph) -> dict[str, list[tuple[str, Tensor]]]:
    """Tied weights by name, each with the layer classes that use it."""
    users: dict[str, list[tuple[str, Tensor]]] = {}
    for name, graph in model.layers.items():
        for weight in graph.weights():
            if weight.tied:
                users.setdefault(weight.tied, []).append((name, weight))
    return users
