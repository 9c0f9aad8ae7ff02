"""The field's names for the operators of a traced layer, told from what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from dovetail.graph import Kind, LayerGraph, Operand, Operator, Role
from dovetail.models.tracing.layer_dims import with_key_heads, with_plain_dims

#: Gives an operator a name if it has none.
Give: TypeAlias = "Callable[[Operator | None, str], None]"


def renamed(graph: LayerGraph) -> tuple[LayerGraph, dict[str, str]]:
    """The layer with the names a description gives operators, and which name each had before."""
    graph = with_plain_dims(with_key_heads(graph))
    names = _operator_names(graph)
    fusions = _fusions(graph, names)
    tensors = {n: names.get(n, n) for n in graph.tensors}
    for operator in graph.operators:
        for operand in operator.outputs[1:]:
            tail = operand.tensor.removeprefix(operator.name)
            tensors[operand.tensor] = names.get(operator.name, operator.name) + tail
        new = names.get(operator.name, operator.name)
        for operand in operator.inputs:
            tensor = graph.tensors[operand.tensor]
            if tensor.role is Role.WEIGHT and new != operator.name and tensors[operand.tensor] == operand.tensor:
                tail = "bias" if operator.function == "add" else "weight"
                tensors[operand.tensor] = f"{new.removesuffix('.biased')}.{tail}"
    tensors = _distinct(tensors)

    def changed(o: Operand) -> Operand:
        return replace(o, tensor=tensors[o.tensor])

    operators = tuple(
        replace(
            o,
            name=names.get(o.name, o.name),
            inputs=tuple(map(changed, o.inputs)),
            outputs=tuple(map(changed, o.outputs)),
            saves=tuple(tensors[s] for s in o.saves),
            fusion=fusions.get(o.name, o.fusion),
        )
        for o in graph.operators
    )
    return replace(
        graph,
        tensors={tensors[n]: replace(t, name=tensors[n]) for n, t in graph.tensors.items()},
        operators=operators,
        inputs=tuple(tensors[n] for n in graph.inputs),
        outputs=tuple(tensors[n] for n in graph.outputs),
    ), {names.get(o.name, o.name): o.name for o in graph.operators}


def _distinct(names: dict[str, str]) -> dict[str, str]:
    seen: set[str] = set()
    found: dict[str, str] = {}
    for old, new in names.items():
        own, number = new, 2
        while own in seen:
            own, number = f"{new}.{number}", number + 1
        seen.add(own)
        found[old] = own
    return found


def _operator_names(graph: LayerGraph) -> dict[str, str]:
    makers = {o.tensor: op for op in graph.operators for o in op.outputs}
    users: dict[str, list[Operator]] = {}
    for op in graph.operators:
        for o in op.inputs:
            users.setdefault(o.tensor, []).append(op)
    names: dict[str, str] = {}
    taken: set[str] = set()

    def give(operator: Operator | None, name: str) -> None:
        if operator is None or operator.name in names:
            return
        own, number = name, 2
        while own in taken:
            own, number = f"{name}.{number}", number + 1
        taken.add(own)
        names[operator.name] = own

    for op in graph.operators:
        if op.kind in (Kind.ATTENTION, Kind.LINEAR_ATTENTION):
            give(op, "attention")
            for operand, role in zip(op.inputs[:3], ("query", "key", "value"), strict=False):
                _up(makers, operand.tensor, role, give)
            give(_next_product(graph, users, op), "output")
        elif op.kind is Kind.INDEXER:
            give(op, "index")
            for operand, role in zip(op.inputs, ("index_query", "index_key", "index_weight"), strict=False):
                _up(makers, operand.tensor, role, give)
        elif op.kind is Kind.STATE_SPACE:
            give(op, "scan")
            give(_next_product(graph, users, op), "output")
        elif op.kind is Kind.ROUTING:
            _up(makers, op.inputs[0].tensor, "router", give)
    for op in graph.operators:
        if op.kind is Kind.ELEMENTWISE and not op.name.startswith("expert."):
            _feed_forward_names(graph, op, makers, users, give)
    for op in graph.operators:
        if op.kind is Kind.LOSS:
            _up(makers, op.inputs[0].tensor, "logits", give)
    norms = [op for op in graph.operators if op.kind is Kind.NORMALISATION and op.inputs[0].tensor in _streams(graph)]
    for op, name in zip(norms, ("mixer_norm", "feed_forward_norm"), strict=False):
        give(op, name)
    return names


def _streams(graph: LayerGraph) -> set[str]:
    """The layer's input and the sums along it."""
    found = {n for n in graph.inputs if graph.tensors[n].role is Role.ACTIVATION}
    for op in graph.operators:
        if op.function == "add" and any(o.tensor in found for o in op.inputs):
            found.add(op.outputs[0].tensor)
    return found


def _up(makers: Mapping[str, Operator], tensor: str, role: str, give: Give) -> None:
    """Names the chain of operators that makes a query, a key, a value or logits."""
    op = makers.get(tensor)
    suffix = {"rotary": "_rotary", "add": ".biased", "softcap": ".softcap"}
    while op is not None and op.kind is not Kind.CONTRACTION:
        if op.kind is Kind.NORMALISATION:
            give(op, f"{role}_norm")
        elif op.kind is Kind.ELEMENTWISE and op.function in suffix:
            give(op, f"{role}{suffix[op.function]}")
        elif op.kind is Kind.MOVEMENT and op.function == "concatenate":
            give(op, role)
            for operand, part in zip(op.inputs, ("content", "positional"), strict=False):
                _up(makers, operand.tensor, f"{role}_{part}", give)
            return
        elif op.kind not in (Kind.CONVOLUTION, Kind.ELEMENTWISE):
            return
        op = makers.get(op.inputs[0].tensor)
    give(op, role)


def _next_product(graph: LayerGraph, users: Mapping[str, list[Operator]], op: Operator) -> Operator | None:
    waiting, seen = [op], set[str]()
    while waiting:
        here = waiting.pop(0)
        for user in users.get(here.outputs[0].tensor, []):
            if user.name in seen:
                continue
            seen.add(user.name)
            if user.kind is Kind.CONTRACTION and any(graph.tensors[o.tensor].role is Role.WEIGHT for o in user.inputs):
                return user
            if user.function != "add":
                waiting.append(user)
    return None


_PLAIN = ("gelu", "gelu_tanh", "silu", "relu", "relu2", "quick_gelu")
_WITH_GATE = ("swiglu", "geglu", "geglu_tanh", "reglu")


def _feed_forward_names(
    graph: LayerGraph, op: Operator, makers: Mapping[str, Operator], users: Mapping[str, list[Operator]], give: Give
) -> None:
    if op.function not in (*_PLAIN, *_WITH_GATE):
        return
    prefix = "shared" if "shared_ffn" in op.dims else "mlp"
    if "ffn" not in op.dims and "shared_ffn" not in op.dims:
        return
    give(op, f"{prefix}.activation")
    for operand, role in zip(op.inputs, ("gate", "up") if op.function in _WITH_GATE else ("up",), strict=False):
        _up(makers, operand.tensor, f"{prefix}.{role}", give)
    give(_next_product(graph, users, op), f"{prefix}.down")


def _fusions(graph: LayerGraph, names: Mapping[str, str]) -> dict[str, str]:
    """Products of one input that a framework runs as one, and the rotary positions of queries and keys."""
    found: dict[str, str] = {}
    for op in graph.operators:
        name = names.get(op.name, op.name)
        if op.kind is Kind.CONTRACTION and op.fusion:
            continue  # parts of one product
        if op.kind is Kind.CONTRACTION and name in ("query", "key", "value", "gate"):
            found[op.name] = "qkv"
        elif op.kind is Kind.CONTRACTION and name.endswith((".gate", ".up")) and not name.startswith("expert"):
            found[op.name] = f"{name.rpartition('.')[0]}.up"
        elif op.function == "rotary":
            found[op.name] = "rotary"
        elif name.endswith(".biased"):
            found[op.name] = f"{name.removesuffix('.biased')}.bias"
    return found
