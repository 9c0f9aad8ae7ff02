"""The indexer of a sparse attention: scores of every key and the choice of the best, as one node."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
from __future__ import annotations

from math import prod

from dovetail.models.tracing.flow import POINTWISE, VIEWS, Flow
from dovetail.models.tracing.trace import Node, Value

_PRODUCTS = frozenset({"bmm", "baddbmm"})


def fold_indexers(flow: Flow) -> None:
    """Σ_heads w · relu(q · k) and its top-k, which choose the keys of an attention, become its indexer."""
    for node in list(flow.nodes):
        choice = node.options.get("choice") if node.target == "attention" else None
        if not isinstance(choice, Value):
            continue
        maker = flow.maker.get(choice.id)
        if maker is not None and (maker.target == "indexer" or _folded(flow, maker, causal=node.options["causal"])):
            continue
        node.options = {**node.options, "choice": None}
        flow.note("what chooses the keys of a sparse attention")
    flow.update()


def _folded(flow: Flow, topk: Node, *, causal: bool) -> bool:
    """Puts an indexer in the place of what scores and chooses; False where that is written in another way."""
    inside, weights, rectified = [topk], None, False
    value: Value = topk.args[0]
    while (node := flow.maker.get(value.id)) is not None:
        if node.target in _PRODUCTS and rectified:
            break
        data = sorted(flow.data(node), key=lambda v: prod(v.shape))
        if not data or node.target not in POINTWISE | VIEWS | _PRODUCTS | {"sum"}:
            return False
        inside.append(node)
        rectified = rectified or node.target == "relu"
        value = data[-1]
        if len(data) > 1:
            weights = _source(flow, data[0])
    if node is None or len(node.args[0].shape) != 3:
        return False
    query, keys = node.args[0], _source(flow, node.args[1])
    if keys.shape[-1] != query.shape[-1]:
        return False
    given = (query, keys) if weights is None else (query, keys, weights)
    options = {"causal": causal, "of": topk.args[0].shape[-1]}
    made = Node("indexer", given, options, topk.results[1:], topk.path, topk.unit, topk.after)
    flow.collapse(made, [node, *inside])
    return True


def _source(flow: Flow, value: Value) -> Value:
    """The value that this one is a reading of."""
    while (node := flow.maker.get(value.id)) is not None and node.target in VIEWS:
        value = node.args[0]
    return value
