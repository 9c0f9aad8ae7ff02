"""The table of the lowering: ATen operators that only rename, and what sequences of the others are in the IR.

The IR has no lone reduction or square root, so normalisation, softmax and routing are recognised whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import prod

from aten_lowering import Axes, Axis, Lowering, Node, Reading, Renaming, Results, Rule, Rules

from dovetail.graph import Mask
from dovetail.graph.attention import attention
from dovetail.graph.routing import combine, dispatch, routing


def _regroup(low: Lowering, node: Node, axes: Axes) -> Axes:
    """A view: the same dims in the same order, cut into axes of other sizes."""
    waiting = [d for axis in axes for d in axis]
    result: list[Axis] = []
    for size in node.meta["val"].shape:
        axis: list[str] = []
        while prod(low.sizes[d] for d in axis) < size and waiting:
            axis.append(waiting.pop(0))
        result.append(tuple(axis))
    return tuple(result)


def _transpose(low: Lowering, node: Node, axes: Axes) -> Axes:
    first, second = node.args[1:] or (0, 1)
    order = list(axes)
    order[first], order[second] = order[second], order[first]
    return tuple(order)


def _unsqueeze(low: Lowering, node: Node, axes: Axes) -> Axes:
    position = node.args[1] % (len(axes) + 1)
    return (*axes[:position], (), *axes[position:])


def _expand(low: Lowering, node: Node, axes: Axes) -> Axes:
    pairs = zip(axes, node.meta["val"].shape, strict=True)
    return tuple(axis or ((low.names.expanded,) if size > 1 else ()) for axis, size in pairs)


def _same(low: Lowering, node: Node, axes: Axes) -> Axes:
    return axes


#: What changes only how a tensor is read.
RENAMINGS: Mapping[str, Renaming] = {
    "view": _regroup,
    "_unsafe_view": _regroup,
    "t": _transpose,
    "transpose": _transpose,
    "unsqueeze": _unsqueeze,
    "expand": _expand,
    "clone": _same,
    "detach": _same,
}


def _product(low: Lowering, node: Node) -> Results:
    """mm, bmm: the last axis of the left meets the second last of the right; those before are common."""
    left, right = low.readings[node.args[0]], low.readings[node.args[1]]
    assert left.axes[:-2] == right.axes[:-2]
    renamed = dict(zip(right.axes[-2], left.axes[-1], strict=True))
    renamed |= {d: low.names.second[d] for d in right.axes[-1] if d in left.axes[-2]}
    columns = tuple(renamed.get(d, d) for d in right.axes[-1])
    axes = (*left.axes[:-1], columns)
    dims = tuple(chain.from_iterable(axes))
    box = {*dims, *left.dims}
    name = low.builder.contraction(
        low.name(node),
        low.use(node.args[0]),
        low.use(node.args[1], renamed),
        dims,
        mask=Mask(causal=True) if {"seq", "key_seq"} <= box else None,
    )
    return {node: Reading(low.emitted(name), axes)}


def _grouped_product(low: Lowering, node: Node) -> Results:
    """Rows are tokens by expert, and the weight has the experts too: an einsum with one more common dim."""
    left, right = low.readings[node.args[0]], low.readings[node.args[1]]
    assert left.axes[0][0] == right.axes[0][0] == "experts"
    axes = (left.axes[0], right.axes[2])
    dims = tuple(chain.from_iterable(axes))
    name = low.builder.contraction(low.name(node), low.use(node.args[0]), low.use(node.args[1]), dims)
    return {node: Reading(low.emitted(name), axes)}


def _pointwise(function: str) -> Rule:
    def rule(low: Lowering, node: Node) -> Results:
        operands = [low.use(n) for n in node.args]
        reading = low.readings[node.args[0]]
        name = low.builder.elementwise(low.name(node), function, *operands, dims=reading.dims)
        return {node: Reading(low.emitted(name), reading.axes)}

    return rule


def _rms_norm(low: Lowering, *nodes: Node) -> Results:
    wide, _, mean, shifted, _, _, _, scaled = nodes
    source, weight = low.readings[wide.args[0]], low.readings[scaled.args[0]]
    assert mean.args[1] == [-1]
    name = low.builder.normalisation(
        low.name(scaled), "rms", low.use(wide.args[0]), source.axes[-1], (weight.tensor,), shifted.args[1]
    )
    return {scaled: Reading(low.emitted(name), source.axes)}


def _rotary(low: Lowering, *nodes: Node) -> Results:
    cosine, *_, sine, result = nodes
    source = low.readings[cosine.args[0]]
    operands = (low.use(cosine.args[0]), low.use(cosine.args[1]), low.use(sine.args[1]))
    name = low.builder.elementwise(low.name(result), "rotary", *operands)
    return {result: Reading(low.emitted(name), source.axes)}


def _softmax(low: Lowering, *nodes: Node) -> Results:
    scaled, masked, _, softmax, result = nodes
    source = low.readings[scaled.args[0]]
    assert low.readings[masked.args[1]].axes == (), "what is added is the mask"
    assert softmax.args[1] == -1
    (over,) = source.axes[-1]
    name = low.builder.softmax(
        low.name(softmax), low.use(scaled.args[0]), over, mask=Mask(causal=True), scale=scaled.args[1]
    )
    return {result: Reading(low.emitted(name), source.axes)}


def _attention(low: Lowering, *nodes: Node) -> Results:
    fused, result, *_ = nodes
    q, k, v = fused.args[:3]
    axes = (*low.readings[q].axes[:-1], low.readings[v].axes[-1])
    causal = fused.args[6] if len(fused.args) > 6 else False
    name = attention(
        low.builder,
        low.name(fused),
        (low.use(q), low.use(k, low.names.second), low.use(v, low.names.second)),
        Mask(causal=causal),
        scale=fused.kwargs["scale"],
    )
    return {result: Reading(low.emitted(name), axes)}


def _routing(low: Lowering, *nodes: Node) -> Results:
    wide, _, _, _, chosen, _, gates = nodes
    logits = low.readings[wide.args[0]]
    values, choice = routing(
        low.builder, low.name(gates), "softmax", low.use(wide.args[0]), logits.dims[-1], renormalise=True
    )
    low.emitted(values)
    axes = (logits.axes[0], ("top_k",))
    return {gates: Reading(values, axes), chosen: Reading(choice, axes)}


def _dispatch(low: Lowering, *nodes: Node) -> Results:
    """Sorting tokens by expert is the dispatch; permutation and offsets are the choice, read otherwise."""
    order, _, permutation, _, tokens, sorted_gates, _, _, offsets = nodes
    choice, gates = low.readings[order.args[0]], low.readings[sorted_gates.args[0]]
    name = dispatch(low.builder, low.name(tokens), low.use(tokens.args[0]), choice.tensor, "experts")
    rows, width = ("experts", "expert_tokens"), low.readings[tokens.args[0]].axes[-1]
    return {
        tokens: Reading(low.emitted(name), (rows, width)),
        sorted_gates: Reading(gates.tensor, (rows,)),
        permutation: Reading(choice.tensor, (rows,)),
        offsets: Reading(choice.tensor, (("experts",),)),
    }


def _combine(low: Lowering, *nodes: Node) -> Results:
    weighted, empty, *_, result = nodes
    results, gates = weighted.args
    choice = low.readings[empty.args[0]].tensor
    width = low.readings[results].axes[-1]
    gate = low.readings[gates].tensor
    tokens = low.builder.tensors[gate].dims[:-1]
    name = combine(low.builder, low.name(result), low.use(results), gate, choice, (*tokens, *width))
    return {result: Reading(low.emitted(name), (tokens, width))}


def _slices(low: Lowering, *nodes: Node) -> Results:
    """Both halves of a fused projection: the dim of the halves disappears."""
    whole, *parts = nodes
    source = low.readings[whole.args[0]]
    axes = (*source.axes[:-1], source.axes[-1][1:])
    dims = tuple(chain.from_iterable(axes))
    along = source.axes[-1][:1]
    results: Results = {}
    for part in parts:
        name = low.builder.movement(low.name(part), "slice", (low.use(whole.args[0]),), dims, along)
        results[part] = Reading(low.emitted(name), axes)
    return results


#: ATen operators in trace order, renamings between them left out, and what they are in the IR.
PATTERNS: tuple[tuple[str, Rule], ...] = (
    ("sort getitem getitem floor_divide index index _to_copy histc cumsum", _dispatch),
    ("_to_copy pow mean add rsqrt mul _to_copy mul", _rms_norm),
    ("_to_copy _softmax topk getitem getitem sum div", _routing),
    ("mul empty_like arange index_put index sum _to_copy", _combine),
    ("mul slice slice neg cat mul add", _rotary),
    ("mul add _to_copy _softmax _to_copy", _softmax),
    ("_scaled_dot_product_efficient_attention getitem getitem getitem getitem", _attention),
    ("split getitem getitem", _slices),
    ("mm", _product),
    ("bmm", _product),
    ("_grouped_mm", _grouped_product),
    ("silu", _pointwise("silu")),
    ("mul", _pointwise("multiply")),
    ("add", _pointwise("add")),
)

RULES = Rules(RENAMINGS, PATTERNS)
