"""What becomes of functions of points: alone, in pieces of a product, or taken in by the product they wait for."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
from __future__ import annotations

from collections.abc import Mapping
from math import prod

from dovetail.graph.function import FUNCTIONS
from dovetail.models.tracing.emissions_of_movements import generic
from dovetail.models.tracing.emit import Emitter, Pieces
from dovetail.models.tracing.flow import POINTWISE, VIEWS, Source
from dovetail.models.tracing.trace import Node, Value

#: ATen functions of one value → ours.
FUNCTION: Mapping[str, str] = {
    "silu": "silu", "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "softplus": "softplus", "softcap": "softcap",
    "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "relu2": "relu2", "rotary": "rotary", "dropout": "dropout",
    "native_dropout": "dropout", "log_decay": "log_decay", "pointwise": "pointwise", "exp": "pointwise",
    "log": "pointwise",
    "rsqrt": "pointwise",
    "sqrt": "pointwise", "erf": "pointwise", "square": "pointwise", "cos": "pointwise", "sin": "pointwise",
    "elu": "pointwise", "hardswish": "pointwise", "mish": "pointwise", "leaky_relu": "pointwise", "log1p": "pointwise",
}  # fmt: skip
#: Activations that a product with another value takes in → the gated form.
GATED: Mapping[str, str] = {
    "silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu", "sigmoid": "sigmoid_gate",
}  # fmt: skip
#: Cheap enough to be part of the kernel before or after: nothing is emitted where only numbers and constants join in.
FREE = frozenset({"add", "sub", "rsub", "mul", "div", "neg", "clamp", "clamp_min", "clamp_max", "masked_fill", "where",
                  "minimum", "maximum", "abs", "hardtanh", "nan_to_num"})  # fmt: skip
#: Functions that say whether one value is larger than another.
COMPARISONS = frozenset({"gt", "ge", "lt", "le", "eq", "ne"})


def point(emit: Emitter, node: Node) -> None:
    """A function of one value, or of several where they are."""
    flow = emit.flow
    data = flow.data(node)
    weights = list({v.id: v for v in node.inputs() if flow.of(v) is Source.WEIGHT}.values())
    function = _function(node)
    if not weights and len(data) == 1 and function is None and node.target in FREE:
        emit.held[node.result.id] = emit.get(data[0])
        return
    if function is not None and _waits(emit, node, function):
        emit.waiting[node.result.id] = (function, data[0])
        return
    operands = [*data, *weights]
    gated = _gated(emit, data) if node.target == "mul" and len(data) == 2 else None
    if gated is not None:
        function, operands = gated
    elif function is None:
        function = {"add": "add", "sub": "add", "rsub": "add", "mul": "multiply"}.get(node.target)
        if function is None or len(operands) != 2:
            function = f"pointwise{min(len(operands), 3)}" if len(operands) > 1 else "pointwise"
            operands = operands[:3]
    _apply(emit, node, function, operands)


def compare(emit: Emitter, node: Node) -> None:
    """With a number, a function of points; with another value, whatever it makes."""
    if len(list(node.inputs())) == 1:
        point(emit, node)
    else:
        generic(emit, node, "")


def _apply(emit: Emitter, node: Node, function: str, operands: list[Value]) -> None:
    """A function of values, piece by piece where a product made them so."""
    result, name = node.result, emit.name(node)
    if function.startswith("pointwise") and node.target not in POINTWISE | COMPARISONS | {"pointwise"}:
        emit.approximated[name] = node.target
    # a weight is declared in as many parts as what it joins
    helds = [
        emit.get(v) if v.id not in emit.waiting else _now(emit, v)
        for v in operands
        if emit.flow.of(v) is not Source.WEIGHT
    ]
    over = next((h.over for h in helds if h.over is not None and h.fused), None)
    if over is None:
        tensors = [emit.whole(v) for v in operands]
        renames = [emit.twins(v, result) for v in operands] if function != "rotary" else []
        read = {r.get(a, a) for t, r in zip(tensors, renames, strict=False) for a in emit.leaves(t)}
        if emit.atoms.length(read) > prod(result.shape):  # axes that were not seen to be one
            generic(emit, node, "its axes do not fit")
        else:
            emit.hold(result, emit.point(name, function, tensors, renames=renames))
        return
    found: list[tuple[str, int]] = []
    lead = next(h for h in helds if h.over == over)
    for number, (_, part) in enumerate(lead.pieces):
        tensors = [emit.piece(v, over, number) for v in operands]
        own = emit.unique(f"{name}.{number}")
        found.append((emit.point(own, function, tensors), part))
        if name in emit.approximated:
            emit.approximated[own] = node.target
    emit.approximated.pop(name, None) if len(found) > 1 else None
    emit.held[result.id] = Pieces(tuple(found), over, fused=True)


def _now(emit: Emitter, value: Value) -> Pieces:
    """An activation that was left for a product that did not take it in."""
    function, source = emit.waiting.pop(value.id)
    maker = emit.flow.maker[value.id]
    while maker.target in VIEWS:
        maker = emit.flow.maker[maker.args[0].id]
    emit.waiting.pop(maker.result.id, None)
    _apply(emit, maker, function, [source])
    emit.held[value.id] = emit.held[maker.result.id]
    return emit.held[value.id]


def _function(node: Node) -> str | None:
    if node.target == "gelu":
        return "gelu_tanh" if node.options.get("approximate") == "tanh" else "gelu"
    if node.target == "pow" and node.args[1] == 2:
        return "pointwise"
    return FUNCTION.get(node.target)


def _waits(emit: Emitter, node: Node, function: str) -> bool:
    """Whether the one user of an activation is a product with another value."""
    if function not in GATED:
        return False
    user = emit.flow.sole_user(node.result)
    while user is not None and user.target in VIEWS:
        user = emit.flow.sole_user(user.result)
    return user is not None and user.target == "mul" and len(emit.flow.data(user)) == 2


def _gated(emit: Emitter, data: list[Value]) -> tuple[str, list[Value]] | None:
    for position, value in enumerate(data):
        if value.id in emit.waiting:
            function, source = emit.waiting.pop(value.id)
            other = data[1 - position]
            if other.id in emit.waiting:
                _now(emit, other)
            return GATED[function], [source, other]
    return None


assert FUNCTIONS.keys() >= set(FUNCTION.values()), "functions of the graph"
