"""Rewrites of experts that a module runs one by one in a loop, or all on all tokens, as one operator."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from dovetail.models.tracing.flow import VIEWS, Flow, Source
from dovetail.models.tracing.trace import Node, Value

_PRODUCTS = ("linear", "mm", "addmm", "bmm")
_SPREADS = VIEWS | {"repeat", "expand", "tile"}


def fold_experts(flow: Flow) -> None:
    """Looped experts first, then those that run on every token with a score of nought for most."""
    for node in list(flow.nodes):
        alive = node.target == "topk" and flow.is_alive(node)
        if alive and not _fold_loop(flow, node):
            _fold_all(flow, node)


def _below(flow: Flow, values: Sequence[Value]) -> list[Node]:
    """Every node of the same layer that depends on some values, in order."""
    ids = {v.id for v in values}
    found: list[Node] = []
    unit = flow.maker[values[0].id].unit if values else -1
    for node in flow.nodes:
        if node.unit == unit and any(v.id in ids for v in node.inputs()):
            found.append(node)
            ids.update(r.id for r in node.results)
    return found


def _fold_loop(flow: Flow, topk: Node) -> bool:
    """Each expert gathers the tokens that chose it, and adds its results to a sum over all experts."""
    gates, choice = topk.results
    finds = [n for n in _below(flow, [choice]) if n.target == "nonzero"]
    if len(finds) < 2:
        return False
    told = {r.id for n in _below(flow, topk.results) for r in n.results} | {gates.id, choice.id}
    gathers = [n for n in _below(flow, [f.result for f in finds]) if _gathers(flow, n) and n.args[0].id not in told]
    adds = [n for n in _below(flow, [f.result for f in finds]) if n.target in ("index_add", "index_put", "scatter_add")]
    if not gathers or not adds:
        return False
    tokens = gathers[0].args[0]
    last = adds[-1]
    experts = len(finds)
    mine = _between(flow, gathers[0].result, adds[0])
    facts = _shape_of_expert(flow, mine)
    gone = [n for n in _below(flow, [f.result for f in finds]) if flow.nodes.index(n) <= flow.nodes.index(last)]
    if facts is None or not _has_all_weights(flow, gone, experts, tokens.shape[-1], facts):
        return False
    gates_now = _scaled_gates(flow, adds[0], gates)
    own = {id(n) for n in gone}
    extra = [n for n in flow.above(last.result, lambda n: n.target in ("topk", *_PRODUCTS)) if id(n) not in own and
             all(id(u) in own for r in n.results for u in flow.users.get(r.id, ()))]  # fmt: skip
    options = {**facts, "count": experts}
    made = Node(
        "experts",
        (tokens, choice, gates_now),
        options,
        last.results,
        last.path[:-1] or last.path,
        last.unit,
        last.after,
    )
    flow.collapse(made, [*gone, *(n for n in extra if n.target not in ("topk",))])
    return True


def _gathers(flow: Flow, node: Node) -> bool:
    return node.target in ("index", "index_select") and flow.is_data(node.args[0]) and len(node.result.shape) == 2


def _between(flow: Flow, start: Value, end: Node) -> list[Node]:
    """The nodes on the way from a value to a node."""
    below = {id(n) for n in _below(flow, [start])}
    return [n for n in flow.nodes if id(n) in below and n in flow.above(end.result, lambda _: False)]


def _scaled_gates(flow: Flow, add: Node, gates: Value) -> Value:
    """The gates as the experts use them: what is gathered from them last has their shape."""
    found = gates
    for node in flow.above(add.result, lambda n: n.target in _PRODUCTS):
        source = node.args[0] if node.args else None
        if not (node.target in ("index", "select") and isinstance(source, Value) and flow.is_data(source)):
            continue
        if prod(source.shape) == prod(gates.shape) and source.dtype == gates.dtype:
            found = source
    while found.shape != gates.shape and (maker := flow.maker.get(found.id)) is not None and maker.target in VIEWS:
        found = maker.args[0]
    return found


def _has_all_weights(flow: Flow, nodes: Sequence[Node], count: int, width: int, facts: dict[str, Any]) -> bool:
    """Whether experts of this shape have just the parameters that the loop reads: others are of another form."""
    found = {p.id: p for n in nodes for v in n.inputs() if (p := flow.parameter(v)) is not None}
    inner, ups = int(facts["inner"]), 1 + facts["gated"]
    expert = inner * width * (ups + 1) + facts["biased"] * (inner * ups + width)
    return sum(prod(p.shape) for p in found.values()) == count * expert


def _shape_of_expert(flow: Flow, nodes: Sequence[Node]) -> dict[str, Any] | None:
    """Width, gate and activation of one expert, read off its products."""
    products = [n for n in nodes if n.target in _PRODUCTS and any(flow.of(v) is Source.WEIGHT for v in n.inputs())]
    if len(products) < 2:
        return None
    down = products[-1]
    gated = any(n.target == "mul" and len([v for v in flow.data(n) if v.shape[-1] > 1]) == 2 for n in nodes)
    biased = any(isinstance(n.arg(2, "bias"), Value) or n.target == "addmm" for n in products)
    activation = next((n.target for n in nodes if n.target in ("silu", "gelu", "relu", "gelu_tanh", "relu2")), "silu")
    inner = down.args[1 if down.target == "addmm" else 0].shape[-1]
    return {"gated": gated, "biased": biased, "inner": inner, "activation": activation}


def _fold_all(flow: Flow, topk: Node) -> None:
    """Scores of all experts, nought but for the best: tokens times scores through batched products, then summed."""
    count = topk.args[0].shape[-1]
    below = _below(flow, topk.results)
    scatters = [n for n in below if n.target.startswith("scatter")]
    batched = [n for n in below if n.target == "bmm" and n.args[1].shape[0] == count]
    sums = [n for n in below if n.target == "sum" and n.args[0].shape[0] == count]
    if not scatters or len(batched) < 2 or not sums:
        return
    end = next(n for n in sums if flow.nodes.index(n) > flow.nodes.index(batched[-1]))
    value = batched[0].args[0]
    scores = {r.id for n in below for r in n.results}
    while (maker := flow.maker.get(value.id)) is not None and (maker.target in _SPREADS or maker.target == "mul"):
        data = flow.data(maker)
        free = [v for v in data if v.id not in scores or maker.target in _SPREADS]
        if not free:
            break
        value = free[0]
        if value.id not in scores:
            break
    while (
        (maker := flow.maker.get(value.id)) is not None
        and maker.target in _SPREADS
        and maker.result.shape[0] != topk.args[0].shape[0]
    ):
        value = maker.args[0]
    gates, choice = topk.results
    inside = [n for n in below if flow.nodes.index(n) <= flow.nodes.index(end)]
    spread = [n for n in flow.above(batched[0].args[0], lambda n: n.target not in _SPREADS | {"mul"}) if n not in inside
              and flow.nodes.index(n) > flow.nodes.index(flow.maker[value.id])]  # fmt: skip
    down = batched[-1].args[1]
    options = {
        "gated": batched[0].args[1].shape[2] == 2 * down.shape[1], "biased": False, "inner": down.shape[1],
        "count": count, "activation": next((n.target for n in inside if n.target in ("silu", "gelu", "relu")), "silu"),
        "function": "sigmoid" if any(n.target == "sigmoid" for n in inside) else "softmax",
    }  # fmt: skip
    made = Node("experts", (value, choice, gates), options, end.results, end.path, end.unit, end.after)
    flow.collapse(made, [*inside, *(n for n in spread if flow.is_data(n.result))])
