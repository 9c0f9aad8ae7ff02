"""Shards that choose together: the best experts of a token, the best keys of a query."""

from __future__ import annotations

import numpy as np
from interpreter_call import Array, Dims, align, contract
from interpreter_elementwise import sigmoid
from split_cut import Bound, Cut, added, localised, visible_part
from split_statistics import Exchanged


def routing(cut: Cut) -> Exchanged:
    """Told: softmax's normaliser, the best of each group, then candidates: number, rank and, if biased, score."""
    out = cut.operator.outputs[0].indices
    parts = [cut.parts(bound) for bound in cut.bounds]
    scores, told = _scores(cut, [logits for logits, *_ in parts], cut.operator.inputs[0].indices, out)
    ranks = [s + bias[0] if bias else s for s, (_, *bias) in zip(scores, parts, strict=True)]
    if cut.attribute("top_groups") < cut.attribute("groups"):
        ranks, best = _in_open_groups(cut, ranks)
        told += best.size
    count = cut.sizes[out[-1]]
    choice, kept = _merged(cut, ranks, scores, count)
    if cut.operator.function == "top_k_softmax":
        gates = np.exp(kept) / np.exp(kept).sum(axis=-1, keepdims=True)
    else:
        gates = kept / kept.sum(axis=-1, keepdims=True) if cut.attribute("renormalise") else kept
    return [(gates, choice)] * len(parts), told + choice.size * (3 if len(parts[0]) > 1 else 2)


def _scores(cut: Cut, logits: list[Array], dims: Dims, gates: Dims) -> tuple[list[Array], int]:
    """Scores of each shard's experts, experts last, and how many numbers that took."""
    values = [align(x, dims, (*gates[:-1], cut.along)) for x in logits]
    match cut.operator.function.removesuffix(".grad"):
        case "softmax":
            whole = np.logaddexp(*(np.logaddexp.reduce(v, axis=-1, keepdims=True) for v in values))
            return [np.exp(v - whole) for v in values], 2 * whole.size
        case "sigmoid":
            return [sigmoid(v) for v in values], 0
        case _:
            return values, 0


def _in_open_groups(cut: Cut, ranks: list[Array]) -> tuple[list[Array], Array]:
    """Ranks, minus infinity outside the groups whose best expert, wherever it is held, is among the best."""
    groups, allowed = cut.attribute("groups"), cut.attribute("top_groups")
    group = np.arange(cut.sizes[cut.along]) // (cut.sizes[cut.along] // groups)
    members = [group[slice(*bound)] == np.arange(groups)[:, None] for bound in cut.bounds]
    told = [np.where(m, r[..., None, :], -np.inf).max(axis=-1) for m, r in zip(members, ranks, strict=True)]
    best = np.maximum(*told)
    opened = np.argsort(-best, axis=-1, kind="stable")[..., :allowed]
    seen = [(opened[..., None] == group[slice(*bound)]).any(axis=-2) for bound in cut.bounds]
    return [np.where(s, r, -np.inf) for s, r in zip(seen, ranks, strict=True)], best


def _merged(cut: Cut, ranks: list[Array], scores: list[Array], count: int) -> tuple[Array, Array]:
    """The best of each shard's best, and their scores."""
    local = [np.argsort(-r, axis=-1, kind="stable")[..., :count] for r in ranks]
    number = np.concatenate([c + bound[0] for c, bound in zip(local, cut.bounds, strict=True)], axis=-1)
    rank, score = (
        np.concatenate([np.take_along_axis(v, c, axis=-1) for v, c in zip(values, local, strict=True)], axis=-1)
        for values in (ranks, scores)
    )
    best = np.argsort(-rank, axis=-1, kind="stable")[..., :count]
    return np.take_along_axis(number, best, axis=-1), np.take_along_axis(score, best, axis=-1)


def routing_gradient(cut: Cut) -> Exchanged:
    """Told: softmax's normaliser, and the scores of the chosen experts by who holds them."""
    gates, dims, _ = (o.indices for o in cut.operator.inputs)
    arriving, _, choice = cut.arrays
    function = cut.operator.function.removesuffix(".grad")
    scores, told = _scores(cut, [cut.parts(bound)[1] for bound in cut.bounds], dims, gates)
    kept = added(_held(s, choice, bound) for s, bound in zip(scores, cut.bounds, strict=True))
    slope = arriving
    if function == "top_k_softmax":
        weights = np.exp(kept) / np.exp(kept).sum(axis=-1, keepdims=True)
        slope = weights * (arriving - (arriving * weights).sum(axis=-1, keepdims=True))
    elif cut.attribute("renormalise"):
        total = kept.sum(axis=-1, keepdims=True)
        slope = (arriving - (arriving * kept).sum(axis=-1, keepdims=True) / total) / total
    shards: list[tuple[Array]] = []
    for own, bound in zip(scores, cut.bounds, strict=True):
        result = np.zeros((*own.shape[:-1], own.shape[-1] + 1))
        np.put_along_axis(result, localised(choice, bound, own.shape[-1]), slope, axis=-1)
        result = result[..., :-1]
        if function == "softmax":
            result = own * (result - (slope * kept).sum(axis=-1, keepdims=True))
        elif function == "sigmoid":
            result = own * (1 - own) * result
        shards.append((align(result, (*gates[:-1], cut.along), dims),))
    return shards, told + kept.size


def _held(scores: Array, choice: Array, bound: Bound) -> Array:
    """Scores of the chosen, zero for those another shard holds."""
    padded = np.concatenate([scores, np.zeros_like(scores[..., :1])], axis=-1)
    return np.take_along_axis(padded, localised(choice, bound, scores.shape[-1]), axis=-1)


def indexer(cut: Cut) -> Exchanged:
    """Told: candidates and their scores where keys are split, all scores where heads are."""
    mask, (out,) = cut.operator.mask, (o.indices for o in cut.operator.outputs)
    assert mask is not None
    scores = [_index_scores(cut, bound) for bound in cut.bounds]
    count = cut.sizes[out[-1]]
    if cut.along == mask.key:
        choice, _ = _merged(cut, scores, scores, count)
        return [(choice,)] * len(scores), 2 * choice.size
    choice = np.argsort(-added(scores), axis=-1, kind="stable")[..., :count]
    return [(choice,)] * len(scores), scores[0].size


def _index_scores(cut: Cut, bound: Bound) -> Array:
    """Σ_heads w · relu(q · k) over a shard's heads and keys, minus infinity outside the mask."""
    mask, (out,) = cut.operator.mask, (o.indices for o in cut.operator.outputs)
    assert mask is not None
    q, k, *weights = (*cut.parts(bound), np.ones(()))
    dims = (*(o.indices for o in cut.operator.inputs), ())
    pairs, rows = (*dims[0][:-1], mask.key), (*out[:-1], mask.key)
    heads = np.maximum(contract(q, dims[0], k, dims[1], pairs), 0)
    scores = contract(heads, pairs, weights[0], dims[2], rows)
    return np.where(align(visible_part(cut, mask, bound), (mask.query, mask.key), rows), scores, -np.inf)
