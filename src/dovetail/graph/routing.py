"""Mixture-of-experts operators: route, dispatch, combine."""

from __future__ import annotations

from dovetail.frozen import frozen
from dovetail.graph.builder import LayerBuilder, Reference
from dovetail.graph.operator import Exchange, Kind, Operand, Operator, vector_work
from dovetail.graph.tensor import Element, Role

#: Tokens an expert receives on average; its size follows from batch, seq, top_k and experts.
EXPERT_TOKENS = "expert_tokens"
TOP_K = "top_k"


@frozen
class ExpertGroups:
    """Groups of experts (nodes), of which a token may use the best few.

    DeepSeek-V3 report, section 2.1.2: the choice stays a top-k, but its traffic is bounded.
    """

    number: int = 1
    top: int = 1


ONE_GROUP = ExpertGroups()


def routing(
    builder: LayerBuilder,
    name: str,
    function: str,
    logits: Reference,
    experts: str,
    *,
    bias: Reference | None = None,
    renormalise: bool,
    groups: ExpertGroups = ONE_GROUP,
) -> tuple[str, str]:
    """Gate values and chosen experts per token; the bias affects the choice but not the gate.

    Functions: `softmax` and `sigmoid` score all experts and take the top_k; `top_k_softmax` scores only the chosen.
    """
    source = builder.use(logits)
    tokens = tuple(d for d in source.indices if d != experts)
    out = (*tokens, TOP_K)
    # experts sharded: shards exchange their best ones (number, rank and, where a bias changes it, score) ...
    exchanges = [Exchange(experts, out, 2 if bias is None else 3)]
    # ... and before that the maximum and sum of a softmax, and the best of each group
    before = (2 if function == "softmax" else 0) + (groups.number if groups.top < groups.number else 0)
    exchanges += [Exchange(experts, tokens, before)] if before else []
    gates = builder.tensor(name, out)
    choice = builder.tensor(f"{name}.choice", out, Role.INDEX, Element.INT64)
    builder.append(
        Operator(
            name,
            Kind.ROUTING,
            function,
            (source, *(() if bias is None else (builder.use(bias),))),
            (Operand(gates, out), Operand(choice, out)),
            work=vector_work(source.indices, 8),
            saves=(source.tensor, choice),
            exchanges=tuple(exchanges),
            indivisible=(TOP_K,),
            attributes={"renormalise": renormalise, "groups": groups.number, "top_groups": groups.top},
        )
    )
    return gates, choice


def dispatch(builder: LayerBuilder, name: str, tokens: Reference, choice: Reference, experts: str) -> str:
    """Copies each token to the experts it chose, grouped by expert."""
    x, c = builder.use(tokens), builder.use(choice)
    out = (experts, EXPERT_TOKENS, x.indices[-1])
    builder.tensor(name, out)
    return builder.append(
        Operator(
            name,
            Kind.DISPATCH,
            "gather",
            (x, c),
            (Operand(name, out),),
            saves=(c.tensor,),
            indivisible=(TOP_K,),
            regroups=tuple((d, EXPERT_TOKENS) for d in c.indices[:-1]),
        )
    )


def combine(
    builder: LayerBuilder,
    name: str,
    results: Reference,
    gates: Reference,
    choice: Reference,
    dims: tuple[str, ...],
) -> str:
    """Sums the results of a token's experts, each times its gate value."""
    y, g, c = builder.use(results), builder.use(gates), builder.use(choice)
    builder.tensor(name, dims)
    return builder.append(
        Operator(
            name,
            Kind.COMBINE,
            "weighted_sum",
            (y, g, c),
            (Operand(name, dims),),
            work=vector_work((*g.indices, dims[-1]), 2),
            saves=(y.tensor, g.tensor, c.tensor),
            indivisible=(TOP_K,),
            regroups=tuple((d, EXPERT_TOKENS) for d in g.indices[:-1]),
        )
    )
