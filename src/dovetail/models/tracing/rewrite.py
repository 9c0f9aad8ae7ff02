"""Rewrites of a trace: several ATen operators that are one of ours become one node."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from dovetail.models.tracing.flow import POINTWISE, VIEWS, Flow, Source
from dovetail.models.tracing.trace import Node, Value

#: What turns a head by its position: everything that is linear but for products with tables.
_TURNS = VIEWS | {"mul", "neg", "slice", "cat", "add", "sub", "stack", "select", "split", "unbind", "view_as_complex",
                  "view_as_real", "write", "copy", "new_empty", "empty_like", "split_with_sizes",
                  "chunk", "roll", "complex", "addcmul", "index_select"}  # fmt: skip
_SHAPES = frozenset({"view", "_unsafe_view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze"})
_ACTIVATIONS = {"tanh", "erf", "sigmoid", "relu", "softplus", "exp", "log1p", "silu", "gelu", "clamp"}


def rewrite(flow: Flow) -> None:
    """All rewrites, in an order in which one finds what another left."""
    for step in (
        undo_splits,
        look_up_positions,
        fold_causal_convolutions,
        fold_norms,
        fold_fixed_norms,
        fold_rotary,
        fold_activations,
    ):
        step(flow)
        flow.update()


def undo_splits(flow: Flow) -> None:
    """All parts of a value behind one another again are the value."""
    for node in list(flow.nodes):
        if node.target != "cat" or len(node.args[0]) < 2:
            continue
        split = flow.maker.get(node.args[0][0].id)
        if split is None or split.target not in ("split", "split_with_sizes", "chunk"):
            continue
        if tuple(node.args[0]) == split.results and node.result.shape == split.args[0].shape:
            flow.replace({node.result.id: split.args[0]})
            flow.update()


def look_up_positions(flow: Flow) -> None:
    """The first rows of a table are a lookup of positions."""
    for node in list(flow.nodes):
        table = node.args[0] if node.args else None
        if node.target != "slice" or not isinstance(table, Value) or flow.of(table) is not Source.WEIGHT:
            continue
        rank = len(table.shape)
        is_table = rank == 2 or (rank == 3 and table.shape[0] == 1)
        rows = node.result.shape[rank - 2] if is_table else 0
        cut = is_table and node.arg(1, "dim", 0) % rank == rank - 2
        if cut and rows == flow.trace.seq and rows <= table.shape[-2]:
            ids = Value(-node.result.id, node.result.shape[:-1], "int64", "position_ids", "constant")
            flow.collapse(Node("embedding", (table, ids), {}, node.results, node.path, node.unit, node.after), [node])


def fold_causal_convolutions(flow: Flow) -> None:
    """A convolution of each channel that is padded on both sides and cut at its end sees the past alone."""
    for node in list(flow.nodes):
        if node.target != "convolution" or len(node.result.shape) != 3:
            continue
        source, weight = node.args[:2]
        channels, kernel = weight.shape[0], weight.shape[-1]
        cut = flow.sole_user(node.result)
        depthwise = node.arg(8, "groups", 1) == channels == source.shape[1]
        if not depthwise or cut is None or cut.target != "slice" or cut.result.shape != source.shape or kernel < 2:
            continue
        args = (source, weight, node.arg(2, "bias"), None)
        flow.collapse(Node("causal_conv1d", args, {}, cut.results, node.path, node.unit, node.after), [node, cut])


def fold_norms(flow: Flow) -> None:
    """Normalisations written out: a mean of squares, a root, a product."""
    for node in list(flow.nodes):
        if _is_root(node) and flow.is_alive(node):
            _fold_norm(flow, node)


def _is_root(node: Node) -> bool:
    if node.target == "pow":
        return node.args[1] in (-0.5, 0.5)
    return node.target in ("rsqrt", "sqrt", "linalg_vector_norm")


def _fold_norm(flow: Flow, root: Node) -> None:
    if root.target == "linalg_vector_norm":
        source, inside, over = root.args[0], [root], root.arg(2, "dim", None)
    else:
        found = _mean_of_squares(flow, root)
        if found is None:
            return
        source, inside, over = found
    end = _last_of_norm(flow, source, root, inside)
    if end is None:
        return
    last, function, source, inside = end
    axes = [d % len(source.shape) for d in (over if isinstance(over, list | tuple) else [over])] if over else [-1]
    axes = [d % len(source.shape) for d in axes]
    if axes != list(range(len(source.shape) - len(axes), len(source.shape))):
        return
    _finish_norm(flow, function, source, len(axes), inside, last)


def _mean_of_squares(flow: Flow, root: Node) -> tuple[Value, list[Node], Any] | None:
    """What stands under the root: its source, the nodes so far, the axes of the mean."""
    value, inside = root.args[0], [root]
    node = flow.maker.get(value.id)
    while node is not None and node.target in ("add", "clamp_min", "clamp", "maximum") and len(flow.data(node)) == 1:
        inside.append(node)
        node = flow.maker.get(flow.data(node)[0].id)
    if node is None or node.target not in ("mean", "sum", "var"):
        return None
    inside.append(node)
    over = node.arg(1, "dim", None)
    if node.target == "var":
        return node.args[0], inside, over
    square = flow.maker.get(node.args[0].id)
    if square is None:
        return None
    is_pow = square.target == "square" or (square.target == "pow" and square.args[1] == 2)
    is_mul = square.target == "mul" and square.args[0] == square.args[1]
    if not is_pow and not is_mul:
        return None
    return square.args[0], [*inside, square], over


def _last_of_norm(
    flow: Flow, source: Value, root: Node, inside: list[Node]
) -> tuple[Node, str, Value, list[Node]] | None:
    """The product (or quotient) of the source and the root, whether a mean is taken off, and what it is taken of."""
    value: Value = root.result
    user = flow.sole_user(value)
    while user is not None and user.target in ("clamp_min", "expand", "expand_as", "add", "reciprocal"):
        inside = [*inside, user]
        value = user.result
        user = flow.sole_user(value)
    if user is None or user.target not in ("mul", "div"):
        return None
    other = next((v for v in flow.data(user) if v.id != value.id), None)
    if other is None:
        return None
    maker = flow.maker.get(other.id)
    if maker is not None and maker.target == "sub":
        centred = maker.args[0]
        mean = flow.maker.get(maker.args[1].id) if isinstance(maker.args[1], Value) else None
        if mean is not None and mean.target == "mean" and mean.args[0] == centred and source in (other, centred):
            return user, "layer", centred, [*inside, user, maker, mean]
    if other != source:
        return None
    return user, "rms", source, [*inside, user]


def _finish_norm(flow: Flow, function: str, source: Value, axes: int, inside: list[Node], last: Node) -> None:
    """Takes in the products with weights that follow, across a view too."""
    weights: list[Value] = []
    out, swap = last, dict[int, Value]()
    kept: list[Node] = []
    user = flow.sole_user(out.result)
    for target in ("mul", "add"):
        view = None
        if user is not None and user.target in ("view", "_unsafe_view", "reshape", "flatten") and not weights:
            view, user = user, flow.sole_user(user.result)
        if user is None or user.target != target:
            break
        weight = next((v for v in user.inputs() if flow.of(v) is Source.WEIGHT), None)
        if weight is None or len(flow.data(user)) != 1:
            break
        weights.append(weight)
        if view is not None:
            swap[user.result.id] = view.result
            kept.append(user)
            break
        inside, out = [*inside, user], user
        user = flow.sole_user(user.result)
    node = Node(
        "norm", (source, *weights), {"function": function, "axes": axes}, out.results, last.path, last.unit, last.after
    )
    flow.nodes = [n for n in flow.nodes if id(n) not in {id(k) for k in kept}]
    flow.collapse(node, inside, swap=swap)


def fold_fixed_norms(flow: Flow) -> None:
    """Norms that PyTorch has functions for."""
    for node in flow.nodes:
        if node.target in ("layer_norm", "rms_norm"):
            function = "layer" if node.target == "layer_norm" else "rms"
            weights = [v for v in (node.arg(2, "weight"), node.arg(3, "bias")) if isinstance(v, Value)]
            axes = len(node.arg(1, "normalized_shape"))
            node.target, node.args = "norm", (node.args[0], *weights)
            node.options = {"function": function, "axes": axes}


def fold_rotary(flow: Flow) -> None:
    """Heads turned by their positions, whichever way it is written."""
    for node in list(flow.nodes):
        if flow.is_alive(node) and _is_turn(flow, node):
            _fold_turn(flow, node)


def _is_turn(flow: Flow, node: Node) -> bool:
    if node.target not in ("mul", "addcmul") or len(flow.data(node)) != 1:
        return False
    tables = [v for v in node.inputs() if flow.of(v) <= Source.INDEX and len(v.shape) >= 2 and prod(v.shape) > 1]
    return bool(tables) and any(_is_angle(flow, t) for t in tables)


def _is_angle(flow: Flow, table: Value) -> bool:
    """Whether a table is made of sines and cosines, or is kept and may be."""
    makers = flow.above(table, lambda _: False)
    kept = [
        v
        for n in makers
        for v in n.inputs()
        if v.kind in ("buffer", "constant") and v.dtype.startswith(("float", "bfloat", "complex"))
    ]
    is_made = any(n.target in ("cos", "sin", "polar", "outer") for n in makers)
    return is_made or bool(kept) or table.kind in ("buffer", "constant")


def _fold_turn(flow: Flow, turn: Node) -> None:
    value = flow.data(turn)[0]

    def ready(inside: Sequence[Node]) -> bool:
        turns = [n for n in inside if _is_turn(flow, n)]
        complexes = any(n.target == "view_as_real" for n in inside)
        return (len(turns) >= 2 or (complexes and bool(turns))) and prod(inside[-1].result.shape) == prod(value.shape)

    for _ in range(8):
        found = flow.closed(value, _TURNS, ready)
        if found is not None:
            value, inside, last = _around(flow, value, *found)
            flow.collapse(Node("rotary", (value,), {}, last.results, last.path, last.unit, last.after), inside)
            return
        maker = flow.maker.get(value.id)
        if maker is None or maker.target not in _TURNS or len(flow.data(maker)) != 1:
            return
        value = flow.data(maker)[0]


def _around(flow: Flow, value: Value, inside: list[Node], last: Node) -> tuple[Value, list[Node], Node]:
    """Views before and after that undo each other belong to it."""
    maker = flow.maker.get(value.id)
    sole = {id(n) for n in inside}
    while maker is not None and maker.target in _SHAPES and all(id(u) in sole for u in flow.users[value.id]):
        after, views = last, list[Node]()
        source = maker.args[0]
        while after is not None and after.result.shape != source.shape:
            user = flow.sole_user(after.result)
            after = user if user is not None and user.target in _SHAPES else None
            if after is not None:
                views.append(after)
        if after is None:
            return value, inside, last
        value, inside, last = source, [maker, *inside, *views], after
        sole = {id(n) for n in inside}
        maker = flow.maker.get(value.id)
    return value, inside, last


def fold_partial_rotary(flow: Flow, node: Node) -> bool:
    """Whether the queries and keys of an attention are turned in a part of each head that is cut out and put back.

    A kernel does it in place, so cut and joint disappear, unless one of the two is made of pieces anyway.
    """
    found = [_joint(flow, value) for value in node.args[:2]]
    if any(each is None for each in found):
        return False
    for each in found:
        assert each is not None
        joint, turned, whole = each
        made = Node("rotary", (whole,), {}, joint.results, turned.path, turned.unit, turned.after)
        flow.collapse(made, [joint, turned])
    return True


def _joint(flow: Flow, value: Value) -> tuple[Node, Node, Value] | None:
    node = flow.maker.get(value.id)
    while node is not None and node.target in VIEWS:
        node = flow.maker.get(node.args[0].id)
    if node is None or node.target != "cat":
        return None
    turned, whole = None, set[Value]()
    for part in node.args[0]:
        maker = flow.maker.get(part.id)
        if maker is not None and maker.target == "rotary":
            turned = maker
            maker = flow.maker.get(maker.args[0].id)
        if maker is None or maker.target not in ("slice", "split", "split_with_sizes"):
            return None
        whole.add(maker.args[0])
    if turned is None or len(whole) != 1:
        return None
    (source,) = whole
    return (node, turned, source) if source.shape == node.result.shape else None


def fold_activations(flow: Flow) -> None:
    """Functions of one value written out: GELU by its tanh, SiLU by its sigmoid, a soft cap."""
    for node in list(flow.nodes):
        if node.target in _ACTIVATIONS and flow.is_alive(node):
            for source in _sources(flow, node):
                found = flow.closed(source, POINTWISE, lambda inside, n=node: any(i is n for i in inside))
                if found is None:
                    continue
                inside, last = _longest(flow, *found)
                if len(inside) > 1:
                    weights = {v.id: v for n in inside for v in n.inputs() if flow.of(v) is Source.WEIGHT}
                    args = (source, *weights.values())
                    flow.collapse(
                        Node(named(flow, inside), args, {}, last.results, last.path, last.unit, last.after), inside
                    )
                break


def _longest(flow: Flow, inside: list[Node], last: Node) -> tuple[list[Node], Node]:
    """A region prolonged by operators that have nothing else to read: scaling by a number, a square."""
    user = flow.sole_user(last.result)
    squares = user is not None and user.target == "pow" and last.target == "relu"
    scales = user is not None and user.target == "mul" and len(list(user.inputs())) == 1 and last.target == "tanh"
    if user is not None and (squares or scales) and last.result not in flow.outputs:
        return [*inside, user], user
    return inside, last


def _sources(flow: Flow, node: Node) -> Iterator[Value]:
    """Values a function may be one of, the closest last."""
    found: list[Value] = []
    value = flow.data(node)[0] if len(flow.data(node)) == 1 else None
    while value is not None and len(found) < 8:
        found.append(value)
        maker = flow.maker.get(value.id)
        data = flow.data(maker) if maker is not None and maker.target in POINTWISE else []
        data = sorted(data, key=lambda v: len(flow.above(v, lambda n: n.target not in POINTWISE)))
        value = data[0] if data else None
    yield from reversed(found)


def named(flow: Flow, inside: Sequence[Node]) -> str:
    """The function a region of pointwise operators is."""
    targets = [n.target for n in inside]
    if "erf" in targets:
        return "gelu"
    if "tanh" in targets:
        return "gelu_tanh" if "pow" in targets or targets.count("mul") > 2 else "softcap"
    if "sigmoid" in targets:
        scaled = any(n.target == "mul" and any(isinstance(a, float) for a in n.args) for n in inside)
        gates = any(n.target == "mul" and len(flow.data(n)) == 2 for n in inside)
        plain = not any(flow.of(v) is Source.WEIGHT for n in inside for v in n.inputs())
        if not gates or not plain:
            return "sigmoid" if targets == ["sigmoid"] else "pointwise"
        return "quick_gelu" if scaled else "silu"
    if "relu" in targets:
        return "relu2" if "pow" in targets or "mul" in targets or "square" in targets else "relu"
    if "softplus" in targets:
        return "softplus" if "mul" not in targets else "log_decay"
    return "pointwise"
