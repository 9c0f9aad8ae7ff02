"""Softmax, fused attention and the indexer of sparse attention."""

from __future__ import annotations

import numpy as np
from interpreter_call import Array, Call, Dims, align, contract, visible

from dovetail.graph import Mask


def softmax(call: Call, x: Array) -> tuple[Array]:
    """Softmax of scale · x over the dim whose split makes shards talk."""
    dims = call.inputs[0]
    scores = call.attribute("scale") * x
    if call.operator.mask is not None:
        scores = np.where(_inside(call, call.operator.mask, dims), scores, -np.inf)
    axis = dims.index(call.operator.exchanges[0].dim)
    weights = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return (weights / weights.sum(axis=axis, keepdims=True),)


def softmax_gradient(call: Call, arriving: Array, y: Array) -> tuple[Array]:
    axis = call.inputs[0].index(call.operator.exchanges[0].dim)
    return (call.attribute("scale") * y * (arriving - (arriving * y).sum(axis=axis, keepdims=True)),)


def _inside(call: Call, mask: Mask, space: Dims) -> Array:
    seen = visible(mask, call.sizes[mask.query], call.sizes[mask.key])
    return align(seen, (mask.query, mask.key), space)


def masked(call: Call, array: Array, dims: Dims) -> Array:
    """Zero outside the operator's mask, where the array has both its dims."""
    mask = call.operator.mask
    if mask is None or mask.query not in dims or mask.key not in dims:
        return array
    return np.where(_inside(call, mask, dims), array, 0.0)


def attention(call: Call, q: Array, k: Array, v: Array, *extras: Array) -> tuple[Array, Array]:
    """Scores, softmax with a sink logit where there is one, weighted values; and the log-sum-exp."""
    pairs = _pairs(call, call.inputs[0])
    scores = _scores(call, call.inputs, (q, k, *extras))
    top = scores.max(axis=-1)
    weights = np.exp(scores - top[..., None]).sum(axis=-1)
    if call.attribute("sinks"):
        weights = weights + np.exp(call.spread(extras[0], call.inputs[3], pairs[:-1]) - top)
    lse = top + np.log(weights)
    out = contract(np.exp(scores - lse[..., None]), pairs, v, call.inputs[2], call.outputs[0])
    return out, lse


def attention_gradient(call: Call, arriving: Array, *saved: Array) -> tuple[Array, ...]:
    """The adjoint of attention, from what a fused kernel keeps: q, k, v, output and log-sum-exp."""
    *inputs, out, lse = saved
    q, k, v, *extras = inputs
    dims = call.inputs[1:-2]
    pairs = _pairs(call, dims[0])
    scale = call.attribute("scale")
    p = np.exp(_scores(call, dims, (q, k, *extras)) - lse[..., None])
    delta = (arriving * out).sum(axis=-1)
    dp = contract(arriving, call.inputs[0], v, dims[2], pairs)
    ds = p * (dp - delta[..., None])
    gradients = [
        scale * contract(ds, pairs, k, dims[1], dims[0]),
        scale * contract(ds, pairs, q, dims[0], dims[1]),
        contract(p, pairs, arriving, call.inputs[0], dims[2]),
    ]
    if call.attribute("sinks"):
        sink = np.exp(call.spread(extras[0], dims[3], pairs[:-1]) - lse)
        gradients.append(call.gather(-sink * delta, pairs[:-1], dims[3]))
    return call.select(dims[: len(gradients)], tuple(gradients))


def _pairs(call: Call, query: Dims) -> Dims:
    assert call.operator.mask is not None
    return (*query[:-1], call.operator.mask.key)


def _scores(call: Call, dims: tuple[Dims, ...], arrays: tuple[Array, ...]) -> Array:
    """scale · q · k, minus infinity where the mask or the choice leaves a pair out."""
    q, k, *extras = arrays
    mask = call.operator.mask
    assert mask is not None
    pairs = _pairs(call, dims[0])
    scores = call.attribute("scale") * contract(q, dims[0], k, dims[1], pairs)
    scores = np.where(_inside(call, mask, pairs), scores, -np.inf)
    if call.attribute("sparse"):
        rows = dims[2 + len(extras)][:-1]
        chosen = (extras[-1][..., None] == np.arange(call.sizes[mask.key])).any(axis=-2)
        scores = np.where(align(chosen, (*rows, mask.key), pairs), scores, -np.inf)
    return scores


def index_top_k(call: Call, q: Array, k: Array, *weights: Array) -> tuple[Array]:
    """The keys of the highest Σ_heads w · relu(q · k), none of the future before one of the past."""
    mask = call.operator.mask
    assert mask is not None
    pairs = _pairs(call, call.inputs[0])
    heads = np.maximum(contract(q, call.inputs[0], k, call.inputs[1], pairs), 0)
    rows = (*call.outputs[0][:-1], mask.key)
    weight = weights[0] if weights else np.ones(call.shape(pairs[:-1]))
    scores = contract(heads, pairs, weight, call.inputs[2] if weights else pairs[:-1], rows)
    scores = np.where(_inside(call, mask, rows), scores, -np.inf)
    best = np.argsort(-scores, axis=-1, kind="stable")
    return (best[..., : call.sizes[call.outputs[0][-1]]],)
