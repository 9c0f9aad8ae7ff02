"""Routing, dispatch and combine; an expert's token slot t is token t, empty slots are padding."""

from __future__ import annotations

import numpy as np
from interpreter_call import Array, Call, Dims, align, only
from interpreter_elementwise import sigmoid


def _softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _softmax_back(p: Array, dp: Array) -> Array:
    return p * (dp - (dp * p).sum(axis=-1, keepdims=True))


def _sigmoid_back(s: Array, ds: Array) -> Array:
    return s * (1 - s) * ds


SCORES = {"softmax": (_softmax, _softmax_back), "sigmoid": (sigmoid, _sigmoid_back)}


def _logits(call: Call, logits: Array, dims: Dims, gates: Dims) -> tuple[Array, Dims]:
    """Logits with the experts last."""
    experts = only(dims, gates)
    space = (*gates[:-1], experts)
    return align(logits, dims, space), space


def _best(call: Call, scores: Array) -> Array:
    """The top_k experts, from no more groups than allowed; a group is ranked by its best expert."""
    groups, allowed = call.attribute("groups"), call.attribute("top_groups")
    if allowed < groups:
        ranked = np.argsort(-scores.reshape(*scores.shape[:-1], groups, -1).max(axis=-1), axis=-1, kind="stable")
        group = np.arange(scores.shape[-1]) // (scores.shape[-1] // groups)
        open_groups = (ranked[..., :allowed, None] == group).any(axis=-2)
        scores = np.where(open_groups, scores, -np.inf)
    return np.argsort(-scores, axis=-1, kind="stable")[..., : call.sizes[call.outputs[0][-1]]]


def route_scored(call: Call, logits: Array, *bias: Array) -> tuple[Array, Array]:
    """All experts are scored, the best kept; the bias steers which, never how much."""
    values, _ = _logits(call, logits, call.inputs[0], call.outputs[0])
    scores = SCORES[call.operator.function][0](values)
    choice = _best(call, scores + bias[0] if bias else scores)
    return _weighed(call, np.take_along_axis(scores, choice, axis=-1)), choice


def _weighed(call: Call, kept: Array) -> Array:
    if call.attribute("renormalise"):
        kept = kept / kept.sum(axis=-1, keepdims=True)
    return kept


def route_gradient(call: Call, arriving: Array, logits: Array, choice: Array) -> tuple[Array]:
    """The adjoint of scoring, keeping and renormalising."""
    values, space = _logits(call, logits, call.inputs[1], call.inputs[0])
    score, back = SCORES[call.operator.function.removesuffix(".grad")]
    scores = score(values)
    dkept = arriving
    if call.attribute("renormalise"):
        kept = np.take_along_axis(scores, choice, axis=-1)
        total = kept.sum(axis=-1, keepdims=True)
        dkept = (dkept - (dkept * kept).sum(axis=-1, keepdims=True) / total) / total
    dscores = np.zeros_like(scores)
    np.put_along_axis(dscores, choice, dkept, axis=-1)
    return (align(back(scores, dscores), space, call.outputs[0]),)


def route_chosen(call: Call, logits: Array, *bias: Array) -> tuple[Array, Array]:
    """The best logits are kept and a softmax is taken over those alone."""
    values, _ = _logits(call, logits, call.inputs[0], call.outputs[0])
    choice = _best(call, values + bias[0] if bias else values)
    return _softmax(np.take_along_axis(values, choice, axis=-1)), choice


def route_chosen_gradient(call: Call, arriving: Array, logits: Array, choice: Array) -> tuple[Array]:
    values, space = _logits(call, logits, call.inputs[1], call.inputs[0])
    gates = _softmax(np.take_along_axis(values, choice, axis=-1))
    result = np.zeros_like(values)
    np.put_along_axis(result, choice, _softmax_back(gates, arriving), axis=-1)
    return (align(result, space, call.outputs[0]),)


def _rows(array: Array) -> Array:
    """Token dims made one."""
    return array.reshape(-1, array.shape[-1])


def _pairs(choice: Array) -> tuple[Array, Array]:
    """Expert and slot of each (token, choice)."""
    experts = _rows(choice)
    return experts, np.broadcast_to(np.arange(len(experts))[:, None], experts.shape)


def dispatch(call: Call, tokens: Array, choice: Array) -> tuple[Array]:
    """Each token into its slot of every expert it chose; all other slots stay zero."""
    result = np.zeros(call.shape(call.outputs[0]))
    experts, slots = _pairs(choice)
    result[experts, slots] = _rows(tokens)[:, None, :]
    return (result,)


def dispatch_gradient(call: Call, arriving: Array, choice: Array) -> tuple[Array]:
    experts, slots = _pairs(choice)
    return (arriving[experts, slots].sum(axis=1).reshape(call.shape(call.outputs[0])),)


def combine(call: Call, results: Array, gates: Array, choice: Array) -> tuple[Array]:
    """Σ over a token's experts of gate · result; padding is never looked at."""
    experts, slots = _pairs(choice)
    merged = (_rows(gates)[..., None] * results[experts, slots]).sum(axis=1)
    return (merged.reshape(call.shape(call.outputs[0])),)


def combine_results_gradient(call: Call, arriving: Array, gates: Array, choice: Array) -> tuple[Array]:
    result = np.zeros(call.shape(call.outputs[0]))
    experts, slots = _pairs(choice)
    result[experts, slots] = _rows(gates)[..., None] * _rows(arriving)[:, None, :]
    return (result,)


def combine_gates_gradient(call: Call, arriving: Array, results: Array, choice: Array) -> tuple[Array]:
    experts, slots = _pairs(choice)
    products = (results[experts, slots] * _rows(arriving)[:, None, :]).sum(axis=-1)
    return (products.reshape(call.shape(call.outputs[0])),)
