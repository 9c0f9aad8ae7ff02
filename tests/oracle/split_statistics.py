"""Shards that tell each other statistics: softmax, attention over keys, norms, the loss over the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from interpreter_call import Array, Call, align
from split_cut import Cut, Outputs, added, localised, rule, run

#: What each shard ends up with, and how many numbers one shard tells the others.
Exchanged = tuple[Sequence[Outputs], int]


def _log_sum(scores: Array, probabilities: Array, axis: int) -> Array:
    """The log-sum-exp behind a softmax, read off its largest output; minus infinity where all was masked."""
    best = probabilities.argmax(axis=axis, keepdims=True)
    largest = np.take_along_axis(probabilities, best, axis=axis)
    with np.errstate(divide="ignore"):
        found = np.take_along_axis(scores, best, axis=axis) - np.log(largest)
    return np.where(largest > 0, found, -np.inf)


def softmax(cut: Cut) -> Exchanged:
    """Told: maximum and sum of exponentials, here as their log-sum-exp."""
    axis, scale = cut.operator.inputs[0].indices.index(cut.along), cut.attribute("scale")
    with np.errstate(invalid="ignore"):  # rows that see none of a shard's keys
        found = [np.nan_to_num(run(cut, bound)[0]) for bound in cut.bounds]
    scores = [scale * cut.parts(bound)[0] for bound in cut.bounds]
    sums = [_log_sum(x, y, axis) for x, y in zip(scores, found, strict=True)]
    whole = np.logaddexp(*sums)
    return [(y * np.exp(own - whole),) for y, own in zip(found, sums, strict=True)], 2 * whole.size


def softmax_gradient(cut: Cut) -> Exchanged:
    """Told: Σ gradient · probability."""
    axis, scale = cut.operator.inputs[0].indices.index(cut.along), cut.attribute("scale")
    parts = [cut.parts(bound) for bound in cut.bounds]
    inner = [(arriving * y).sum(axis=axis, keepdims=True) for arriving, y in parts]
    return [
        (run(cut, bound)[0] + scale * y * (own - added(inner)),)
        for bound, (_, y), own in zip(cut.bounds, parts, inner, strict=True)
    ], inner[0].size


def attention(cut: Cut) -> Exchanged:
    """Told: the output over own keys, and maximum and sum of exponentials, here as their log-sum-exp."""
    found: list[tuple[Array, Array]] = []
    rows = cut.operator.outputs[1].indices
    for bound in cut.bounds:
        with np.errstate(invalid="ignore"):  # queries that see none of a shard's keys: at most the sink
            out, lse = run(cut, bound)
        unseen = np.array(-np.inf)
        if cut.attribute("sinks") and bound[0] == 0:
            unseen = Call(cut.operator, cut.sizes).spread(cut.arrays[3], cut.operator.inputs[3].indices, rows)
        found.append((np.nan_to_num(out), np.where(np.isnan(lse), unseen, lse)))
    whole = np.logaddexp(*(lse for _, lse in found))
    out = added(out * np.exp(lse - whole)[..., None] for out, lse in found)
    return [(out, whole)] * len(found), out.size + 2 * whole.size


def normalisation(cut: Cut) -> Exchanged:
    """Told: mean of squares, and of the values where they are centred."""
    epsilon, dims = cut.attribute("epsilon"), cut.operator.inputs[0].indices
    rest = cut.operator.outputs[1].indices
    found = [run(cut, bound) for bound in cut.bounds]
    shares = [cut.share(bound) for bound in cut.bounds]
    scales = [scale for _, scale, *_ in found]
    means = [mean[0] if mean else np.zeros_like(scale) for _, scale, *mean in found]
    squares = [1 / scale**2 - epsilon + mean**2 for scale, mean in zip(scales, means, strict=True)]
    mean = added(share * m for share, m in zip(shares, means, strict=True))
    scale = 1 / np.sqrt(added(share * s for share, s in zip(shares, squares, strict=True)) - mean**2 + epsilon)
    shards: list[Outputs] = []
    for bound, shard, own, level in zip(cut.bounds, found, scales, means, strict=True):
        x, *weights = cut.parts(bound)
        weight = align(weights[0], cut.operator.inputs[1].indices, dims) if weights else 1.0
        local = (x - align(level, rest, dims)) * align(own, rest, dims)
        unit = (x - align(mean, rest, dims)) * align(scale, rest, dims)
        shards.append((shard[0] + (unit - local) * weight, scale, mean)[: len(shard)])
    return shards, (len(found[0]) - 1) * scale.size


def normalisation_gradient(cut: Cut) -> Exchanged:
    """Told: mean of gradient · normalised value, and of the gradient where values are centred."""
    inputs = cut.operator.inputs
    dims, rest = inputs[1].indices, inputs[2].indices
    axes = tuple(i for i, d in enumerate(dims) if d not in rest)
    centred = cut.operator.function.startswith("layer")
    terms: list[tuple[Array, Array, Array, Array]] = []
    for bound in cut.bounds:
        arriving, x, scale, *others = cut.parts(bound)
        mean = align(others.pop(0), rest, dims) if centred else 0.0
        gradient = arriving * align(others[0], inputs[-1].indices, dims) if others else arriving
        unit = (x - mean) * align(scale, rest, dims)
        along = (gradient * unit).mean(axis=axes, keepdims=True)
        terms.append((align(scale, rest, dims), unit, along, centred * gradient.mean(axis=axes, keepdims=True)))
    shares = [cut.share(bound) for bound in cut.bounds]
    along, level = (added(s * t[i] for s, t in zip(shares, terms, strict=True)) for i in (2, 3))
    return [
        (run(cut, bound)[0] + scale * (unit * (own - along) + own_level - level),)
        for bound, (scale, unit, own, own_level) in zip(cut.bounds, terms, strict=True)
    ], (1 + centred) * along.size


def loss(cut: Cut) -> Exchanged:
    """Told: maximum and sum of exponentials, here as their log-sum-exp, and the label's logit by who holds it."""
    (dims, tokens), labels = (o.indices for o in cut.operator.inputs), cut.arrays[1]
    axis = dims.index(cut.along)
    found: list[tuple[Array, Array]] = []
    label = np.zeros(())
    for bound in cut.bounds:
        logits, _ = cut.parts(bound)
        length = bound[1] - bound[0]
        _, probabilities = rule(cut.operator)(cut.call(length), logits, localised(labels, bound, 0))
        found.append((probabilities, _log_sum(logits, probabilities, axis)))
        own = align(localised(labels, bound, length), tokens, dims)
        padded = np.concatenate([logits, np.zeros_like(np.take(logits, [0], axis=axis))], axis=axis)
        label = label + np.take_along_axis(padded, own, axis=axis)
    whole = np.logaddexp(*(own for _, own in found))
    mean = np.asarray((whole - label).mean())
    return [(mean, p * np.exp(own - whole)) for p, own in found], 3 * whole.size
