"""Axes through operators that compute: products, norms, attention, experts, scans, convolutions."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.models.tracing.axes import Axes, Axis
from dovetail.models.tracing.flow import Source
from dovetail.models.tracing.infer import Inference, Rule, by_sample, pointwise
from dovetail.models.tracing.trace import Node, Value


def _linear(inf: Inference, node: Node) -> None:
    x, weight = inf.of(node.args[0]), inf.of(node.args[1])
    inf.same(x[-1], weight[-1], node)
    bias = node.arg(2, "bias")
    if isinstance(bias, Value):
        inf.same(weight[0], inf.of(bias)[0], node)
    inf.axes[node.result.id] = (*x[:-1], weight[0])


def _mm(inf: Inference, node: Node) -> None:
    left, right = node.args[-2:] if node.target in ("addmm", "baddbmm") else node.args[:2]
    a, b = inf.of(left), inf.of(right)
    for one, two in zip(a[:-2], b[:-2], strict=True):
        if inf.atoms.leaves(one) and inf.atoms.leaves(two):
            inf.same(one, two, node)
    inf.same(a[-1], b[-2], node)
    if node.target == "addmm" and inf.flow.of(node.args[0]) is Source.WEIGHT:
        inf.same(inf.of(node.args[0])[-1], b[-1], node)
    outer = tuple(one if inf.atoms.leaves(one) else two for one, two in zip(a[:-2], b[:-2], strict=True))
    inf.axes[node.result.id] = inf.atoms.distinct((*outer, a[-2], b[-1]))


def _embedding(inf: Inference, node: Node) -> None:
    table, ids = node.args[:2]
    inf.axes[node.result.id] = (*inf.of(ids), inf.of(table)[-1])


def _embedding_bag(inf: Inference, node: Node) -> None:
    ids, table = node.args[:2]
    inf.axes[node.result.id] = (*inf.of(ids)[:-1], inf.of(table)[1])


def _norm(inf: Inference, node: Node) -> None:
    source, *weights = node.args
    axes = inf.of(source)
    inf.axes[node.result.id] = axes
    for weight in weights:
        trailing = trailing_axis(inf, axes, weight.shape)
        flat = tuple(a for axis in inf.of(weight) for a in axis)
        inf.same(trailing, flat, node)


def trailing_axis(inf: Inference, axes: Axes, shape: Sequence[int]) -> Axis:
    """The last atoms of a tensor, as many as a weight of this shape has points."""
    points = 1
    for size in shape:
        points *= size
    flat: list[int] = []
    for axis in reversed(axes):
        if inf.atoms.length(flat) >= points:
            break
        flat[:0] = axis
    return tuple(flat)


def _reduce(inf: Inference, node: Node) -> None:
    value = node.args[0]
    given = node.arg(1, "dim", None)
    given = range(len(value.shape)) if given is None or given == () or given == [] else given
    gone = {d % max(len(value.shape), 1) for d in (given if isinstance(given, list | tuple | range) else [given])}
    axes = inf.of(value)
    keeps = len(node.result.shape) == len(value.shape)
    inf.axes[node.result.id] = (
        tuple(() if d in gone else a for d, a in enumerate(axes))
        if keeps
        else tuple(a for d, a in enumerate(axes) if d not in gone)
    )


def _attention(inf: Inference, node: Node) -> None:
    q, k, v = (inf.of(x) for x in node.args)
    if node.options.get("key_last"):
        k = (*k[:-2], k[-1], k[-2])
    inf.same(q[-1], k[-1], node)
    if not inf.atoms.unify(k[-2], v[-2]):
        inf.broken[id(node)] = "keys and values differ in length"
    for left, right in ((q, k), (k, v)):
        for one, two in zip(left[:-2], right[:-2], strict=True):
            share_heads(inf, one, two)
    out = (*q[:-1], v[-1])
    if not node.options.get("heads_first"):
        out = (q[0], q[2], q[1], v[-1])
    inf.axes[node.result.id] = out
    bias = node.options.get("bias")
    if isinstance(bias, Value) and len(bias.shape) >= 3:
        pairs = inf.of(bias)
        rows, columns = inf.atoms.leaves(q[-2]), inf.atoms.leaves(k[-2])
        if rows == columns and rows and inf.atoms.is_free(rows[0]):
            size = inf.atoms.length(rows)
            columns = (inf.keys.setdefault(rows[0], inf.atoms.new(size, free=True)),)
        inf.same(pairs[-2], rows, node)
        inf.same(pairs[-1], columns, node)
        share_heads(inf, q[-3], pairs[-3])


def _indexer(inf: Inference, node: Node) -> None:
    q, k, *weights = (inf.of(x) for x in node.args)
    inf.same(q[-1], k[-1], node)
    for given in weights:
        inf.same(q[-2], given[-1], node)
    *rows, chosen = node.result.shape
    choice = inf.atoms.new(chosen, free=True)
    inf.uncapped[choice] = node.options["of"]
    inf.axes[node.result.id] = (*(inf.atoms.reshape(q[:1], rows) or inf.atoms.fresh(rows)), (choice,))


def share_heads(inf: Inference, queries: Axis, keys: Axis) -> None:
    """Queries' heads are the keys' heads times a group."""
    many, few = inf.atoms.leaves(queries), inf.atoms.leaves(keys)
    if not few or not many:
        return
    if inf.atoms.length(many) == inf.atoms.length(few):
        inf.atoms.unify(many, few)
        return
    group = inf.atoms.new(inf.atoms.length(many) // inf.atoms.length(few))
    inf.atoms.unify((*few, group), many)


def _experts(inf: Inference, node: Node) -> None:
    tokens, choice, gates = node.args
    inf.axes[node.result.id] = inf.of(tokens)
    inf.same(inf.of(choice)[0], inf.of(tokens)[0], node)
    inf.same(inf.of(gates)[0], inf.of(tokens)[0], node)


def _routing(inf: Inference, node: Node) -> None:
    logits = inf.of(node.args[0])
    gates, choice = node.results
    top_k = inf.atoms.axis(choice.shape[-1])
    rows = logits[:-1]
    inf.axes[choice.id] = (*rows, top_k)
    inf.axes[gates.id] = (*rows, top_k) if len(gates.shape) == len(choice.shape) else inf.atoms.fresh(gates.shape)


def _causal_conv(inf: Inference, node: Node) -> None:
    x, weight = inf.of(node.args[0]), inf.of(node.arg(1, "weight"))
    inf.same(x[1], weight[0], node)
    bias = node.arg(2, "bias")
    if isinstance(bias, Value):
        inf.same(x[1], inf.of(bias)[0], node)
    inf.axes[node.result.id] = x


def _state_space(inf: Inference, node: Node) -> None:
    x, dt, rate, b, c = (inf.of(v) for v in node.args[:5])
    inf.axes[node.results[0].id] = x
    for axis in (dt[-1], rate[0]):
        inf.same(x[2], axis, node)
    share_heads(inf, x[2], b[2])
    inf.same(b[2], c[2], node)
    inf.same(b[3], c[3], node)
    for name in ("D", "dt_bias"):
        if isinstance(value := node.options.get(name), Value):
            inf.same(x[2], inf.of(value)[0], node)


def _delta(inf: Inference, node: Node) -> None:
    q, k, v = (inf.of(x) for x in node.args[:3])
    given = [
        inf.of(x) for x in (*node.args[3:5], node.options.get("g"), node.options.get("beta")) if isinstance(x, Value)
    ]
    inf.same(q[3], k[3], node)
    inf.same(q[2], k[2], node)
    share_heads(inf, v[2], k[2])
    for each in given:
        inf.same(each[2], v[2] if inf.atoms.length(each[2]) == inf.atoms.length(v[2]) else k[2], node)
        if len(each) > 3:
            inf.same(each[3], k[3], node)
    inf.axes[node.results[0].id] = v


def _convolution(inf: Inference, node: Node) -> None:
    x, weight = inf.of(node.args[0]), inf.of(node.args[1])
    groups = node.arg(8, "groups", 1)
    turned = bool(node.arg(6, "transposed", False))
    out: list[Axis] = [(inf.atoms.new(n, fixed=i > 1),) for i, n in enumerate(node.result.shape)]
    out[0] = x[0]
    if groups == node.args[0].shape[1] == node.result.shape[1]:
        inf.same(x[1], weight[0], node)
        out[1] = x[1]
    elif groups == 1:
        inf.same(x[1], weight[0 if turned else 1], node)
        out[1] = weight[1 if turned else 0]
    elif not turned:
        out[1] = weight[0]
    for position in range(2, len(out)):
        if node.result.shape[position] == node.args[0].shape[position]:
            out[position] = x[position]
    bias = node.arg(2, "bias")
    if isinstance(bias, Value):
        inf.same(out[1], inf.of(bias)[0], node)
    inf.axes[node.result.id] = tuple(out)


def _group_norm(inf: Inference, node: Node) -> None:
    x = inf.of(node.args[0])
    for weight in (node.arg(2, "weight"), node.arg(3, "bias")):
        if isinstance(weight, Value):
            inf.same(x[1], inf.of(weight)[0], node)
    inf.axes[node.result.id] = x


#: Operators that make an image of another size of one.
RESIZED = frozenset({"upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "avg_pool2d",
                     "_adaptive_avg_pool2d"})  # fmt: skip


def _upsample(inf: Inference, node: Node) -> None:
    x = inf.of(node.args[0])
    inf.axes[node.result.id] = (*x[:2], *((inf.atoms.new(n, fixed=True),) for n in node.result.shape[2:]))


def _index(inf: Inference, node: Node) -> None:
    value, ids = node.args[0], node.args[1]
    if len(ids) == 1 and isinstance(ids[0], Value) and not ids[0].dtype.startswith("bool"):
        rows = by_sample(inf, value, node.result.shape[0], inf.of(ids[0])[0])
        inf.axes[node.result.id] = (rows, *inf.of(ids[0])[1:], *inf.of(value)[1:])
    else:
        _picked(inf, node)


def _picked(inf: Inference, node: Node) -> None:
    """Rows that only contents decide: one of each sample stands for them."""
    inf.broken[id(node)] = f"{node.target} picks rows by contents"
    shape = node.result.shape
    kept = inf.of(node.args[0])[::-1]
    rest = [a if inf.atoms.length(a) == n else inf.atoms.axis(n) for a, n in zip(kept, shape[:0:-1], strict=False)]
    if len(rest) == len(shape) - 1:
        first = (inf.batch,) if shape[0] == inf.flow.trace.batch else inf.atoms.axis(shape[0])
        inf.axes[node.result.id] = (first, *rest[::-1])


def _written(inf: Inference, node: Node) -> None:
    """What was there has the axes of the whole, but where it was made for that and only the part's are known."""
    before, part = (inf.of(value) for value in node.args[:2])
    known = inf.flow.is_data(node.args[0]) or len(before) != len(part)
    pairs = zip(before, part, node.result.shape, strict=False)
    inf.axes[node.result.id] = before if known else tuple(p if inf.atoms.length(p) == n else b for b, p, n in pairs)


def _topk(inf: Inference, node: Node) -> None:
    axes = list(inf.of(node.args[0]))
    dim = node.arg(2, "dim", -1)
    axes[dim] = inf.atoms.axis(node.results[0].shape[dim])
    for result in node.results:
        inf.axes[result.id] = tuple(axes)
    inf.broken[id(node)] = "it picks the largest"


def _placed(inf: Inference, node: Node) -> None:
    tokens, rows = (inf.of(value) for value in node.args)
    inf.same(tokens[-1], rows[-1], node)
    inf.axes[node.result.id] = tokens


def _loss(inf: Inference, node: Node) -> None:
    inf.axes[node.result.id] = tuple(() for _ in node.result.shape)


OPERATOR_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm"), _mm),
    **dict.fromkeys(("mean", "sum", "amax", "amin", "var", "logsumexp"), _reduce),
    **dict.fromkeys(("gated_delta", "kimi_delta"), _delta),
    **dict.fromkeys(("eq", "ne", "lt", "gt", "le", "ge", "logical_and", "logical_not"), pointwise),
    "linear": _linear, "embedding": _embedding, "norm": _norm, "attention": _attention, "indexer": _indexer,
    "experts": _experts,
    "routing": _routing, "causal_conv1d": _causal_conv, "state_space": _state_space, "convolution": _convolution,
    "group_norm": _group_norm, **dict.fromkeys(RESIZED, _upsample), "index": _index, "loss": _loss, "topk": _topk,
    **dict.fromkeys(("nonzero", "masked_select"), _picked), "write": _written, "placed": _placed,
    "embedding_bag": _embedding_bag,
}  # fmt: skip
