"""Attention operators: fused softmax attention over any mask, and the indexer of sparse attention."""

from __future__ import annotations

from dovetail.graph.builder import LayerBuilder, Reference
from dovetail.graph.mask import Mask
from dovetail.graph.operator import Exchange, Kind, Operand, Operator, matrix_work, union, vector_work
from dovetail.graph.tensor import Element, Role


def attention(
    builder: LayerBuilder,
    name: str,
    operands: tuple[Reference, Reference, Reference],
    mask: Mask,
    *,
    scale: float,
    sinks: Reference | None = None,
    choice: Reference | None = None,
) -> str:
    """Fused attention of queries, keys and values: scores stay on chip; saves Q, K, V, O and the log-sum-exp.

    Dao et al. 2022 (FlashAttention), algorithms 1 and 4. Keys and values are indexed by `mask.key`; `choice` are the
    keys a sparse attention selected, `sinks` a learned logit per head.
    """
    q, k, v = (builder.use(operand) for operand in operands)
    head_dim, value_dim = q.indices[-1], v.indices[-1]
    rows = q.indices[:-1]
    out = (*rows, value_dim)
    lse = builder.tensor(f"{name}.lse", rows, Role.STATISTIC, Element.FLOAT32)
    builder.tensor(name, out)
    extras = tuple(builder.use(r) for r in (sinks, choice) if r is not None)
    pairs = (*rows, mask.key)
    saved = union([(q.tensor, k.tensor, v.tensor), (o.tensor for o in extras), (name, lse)])
    return builder.append(
        Operator(
            name,
            Kind.ATTENTION,
            "softmax",
            (q, k, v, *extras),
            (Operand(name, out), Operand(lse, rows)),
            work=(*matrix_work((*pairs, head_dim), (*pairs, value_dim)), *vector_work(pairs, 5)),
            saves=tuple(n for n in saved if builder.tensors[n].role not in (Role.WEIGHT, Role.CONSTANT)),
            # keys split: outputs are merged by maximum and sum of exponentials; the sink counts on one shard alone
            exchanges=(Exchange(mask.key, out), Exchange(mask.key, rows, 2)),
            # a split head_dim would leave partial scores before the softmax; a split value_dim would leave every
            # shard the whole log-sum-exp, split choices each a softmax of their own
            indivisible=union([(head_dim, value_dim), () if choice is None else extras[-1].indices[-1:]]),
            mask=mask,
            attributes={"scale": scale, "sinks": sinks is not None, "sparse": choice is not None},
        )
    )


def indexer(
    builder: LayerBuilder,
    name: str,
    query: Reference,
    key: Reference,
    weights: Reference | None,
    mask: Mask,
    selected: str,
) -> str:
    """Scores every key cheaply and names the best ones for each query; no gradient passes.

    DeepSeek-V3.2 technical report, eq. 1: Σ_heads w · relu(q · k), then top-k.
    """
    q, k = builder.use(query), builder.use(key)
    rows = q.indices[:-1]
    batch_seq = tuple(d for d in rows if d == mask.query or d in k.indices)
    out = (*batch_seq, selected)
    (heads,) = (d for d in rows if d not in batch_seq)
    builder.tensor(name, out, Role.INDEX, Element.INT64)
    pairs = (*rows, mask.key)
    return builder.append(
        Operator(
            name,
            Kind.INDEXER,
            "relu_top_k",
            (q, k, *(() if weights is None else (builder.use(weights),))),
            (Operand(name, out),),
            work=(*matrix_work((*pairs, q.indices[-1])), *vector_work(pairs, 3)),
            exchanges=(Exchange(mask.key, out, 2), Exchange(heads, (*batch_seq, mask.key))),
            # a split index_dim would leave partial scores before the relu
            indivisible=(selected, q.indices[-1]),
            mask=mask,
        )
    )
