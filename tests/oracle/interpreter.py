"""Runs a layer graph, forward or backward, in numpy: operators, operands and attributes, nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import interpreter_attention as attention
import interpreter_elementwise as elementwise
import interpreter_mixture as mixture
import interpreter_scan as scan
import numpy as np
from interpreter_call import Array, Call, Dims, Rule, align, contract, only

from dovetail.graph import Kind, LayerGraph
from dovetail.graph.routing import EXPERT_TOKENS


def run_sizes(graph: LayerGraph, batch: int, seq: int) -> dict[str, int]:
    """Every dim's size; an expert has a slot for every token, since any could choose it."""
    sizes = {dim: int(str(size)) for dim, size in graph.resolve(batch=batch, seq=seq).items() if dim != EXPERT_TOKENS}
    return sizes | {EXPERT_TOKENS: batch * seq}


def execute(graph: LayerGraph, given: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    """Every tensor of the graph, from its inputs, weights and constants."""
    values = dict(given)
    for operator in graph.operators:
        call = Call(operator, sizes)
        results = rule_of(operator.kind, operator.function)(call, *(values[o.tensor] for o in operator.inputs))
        for operand, result in zip(operator.outputs, results, strict=True):
            assert result.shape == call.shape(operand.indices), f"{operator.name}: {operand} has {result.shape}"
            values[operand.tensor] = result
    return values


def rule_of(kind: Kind, function: str) -> Rule:
    """The rule of a function."""
    return RULES[rule_key(kind, function)]


def rule_key(kind: Kind, function: str) -> tuple[Kind, str]:
    """Where its rule stands; `.grad0`, `.grad1`, ... may share one."""
    return (kind, function) if (kind, function) in RULES else (kind, function.rstrip("0123456789"))


def einsum(call: Call, left: Array, right: Array) -> tuple[Array]:
    """Multiplies and sums; pairs outside the mask are neither read nor written."""
    a, b = (attention.masked(call, x, d) for x, d in zip((left, right), call.inputs, strict=True))
    return (attention.masked(call, contract(a, call.inputs[0], b, call.inputs[1], call.outputs[0]), call.outputs[0]),)


def rms(call: Call, x: Array, *weights: Array) -> tuple[Array, Array]:
    dims, axes = _over(call, call.inputs[0], call.outputs[1])
    scale = 1 / np.sqrt((x * x).mean(axis=axes) + call.attribute("epsilon"))
    return _affine(call, x * align(scale, call.outputs[1], dims), weights), scale


def layer_norm(call: Call, x: Array, *weights: Array) -> tuple[Array, Array, Array]:
    dims, axes = _over(call, call.inputs[0], call.outputs[1])
    mean = x.mean(axis=axes)
    centred = x - align(mean, call.outputs[2], dims)
    scale = 1 / np.sqrt((centred * centred).mean(axis=axes) + call.attribute("epsilon"))
    return _affine(call, centred * align(scale, call.outputs[1], dims), weights), scale, mean


def _over(call: Call, dims: Dims, statistic: Dims) -> tuple[Dims, tuple[int, ...]]:
    """The dims normalised over are those the statistics lack."""
    return dims, tuple(i for i, d in enumerate(dims) if d not in statistic)


def _affine(call: Call, x: Array, weights: tuple[Array, ...]) -> Array:
    dims = call.inputs[0]
    aligned = [align(w, d, dims) for w, d in zip(weights, call.inputs[1:], strict=True)]
    return x * (aligned[0] if aligned else 1.0) + (aligned[1] if len(aligned) > 1 else 0.0)


def _normalised(call: Call, x: Array, scale: Array, mean: tuple[Array, ...]) -> Array:
    dims = call.inputs[1]
    centred = x - align(mean[0], call.inputs[3], dims) if mean else x
    return centred * align(scale, call.inputs[2], dims)


def rms_gradient(call: Call, arriving: Array, x: Array, scale: Array, *weight: Array) -> tuple[Array]:
    dims, axes = _over(call, call.inputs[1], call.inputs[2])
    unit = _normalised(call, x, scale, ())
    dunit = arriving * align(weight[0], call.inputs[3], dims) if weight else arriving
    inner = dunit - unit * (dunit * unit).mean(axis=axes, keepdims=True)
    return (align(scale, call.inputs[2], dims) * inner,)


def layer_norm_gradient(
    call: Call, arriving: Array, x: Array, scale: Array, mean: Array, *weight: Array
) -> tuple[Array]:
    dims, axes = _over(call, call.inputs[1], call.inputs[2])
    unit = _normalised(call, x, scale, (mean,))
    dunit = arriving * align(weight[0], call.inputs[4], dims) if weight else arriving
    inner = dunit - dunit.mean(axis=axes, keepdims=True) - unit * (dunit * unit).mean(axis=axes, keepdims=True)
    return (align(scale, call.inputs[2], dims) * inner,)


def norm_weight_gradient(call: Call, arriving: Array, x: Array, scale: Array, *mean: Array) -> tuple[Array]:
    return (call.gather(arriving * _normalised(call, x, scale, mean), call.inputs[1], call.outputs[0]),)


def norm_bias_gradient(call: Call, arriving: Array) -> tuple[Array]:
    return (call.gather(arriving, call.inputs[0], call.outputs[0]),)


def lookup(call: Call, ids: Array, table: Array) -> tuple[Array]:
    row = only(call.inputs[1], call.outputs[0])
    rest = tuple(d for d in call.inputs[1] if d != row)
    found = align(table, call.inputs[1], (row, *rest))[ids]
    return (align(found, (*call.inputs[0], *rest), call.outputs[0]),)


def lookup_gradient(call: Call, arriving: Array, ids: Array) -> tuple[Array]:
    (target,) = call.outputs
    row = only(target, call.inputs[0])
    rest = tuple(d for d in target if d != row)
    table = np.zeros(call.shape((row, *rest)))
    np.add.at(table, ids, align(arriving, call.inputs[0], (*call.inputs[1], *rest)))
    return (align(table, (row, *rest), target),)


def concatenate(call: Call, *arrays: Array) -> tuple[Array]:
    """Joins the dims of the inputs that the output lacks into the one the inputs lack."""
    (out,) = call.outputs
    along = only(out, tuple(d for dims in call.inputs for d in dims))
    parts: list[Array] = []
    for array, dims in zip(arrays, call.inputs, strict=True):
        own = only(dims, out)
        space = tuple(own if d == along else d for d in out)
        parts.append(call.spread(array, dims, space))
    return (np.concatenate(parts, axis=out.index(along)),)


def concatenate_gradient(call: Call, arriving: Array) -> tuple[Array]:
    """The part of the first input starts the joined dim, that of any other is taken to end it."""
    (dims,), (target,) = call.inputs, call.outputs
    own = only(target, dims)
    along = next(d for d in dims if d not in target and d in call.operator.indivisible)
    axis, length = dims.index(along), call.sizes[own]
    start = 0 if call.position == 0 else call.sizes[along] - length
    part = np.take(arriving, range(start, start + length), axis=axis)
    return (call.gather(part, tuple(own if d == along else d for d in dims), target),)


def cut(call: Call, x: Array) -> tuple[Array]:
    """A slice keeps the first elements of the dim it shortens."""
    (dims,), (out,) = call.inputs, call.outputs
    along, kept = only(dims, out), only(out, dims)
    part = np.take(x, range(call.sizes[kept]), axis=dims.index(along))
    return (align(part, tuple(kept if d == along else d for d in dims), out),)


def cut_gradient(call: Call, arriving: Array) -> tuple[Array]:
    (dims,), (target,) = call.inputs, call.outputs
    along, kept = only(target, dims), only(dims, target)
    result = np.zeros(call.shape(target))
    moved = align(arriving, dims, tuple(kept if d == along else d for d in target))
    np.moveaxis(result, target.index(along), 0)[: call.sizes[kept]] = np.moveaxis(moved, target.index(along), 0)
    return (result,)


def cross_entropy(call: Call, logits: Array, labels: Array) -> tuple[Array, Array]:
    """Mean over tokens of -log p(label); and the probabilities."""
    dims, tokens = call.inputs
    space = (*tokens, only(dims, tokens))
    x = align(logits, dims, space)
    shifted = x - x.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    loss = -np.take_along_axis(logs, labels[..., None], axis=-1).mean()
    return np.asarray(loss), align(np.exp(logs), space, call.outputs[1])


def cross_entropy_gradient(call: Call, arriving: Array, probabilities: Array, labels: Array) -> tuple[Array]:
    _, dims, tokens = call.inputs
    space = (*tokens, only(dims, tokens))
    result = align(probabilities, dims, space).copy()
    picked = np.take_along_axis(result, labels[..., None], axis=-1)
    np.put_along_axis(result, labels[..., None], picked - 1, axis=-1)
    return (align(arriving * result / labels.size, space, call.outputs[0]),)


RULES: Mapping[tuple[Kind, str], Rule] = {
    **{(Kind.ELEMENTWISE, name): rule for name, rule in elementwise.RULES.items()},
    (Kind.CONTRACTION, "einsum"): einsum,
    (Kind.CONTRACTION, "einsum.grad"): einsum,
    (Kind.NORMALISATION, "rms"): rms,
    (Kind.NORMALISATION, "rms.grad0"): rms_gradient,
    (Kind.NORMALISATION, "rms.grad1"): norm_weight_gradient,
    (Kind.NORMALISATION, "rms.grad2"): norm_bias_gradient,
    (Kind.NORMALISATION, "layer"): layer_norm,
    (Kind.NORMALISATION, "layer.grad0"): layer_norm_gradient,
    (Kind.NORMALISATION, "layer.grad1"): norm_weight_gradient,
    (Kind.NORMALISATION, "layer.grad2"): norm_bias_gradient,
    (Kind.SOFTMAX, "softmax"): attention.softmax,
    (Kind.SOFTMAX, "softmax.grad0"): attention.softmax_gradient,
    (Kind.ATTENTION, "softmax"): attention.attention,
    (Kind.ATTENTION, "softmax.grad"): attention.attention_gradient,
    (Kind.INDEXER, "relu_top_k"): attention.index_top_k,
    (Kind.LINEAR_ATTENTION, "gated_delta"): scan.gated_delta,
    (Kind.LINEAR_ATTENTION, "gated_delta.grad"): scan.gated_delta_gradient,
    (Kind.LINEAR_ATTENTION, "decay"): scan.decay,
    (Kind.LINEAR_ATTENTION, "decay.grad"): scan.decay_gradient,
    (Kind.STATE_SPACE, "ssd"): scan.ssd,
    (Kind.STATE_SPACE, "ssd.grad"): scan.ssd_gradient,
    (Kind.CONVOLUTION, "causal"): scan.convolution,
    (Kind.CONVOLUTION, "causal.grad0"): scan.convolution_input_gradient,
    (Kind.CONVOLUTION, "causal.grad1"): scan.convolution_weight_gradient,
    (Kind.EMBEDDING, "lookup"): lookup,
    (Kind.EMBEDDING, "lookup.grad"): lookup_gradient,
    (Kind.ROUTING, "softmax"): mixture.route_scored,
    (Kind.ROUTING, "softmax.grad"): mixture.route_gradient,
    (Kind.ROUTING, "sigmoid"): mixture.route_scored,
    (Kind.ROUTING, "sigmoid.grad"): mixture.route_gradient,
    (Kind.ROUTING, "top_k_softmax"): mixture.route_chosen,
    (Kind.ROUTING, "top_k_softmax.grad"): mixture.route_chosen_gradient,
    (Kind.DISPATCH, "gather"): mixture.dispatch,
    (Kind.DISPATCH, "gather.grad"): mixture.dispatch_gradient,
    (Kind.COMBINE, "weighted_sum"): mixture.combine,
    (Kind.COMBINE, "weighted_sum.grad0"): mixture.combine_results_gradient,
    (Kind.COMBINE, "weighted_sum.grad1"): mixture.combine_gates_gradient,
    (Kind.MOVEMENT, "concatenate"): concatenate,
    (Kind.MOVEMENT, "concatenate.grad"): concatenate_gradient,
    (Kind.MOVEMENT, "slice"): cut,
    (Kind.MOVEMENT, "slice.grad"): cut_gradient,
    (Kind.LOSS, "cross_entropy"): cross_entropy,
    (Kind.LOSS, "cross_entropy.grad"): cross_entropy_gradient,
}
