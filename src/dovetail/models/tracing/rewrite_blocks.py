"""Rewrites of whole blocks: attention written as products and a softmax, and the routing of tokens to experts."""

from __future__ import annotations

from typing import Any

from dovetail.models.tracing.flow import POINTWISE, VIEWS, Flow, Source
from dovetail.models.tracing.rewrite import fold_partial_rotary
from dovetail.models.tracing.trace import Node, Value

PRODUCTS = frozenset({"bmm", "baddbmm", "mm", "addmm", "linear"})
_BATCHED = ("bmm", "baddbmm")
#: What attention is where a function of PyTorch calls it, and not the module.
_LOWERED = frozenset({"_scaled_dot_product_flash_attention_for_cpu"})
_COMPARES = frozenset({"le", "ge", "lt", "gt"})


def rewrite_blocks(flow: Flow) -> None:
    """Attention first: what is left of softmaxes may be routing."""
    for node in flow.nodes:
        if node.target in _LOWERED:
            node.target = "scaled_dot_product_attention"
            query, key, value, _, causal = (*node.args, *(0.0, False)[len(node.args) - 3 :])[:5]
            node.args = (query, key, value, node.options.get("attn_mask"), 0.0, causal)
        if node.target == "scaled_dot_product_attention":
            _given_attention(flow, node)
    flow.update()
    for node in list(flow.nodes):
        if node.target in ("softmax", "_softmax", "_safe_softmax") and flow.is_alive(node):
            _fold_attention(flow, node)
    for node in list(flow.nodes):
        if node.target in ("attention", "indexer") and flow.is_alive(node):
            fold_partial_rotary(flow, node)
    for node in list(flow.nodes):
        if node.target == "experts":
            _fold_routing(flow, node)


def _given_attention(flow: Flow, node: Node) -> None:
    mask = node.arg(3, "attn_mask")
    seen = _seen(flow, node)
    if seen is None:
        causal = bool(node.arg(5, "is_causal", False)) or (isinstance(mask, Value) and _is_causal(flow, mask))
        seen = {"causal": causal}
    scale = node.arg(6, "scale")
    width = node.args[0].shape[-1]
    bias = mask if flow.is_data(mask) or (isinstance(mask, Value) and flow.of(mask) is Source.WEIGHT) else None
    node.target = "attention"
    node.args = node.args[:3]
    node.options = {"scale": scale or width**-0.5, "heads_first": True, "bias": bias, **seen}


def _seen(flow: Flow, node: Node) -> dict[str, Any] | None:
    """What a mask lets be seen, where its contents are known."""
    found = node.options.get("seen")
    if found is None:
        return None
    share = found.get("share")
    if share is not None:
        flow.note(f"a mask leaves {share:.0%} of the pairs of query and key, and all of them are counted")
    return {name: value for name, value in found.items() if name != "share"}


def _is_causal(flow: Flow, mask: Value) -> bool:
    """Whether a mask whose contents are not known is made by comparing positions, or kept with the module."""
    makers = flow.above(mask, lambda _: False)
    leaves = [mask, *(v for n in makers for v in n.inputs())]
    if any(v.name == "causal mask" for v in leaves) or any(map(_compares_positions, makers)):
        return True
    kept = any(v.kind == "buffer" and len(v.shape) > 1 and v.shape[-1] == v.shape[-2] for v in leaves)
    if kept:
        flow.note("a mask kept in a buffer without contents is taken to hide the future")
    return kept


def _compares_positions(node: Node) -> bool:
    """Whether a node makes a triangle, or compares what depends on nothing the model is given."""
    return node.target in ("tril", "triu")


def _fold_attention(flow: Flow, softmax: Node) -> None:
    up = _scores(flow, softmax)
    down = _weighted_sum(flow, softmax)
    if up is None or down is None:
        return
    scores, above, bias, facts = up
    last, below, values = down
    query, key = scores.args[1:3] if scores.target == "baddbmm" else scores.args[:2]
    options = {"scale": query.shape[-1] ** -0.5, "key_last": True, "heads_first": True, "bias": bias, **facts}
    node = Node("attention", (query, key, values), options, last.results, softmax.path, softmax.unit, softmax.after)
    flow.collapse(node, [scores, *above, softmax, *below, last])


def _scores(flow: Flow, softmax: Node) -> tuple[Node, list[Node], Any, dict[str, Any]] | None:
    """The product whose result is normalised, and what happens to it on the way."""
    above: list[Node] = []
    facts: dict[str, Any] = {"causal": False}
    bias: Value | None = None
    value = softmax.args[0]
    while (node := flow.maker.get(value.id)) is not None:
        if node.target in _BATCHED:
            if flow.sole_user(node.result) is None:
                return None
            if node.target == "baddbmm":
                seen = _seen(flow, node)
                facts |= {"causal": facts["causal"] or _is_causal(flow, node.args[0])} if seen is None else seen
            return node, above, bias, facts
        if node.target not in POINTWISE | VIEWS and node.target not in ("softcap",):
            return None
        data = flow.data(node)
        rest = [v for v in node.inputs() if v not in data]
        if (seen := _seen(flow, node)) is not None:
            facts |= seen
        elif node.target in ("masked_fill", "where", "add", "sub"):
            facts["causal"] = facts["causal"] or any(_is_causal(flow, v) for v in rest)
        if node.target in ("tanh", "softcap"):
            facts["softcap"] = 1.0
        towards = [v for v in data if _leads_to_product(flow, v)]
        if len(towards) != 1:
            return None
        others = [v for v in data if v not in towards]
        bias = others[0] if others else bias
        above.append(node)
        value = towards[0]
    return None


def _leads_to_product(flow: Flow, value: Value) -> bool:
    node = flow.maker.get(value.id)
    while node is not None and node.target in POINTWISE | VIEWS | {"softcap"}:
        data = flow.data(node)
        if not data:
            return False
        node = flow.maker.get(max(data, key=lambda v: len(v.shape)).id)
    return node is not None and node.target in _BATCHED


def _weighted_sum(flow: Flow, softmax: Node) -> tuple[Node, list[Node], Value] | None:
    below: list[Node] = []
    value = softmax.result
    while (node := flow.sole_user(value)) is not None:
        if node.target == "bmm" and node.args[0] == value:
            return node, below, node.args[1]
        if node.target not in POINTWISE | VIEWS | {"dropout", "native_dropout", "slice"} or len(flow.data(node)) > 1:
            return None
        below.append(node)
        value = node.result
    return None


def _fold_routing(flow: Flow, experts: Node) -> None:
    """Everything between the router's logits and what the experts are told."""
    _, choice, gates = experts.args
    logits = None
    inside: dict[int, Node] = {}
    for value in (choice, gates):
        for node in flow.above(value, lambda n: n.target in PRODUCTS):
            inside[id(node)] = node
    makers = [
        flow.maker[v.id] for n in inside.values() for v in n.inputs()
        if v.id in flow.maker and flow.maker[v.id].target in PRODUCTS and flow.is_data(v)
    ]  # fmt: skip
    for maker in makers:
        logits = maker.result
    if logits is None or len({id(m) for m in makers}) != 1:
        return
    nodes = [n for n in inside.values() if flow.data(n)]
    targets = [n.target for n in sorted(nodes, key=flow.nodes.index)]
    correction = next(
        (
            v
            for n in nodes
            if n.target == "add"
            for v in n.inputs()
            if not flow.is_data(v) and v.shape == logits.shape[-1:]
        ),
        None,
    )
    tops = [i for i, t in enumerate(targets) if t == "topk"]
    softmax = next((i for i, t in enumerate(targets) if t in ("softmax", "_softmax")), None)
    function = "sigmoid" if "sigmoid" in targets else str(experts.options.get("function", "softmax"))
    if softmax is not None and tops and softmax > tops[-1]:
        function = "top_k_softmax"
    group = next((n for n in nodes if n.target == "view" and n.result.shape[-2:-1] != n.args[0].shape[-2:-1]
                  and len(n.result.shape) == 3), None)  # fmt: skip
    groups = group.result.shape[1] if group is not None and len(tops) == 3 else 1
    chosen = [n for n in nodes if n.target == "topk"]
    chosen.sort(key=flow.nodes.index)
    top_groups = chosen[1].results[0].shape[-1] if groups > 1 else 1
    scales = next(
        (n.args[0] for n in nodes if n.target in ("index", "embedding") and flow.of(n.args[0]) is Source.WEIGHT), None
    )
    options = {
        "scales": scales, "function": function, "renormalise": "div" in targets, "groups": groups,
        "top_groups": top_groups,
        "correction": correction,
    }  # fmt: skip
    path, unit = experts.path, experts.unit
    node = Node("routing", (logits,), options, (gates, choice), path, unit, experts.after)
    # a choice looked up by the token, not by its score, is made by the router all the same
    flow.collapse(node, [*nodes, *(flow.maker[v.id] for v in (choice,) if flow.maker[v.id] not in nodes)])
