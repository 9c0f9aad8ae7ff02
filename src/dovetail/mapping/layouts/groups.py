"""Which operators of a layer are sharded together: the variables of a layout search."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from dovetail.graph import Kind, LayerGraph, Operator, Role
from dovetail.graph.routing import EXPERT_TOKENS

#: Dims that mark the operators of a mixture of experts and its shared expert.
MIXTURE_DIMS = frozenset({EXPERT_TOKENS, "experts", "shared_ffn"})

#: What happens between a token and its experts: the router's product, the choice of experts and the dispatch.
ROUTING_KINDS = (Kind.CONTRACTION, Kind.ROUTING, Kind.DISPATCH)


class Together(IntEnum):
    """How many operators share one variable."""

    #: matrix products that read the same tensor, with their bias adds
    SIBLINGS = 0
    #: also chains of vector operators in which each is the only reader of the one before; router, gates and dispatch
    CHAINS = 1
    #: also residual adds, laid out like the residual stream; what only attention reads is sharded like attention
    STREAM = 2
    #: also all of a mixture of experts, sharded as by a named strategy
    MIXTURE = 3


def operator_groups(graph: LayerGraph, together: Together) -> tuple[tuple[tuple[str, ...], ...], frozenset[str]]:
    """Operators sharded alike, in order of the first of each; and those laid out like the residual stream."""
    union = _Union(operator.name for operator in graph.operators)
    mixture = mixture_operators(graph) if together is Together.MIXTURE else ()
    readers: dict[str, list[Operator]] = {}
    for operator in graph.operators:
        for operand in operator.inputs:
            readers.setdefault(operand.tensor, []).append(operator)
    union.join(mixture)
    _join_siblings(graph, readers, mixture, union)
    if together >= Together.CHAINS:
        _join_chains(graph, readers, mixture, union)
        union.join(routing_operators(graph))
    if together >= Together.STREAM:
        _join_attention(graph, readers, union)
    on_stream = _residual_adds(graph) if together >= Together.STREAM else frozenset[str]()
    groups = union.groups()
    lying = frozenset(name for group in groups for name in group if on_stream.intersection(group))
    return tuple(group for group in groups if not lying.intersection(group)), lying


def recompute_groups(graph: LayerGraph, together: Together) -> tuple[tuple[str, ...], ...]:
    """Operators whose outputs are saved or recomputed as a whole."""
    chains, _ = operator_groups(graph, min(together, Together.CHAINS))
    if together is not Together.MIXTURE:
        return chains
    mixture = set(mixture_operators(graph))
    apart = tuple(tuple(name for name in group if name not in mixture) for group in chains)
    return (*(group for group in apart if group), tuple(o.name for o in graph.operators if o.name in mixture))


def mixture_operators(graph: LayerGraph) -> tuple[str, ...]:
    """Router, dispatch, experts, combine and the shared expert, and the sum of their outputs."""
    if not any(EXPERT_TOKENS in operator.dims for operator in graph.operators):
        return ()
    names = {o.name for o in graph.operators if MIXTURE_DIMS.intersection(o.dims)}
    made = {o.tensor for operator in graph.operators if operator.name in names for o in operator.outputs}
    for operator in graph.operators:
        sources = [o.tensor for o in operator.inputs if graph.tensors[o.tensor].role is Role.ACTIVATION]
        if sources and operator.kind is Kind.ELEMENTWISE and made.issuperset(sources):
            names.add(operator.name)
            made |= {o.tensor for o in operator.outputs}
    return tuple(o.name for o in graph.operators if o.name in names)


def routing_operators(graph: LayerGraph) -> tuple[str, ...]:
    """Router, gates and dispatch in order, or nothing if the layer routes in another way."""
    found = [o for o in graph.operators if is_router(o) or o.kind in (Kind.ROUTING, Kind.DISPATCH)]
    return tuple(o.name for o in found) if tuple(o.kind for o in found) == ROUTING_KINDS else ()


def is_router(operator: Operator) -> bool:
    """Whether this product scores experts: it reads what others read, but named strategies shard it by tokens."""
    return operator.kind is Kind.CONTRACTION and "experts" in operator.dims and EXPERT_TOKENS not in operator.dims


def _join_siblings(
    graph: LayerGraph, readers: dict[str, list[Operator]], mixture: Iterable[str], union: _Union
) -> None:
    weights = {w.name for w in graph.weights()}
    for name in [n for n in readers if graph.tensors[n].role is Role.ACTIVATION]:
        products = [o for o in readers[name] if o.kind is Kind.CONTRACTION and o.name not in set(mixture)]
        products = [o for o in products if not is_router(o)]
        products = [o for o in products if any(i.tensor in weights for i in o.inputs)]
        union.join(o.name for o in products)
        biased = [r for o in products for r in readers.get(o.outputs[0].tensor, ()) if _is_bias_add(r, weights)]
        union.join(r.name for r in biased)


def _join_chains(graph: LayerGraph, readers: dict[str, list[Operator]], mixture: Iterable[str], union: _Union) -> None:
    vector = {o.name for o in graph.operators if o.kind is Kind.ELEMENTWISE} - set(mixture)
    for operator in graph.operators:
        for user in readers.get(operator.outputs[0].tensor, []):
            only = len(readers[operator.outputs[0].tensor]) == 1
            if only and {operator.name, user.name} <= vector and user.dims == operator.dims:
                union.join((operator.name, user.name))


def _join_attention(graph: LayerGraph, readers: dict[str, list[Operator]], union: _Union) -> None:
    """Biases and rotary embeddings between projections and attention are sharded like attention."""
    for operator in graph.operators:
        users = readers.get(operator.outputs[0].tensor, [])
        if operator.kind is Kind.ELEMENTWISE and users and all(user.kind is Kind.ATTENTION for user in users):
            union.join((operator.name, users[0].name))


def _is_bias_add(operator: Operator, weights: set[str]) -> bool:
    return operator.function == "add" and any(o.tensor in weights for o in operator.inputs)


def _residual_adds(graph: LayerGraph) -> frozenset[str]:
    """The adds onto the residual stream, one after the other."""
    stream = {tensor.name for tensor in graph.stream(graph.inputs)}
    names: set[str] = set()
    for operator in graph.operators:
        if operator.function == "add" and any(o.tensor in stream for o in operator.inputs):
            names.add(operator.name)
            stream |= {o.tensor for o in operator.outputs}
    return frozenset(names)


class _Union:
    """Disjoint sets of names (union-find)."""

    def __init__(self, names: Iterable[str]) -> None:
        self._of = {name: [name] for name in names}

    def join(self, names: Iterable[str]) -> None:
        first, *others = list(names) or [""]
        for other in others:
            if self._of[first] is not self._of[other]:
                both = [*self._of[first], *self._of[other]]
                for name in both:
                    self._of[name] = both

    def groups(self) -> list[tuple[str, ...]]:
        order = list(self._of)
        seen: set[int] = set()
        result: list[tuple[str, ...]] = []
        for name in order:
            if id(self._of[name]) not in seen:
                seen.add(id(self._of[name]))
                result.append(tuple(sorted(self._of[name], key=order.index)))
        return result
