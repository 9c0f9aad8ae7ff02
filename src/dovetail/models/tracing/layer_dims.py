"""Dims of a written layer: one for key heads where all queries share one, and plain names for those no role has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail.graph import DerivedSize, Kind, LayerGraph, Operand, Operator
from dovetail.graph.size import DimSize


def with_key_heads(graph: LayerGraph) -> LayerGraph:
    """The layer with the dim of key heads where all queries share one: a trace drops axes of size 1."""
    if "group" not in graph.sizes or "kv_heads" in graph.sizes:
        return graph
    makers = {o.tensor: op for op in graph.operators for o in op.outputs}
    wide = {t.name for t in graph.tensors.values() if "group" in t.dims}
    for op in graph.operators:
        if op.kind is Kind.ATTENTION:
            for operand in op.inputs[1:3]:
                wide |= _made_for(makers, operand.tensor)
    if wide & set(graph.inputs):
        return graph
    tensors = {n: replace(t, dims=_with_heads(t.dims)) if n in wide else t for n, t in graph.tensors.items()}

    def changed(o: Operand) -> Operand:
        return replace(o, indices=_with_heads(o.indices)) if o.tensor in wide else o

    operators = tuple(
        replace(o, inputs=tuple(map(changed, o.inputs)), outputs=tuple(map(changed, o.outputs)))
        for o in graph.operators
    )
    return replace(graph, sizes={**graph.sizes, "kv_heads": 1}, tensors=tensors, operators=operators)


def _with_heads(dims: tuple[str, ...]) -> tuple[str, ...]:
    at = dims.index("group") if "group" in dims else len(dims) - 1
    return (*dims[:at], "kv_heads", *dims[at:])


def _made_for(makers: Mapping[str, Operator], tensor: str) -> set[str]:
    """A key or value, and all it is made of down to its products with weights."""
    found: set[str] = set()
    waiting = [tensor]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        op = makers.get(name)
        if op is not None and op.kind is Kind.CONTRACTION:
            found.add(op.inputs[1].tensor)
        elif op is not None:
            found |= {o.tensor for o in op.outputs}
            waiting += [o.tensor for o in op.inputs]
    return found


def with_plain_dims(graph: LayerGraph) -> LayerGraph:
    """Dims no role names are called by their order, so that equal layers are equal."""
    order = dict.fromkeys(d for o in graph.operators for x in (*o.inputs, *o.outputs) for d in x.indices)
    order |= dict.fromkeys(graph.sizes)
    found: dict[str, str] = {}
    for dim in order:
        base = dim.removesuffix("_too")
        if base[:1] == "d" and base[1:].isdigit() and base not in found:
            found[base] = f"width_{len(found) + 1}"
    new = {dim: found[base] + dim[len(base) :] for dim in order if (base := dim.removesuffix("_too")) in found}
    return with_dims(graph, new)


def with_dims(graph: LayerGraph, new: Mapping[str, str]) -> LayerGraph:
    """The layer with some dims under other names."""
    if not new:
        return graph

    def named(dims: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new.get(d, d) for d in dims)

    def changed(o: Operand) -> Operand:
        return replace(o, indices=named(o.indices))

    def size(of: DimSize) -> DimSize:
        derived = isinstance(of, DerivedSize)
        return replace(of, numerator=named(of.numerator), denominator=named(of.denominator)) if derived else of

    operators = tuple(
        replace(
            o,
            inputs=tuple(map(changed, o.inputs)),
            outputs=tuple(map(changed, o.outputs)),
            work=tuple(replace(w, dims=named(w.dims)) for w in o.work),
            exchanges=tuple(replace(e, dim=new.get(e.dim, e.dim), dims=named(e.dims)) for e in o.exchanges),
            indivisible=named(o.indivisible),
            regroups=tuple((new.get(a, a), new.get(b, b)) for a, b in o.regroups),
            mask=o.mask
            and replace(o.mask, query=new.get(o.mask.query, o.mask.query), key=new.get(o.mask.key, o.mask.key)),
        )
        for o in graph.operators
    )
    tensors = {n: replace(t, dims=named(t.dims)) for n, t in graph.tensors.items()}
    sizes = {new.get(d, d): size(s) for d, s in graph.sizes.items()}
    return replace(graph, sizes=sizes, tensors=tensors, operators=operators)
