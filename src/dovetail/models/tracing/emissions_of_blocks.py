"""What attention, experts, scans and losses of a trace become: the operators a description has for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from dovetail.graph import Compressed, DerivedSize, Element, Kind, Mask, Operand, Operator, Role, Span
from dovetail.graph.attention import attention, indexer
from dovetail.graph.operator import matrix_work, union, vector_work
from dovetail.graph.routing import EXPERT_TOKENS, TOP_K, ExpertGroups, combine, dispatch, routing
from dovetail.graph.scan import CHUNK, convolution, linear_attention, state_space
from dovetail.models.assembly import GATED, ProjectionWeights, activate, project
from dovetail.models.tracing.emissions_of_movements import generic
from dovetail.models.tracing.emit import Emission, Emitter, Pieces, one
from dovetail.models.tracing.trace import Node, Value

#: Names of activations in modules → ours, alone and with a gate.
ACTIVATIONS: Mapping[str, tuple[str, str]] = {
    "silu": ("silu", "swiglu"), "SiLU": ("silu", "swiglu"), "SiLUActivation": ("silu", "swiglu"),
    "gelu": ("gelu", "geglu"), "GELUActivation": ("gelu", "geglu"), "GELU": ("gelu", "geglu"),
    "GELUTanh": ("gelu_tanh", "geglu_tanh"), "NewGELUActivation": ("gelu_tanh", "geglu_tanh"),
    "PytorchGELUTanh": ("gelu_tanh", "geglu_tanh"), "ReLU": ("relu", "reglu"), "relu": ("relu", "reglu"),
    "ReLUSquaredActivation": ("relu2", "reglu"),
}  # fmt: skip


def _attention(emit: Emitter, node: Node) -> None:
    query, key, value = node.args
    q, k, v = (emit.by_sample(each) for each in (query, key, value))
    options = node.options
    axes = emit.inf.of(key)
    rows = axes[-1] if options.get("key_last") else axes[-2]
    seen = emit.atoms.leaves(rows)
    name = emit.name(node)
    if len(seen) != 1:
        generic(emit, node, "its keys have no one length")
        return
    wide = emit.atoms.leaves(emit.inf.of(value)[-1])
    width = emit.atoms.leaves(emit.inf.of(query)[-1])
    if any(emit.leaves(t)[-1] not in last for t, last in ((q, width), (k, width), (v, wide))):
        generic(emit, node, "its heads do not come last")
        return
    (keys,) = seen
    asked = emit.atoms.leaves(emit.inf.of(query)[-2])
    renamed = {keys: "key_seq"} if keys in asked else {}
    if renamed and "key_seq" not in emit.builder.sizes:
        size = emit.follows(keys) if emit.atoms.is_free(keys) else emit.atoms.size(keys)
        emit.builder.size("key_seq", size)
    mask = _mask(options, emit.dim(asked[0]) if asked else "seq", renamed.get(keys) or emit.dim(keys))
    beside = emit.atoms.size(keys) - emit.atoms.length(asked)
    if beside > 0 and mask.span is Span.WINDOW:  # keys behind those of the tokens, which no window hides
        share = Fraction(beside, emit.atoms.size(keys))
        mask = replace(mask, compressed=Compressed(share, _most_chosen(options)))
    elif (most := _most_chosen(options)) is not None:
        mask = replace(mask, span=Span.TOP_K, width=most)
    outer = [a for a in emit.leaves(q) if a not in width]
    # the width of a head comes last: scores sum it
    a, b = emit.operand(q, {}), emit.operand(k, renamed)
    same = {w: emit.builder.size("value_dim", emit.atoms.size(w)) for w in wide if w in width}
    c = emit.operand(v, {**renamed, **same})
    extras = [x for x in (options.get("sinks"), options.get("bias")) if isinstance(x, Value)]
    sinks = emit.operand(emit.whole(extras[0])) if extras else None
    if len(extras) > 1:
        emit.approximated[name] = "attention (with sinks, its bias is not read)"
    chosen = options.get("choice")
    choice = emit.operand(emit.whole(chosen)) if isinstance(chosen, Value) else None
    made = attention(emit.builder, name, (a, b, c), mask, scale=float(options["scale"]), sinks=sinks, choice=choice)
    leaves = (*outer, *wide)
    emit.hold(node.result, emit.remember(made, leaves))


def _most_chosen(options: Mapping[str, object]) -> int | None:
    """How many keys an indexer chooses at most, where it had to choose."""
    most, of = options.get("most"), options.get("of")
    return most if isinstance(most, int) and isinstance(of, int) and most < of else None


def _indexer(emit: Emitter, node: Node) -> None:
    query, key, *weights = node.args
    q, k = emit.whole(query), emit.whole(key)
    *outer, chosen = emit.flat(node.result)
    batch, width = emit.atoms.find(emit.inf.batch), emit.atoms.leaves(emit.inf.of(key)[-1])
    (keys,) = (a for a in emit.flat(key) if a != batch and a not in width)
    renamed = {keys: "key_seq"} if keys in outer else {}
    if renamed and "key_seq" not in emit.builder.sizes:
        emit.builder.size("key_seq", emit.follows(keys))
    rows = next(a for a in outer if a != batch)
    mask = Mask(bool(node.options["causal"]), query=emit.dim(rows), key=renamed.get(keys) or emit.dim(keys))
    given = emit.operand(emit.whole(weights[0])) if weights else None
    made = indexer(
        emit.builder, emit.name(node), emit.operand(q), emit.operand(k, renamed), given, mask, emit.dim(chosen)
    )
    emit.hold(node.result, emit.remember(made, (*outer, chosen)))


def _mask(options: Mapping[str, object], query: str, key: str) -> Mask:
    causal = bool(options.get("causal"))
    for name, span in (("window", Span.WINDOW), ("chunk", Span.CHUNK)):
        width = options.get(name)
        if isinstance(width, int):
            return Mask(causal, span, width, query, key)
    return Mask(causal, query=query, key=key)


def _routing(emit: Emitter, node: Node) -> None:
    gates, choice = node.results
    o = node.options
    logits = emit.whole(node.args[0])
    correction = o.get("correction")
    bias = None
    if isinstance(correction, Value):
        if emit.flow.parameter(correction) is not None:
            bias = emit.operand(emit.weight(correction, name="router.correction"))
        else:
            bias = emit.builder.constant("router.correction", ("experts",))
    emit.builder.size(TOP_K, choice.shape[-1])
    values, chosen = routing(
        emit.builder, "gates", str(o["function"]), emit.operand(logits), "experts", bias=bias,
        renormalise=bool(o["renormalise"]), groups=ExpertGroups(int(o["groups"]), int(o["top_groups"])),
    )  # fmt: skip
    top = emit.atoms.leaves(emit.inf.of(choice)[-1])
    rows = tuple(a for a in emit.leaves(logits) if emit.dim(a) != "experts")
    for tensor in (values, chosen):
        emit.remember(tensor, (*rows, *top))
    if isinstance(scales := o.get("scales"), Value):
        table = emit.weight(scales)
        dims = emit.builder.tensors[values].dims
        picked = emit.builder.embedding("gates.scale", emit.operand(table), chosen, dims)
        values = emit.builder.elementwise("gates.scaled", "multiply", values, picked)
        emit.remember(values, (*rows, *top))
    emit.hold(gates, values)
    emit.hold(choice, chosen)


def _experts(emit: Emitter, node: Node) -> None:
    tokens, choice, gates = node.args
    o, builder = node.options, emit.builder
    gated, count, inner, biased = bool(o["gated"]), int(o["count"]), int(o["inner"]), bool(o["biased"])
    own = str(o["activation"])
    plain, wide = ACTIVATIONS.get(own.removeprefix("own:"), ("pointwise", "swiglu"))
    activation = ("swiglu_clamped" if own.startswith("own:") else wide) if gated else plain
    builder.size("experts", count)
    builder.size("expert_ffn", inner)
    builder.size(TOP_K, choice.shape[-1])
    builder.size(EXPERT_TOKENS, DerivedSize(("batch", "seq", TOP_K), ("experts",)))
    chosen, values, source = emit.whole(choice), emit.whole(gates), emit.whole(tokens)
    width = emit.dim(emit.leaves(source)[-1])
    share = ProjectionWeights(("experts",), Fraction(choice.shape[-1], count))
    sent = dispatch(builder, "dispatch", source, chosen, "experts")

    def up(part: str) -> str:
        return project(builder, f"expert.{part}", sent, ("expert_ffn",), over=(width,), bias=biased, weights=share,
                       fusion="expert_up")  # fmt: skip

    hidden = activate(builder, "expert", activation, up) if activation in GATED else builder.elementwise(
        "expert.activation", activation, up("up"))  # fmt: skip
    out = project(builder, "expert.down", hidden, (width,), over=("expert_ffn",), bias=biased, weights=share)
    leaves = emit.leaves(source)
    made = combine(builder, "combine", out, values, chosen, tuple(emit.dim(a) for a in leaves))
    emit.hold(node.result, emit.remember(made, leaves))


def _causal_conv(emit: Emitter, node: Node) -> None:
    source, weight = node.args[0], node.arg(1, "weight")
    bias, activation = node.arg(2, "bias"), node.arg(3, "activation")
    held, name = emit.get(source), emit.name(node)
    over = held.over
    if over is None:
        parts: list[tuple[str, int]] = [(held.tensor, -1)]
        channels = [a for a in emit.leaves(held.tensor) if a in emit.atoms.leaves(emit.inf.of(source)[1])]
        inside = [a for a in channels if emit.atoms.is_sum(a)]
        if inside:
            over = inside[0]
            parts = [(emit.sliced(held.tensor, over, p, n), p) for n, p in enumerate(emit.atoms.parts(over))]
    else:
        parts = list(held.pieces)
    found: list[tuple[str, int]] = []
    for number, (tensor, part) in enumerate(parts):
        own = emit.unique(f"{name}.{number}" if over is not None else name)
        kernel = emit.weight(weight, over, number)
        dim = emit.builder.tensors[kernel].dims[-1]
        leaves = emit.leaves(tensor)
        made = emit.remember(
            convolution(emit.builder, own, emit.operand(tensor), emit.operand(kernel), dim), leaves
        )  # fmt: skip
        if isinstance(bias, Value):
            offset = emit.weight(bias, over, number)
            made = emit.point(f"{own}.biased", "add", (made, offset))
        if activation is not None:
            made = emit.point(f"{own}.silu", "silu", (made,))
        found.append((made, part))
    emit.held[node.result.id] = one(found[0][0]) if over is None else Pieces(tuple(found), over, fused=True)


def _chunk(emit: Emitter, node: Node, default: int) -> None:
    size = node.options.get("chunk_size") or next((a for a in node.args[5:] if isinstance(a, int)), default)
    emit.builder.size(CHUNK, DerivedSize(("seq",), at_most=int(size)))


def _state_space(emit: Emitter, node: Node) -> None:
    x, dt, rate, b, c = (emit.whole(v) for v in node.args[:5])
    _chunk(emit, node, 256)
    bias = node.options.get("dt_bias")
    if isinstance(bias, Value):
        dt = emit.point("step_biased", "add", (dt, emit.weight(bias)))
    if node.options.get("dt_softplus"):
        dt = emit.point("step", "softplus", (dt,))
    skip = node.options.get("D")
    operands = [x, dt, rate, b, c]
    if isinstance(skip, Value):
        operands.append(emit.weight(skip))
    made = state_space(emit.builder, emit.name(node), tuple(emit.operand(t) for t in operands))
    emit.hold(node.results[0], emit.remember(made, emit.leaves(x)))


def _delta(emit: Emitter, node: Node) -> None:
    o = node.options
    q, k, v = (emit.whole(x) for x in node.args[:3])
    rest = [x for x in (*node.args[3:5], o.get("g"), o.get("beta")) if isinstance(x, Value)]
    _chunk(emit, node, 64)
    if o.get("use_qk_l2norm_in_kernel"):
        q, k = (_unit(emit, t, name) for t, name in ((q, "query_norm"), (k, "key_norm")))
    operands = (q, k, v, *(emit.whole(x) for x in rest))
    scale = node.args[0].shape[-1] ** -0.5
    made = linear_attention(
        emit.builder, emit.name(node), "gated_delta", tuple(map(emit.operand, operands)), scale=scale
    )
    emit.hold(node.results[0], emit.remember(made, emit.leaves(v)))


def _unit(emit: Emitter, tensor: str, name: str) -> str:
    """Queries or keys of length one."""
    leaves = emit.leaves(tensor)
    made = emit.builder.normalisation(emit.unique(name), "rms", emit.operand(tensor), (emit.dim(leaves[-1]),))
    return emit.remember(made, leaves)


def _loss(emit: Emitter, node: Node) -> None:
    logits = emit.whole(node.args[0])
    leaves = emit.leaves(logits)
    if node.options["kind"] == "cross_entropy":
        outer = tuple(emit.dim(a) for a in leaves[:-1])
        labels = emit.builder.input("labels", outer, Role.INDEX)
        made = emit.builder.loss("loss", emit.operand(logits), labels, emit.dim(leaves[-1]))
        emit.hold(node.result, emit.remember(made, ()))
        return
    target, dims = "target", tuple(emit.dim(a) for a in leaves)
    emit.builder.constant(target, dims)
    emit.builder.tensor("loss", (), Role.LOSS, Element.FLOAT32)
    difference = emit.builder.tensor("loss.difference", dims)
    source = emit.operand(logits)
    operator = Operator(
        "loss", Kind.LOSS, "squared_error", (source, Operand(target, dims)),
        (Operand("loss", ()), Operand(difference, dims)), work=vector_work(dims, 3), saves=(difference,),
    )  # fmt: skip
    emit.hold(node.result, emit.remember(emit.builder.append(operator), ()))


def _group_norm(emit: Emitter, node: Node) -> None:
    """Statistics over groups of channels and all places: a norm over channels and places, of one group's statistics."""
    tensor = emit.whole(node.args[0])
    over = tuple(a for a in emit.leaves(tensor) if a != emit.atoms.find(emit.inf.batch))
    weights = [v for v in (node.arg(2, "weight"), node.arg(3, "bias")) if isinstance(v, Value)]
    given = tuple(emit.operand(emit.weight(w)) for w in weights)
    dims = tuple(emit.dim(a) for a in over)
    made = emit.builder.normalisation(emit.name(node), "layer", emit.operand(tensor), dims, given)
    emit.hold(node.result, emit.remember(made, emit.leaves(tensor)))


def _convolution(emit: Emitter, node: Node) -> None:
    """Over images: a product of channels at every place and offset of the kernel."""
    source, name = emit.whole(node.args[0]), emit.name(node)
    weight = emit.weight(node.args[1])
    leaves = emit.flat(node.result)
    x, w = emit.operand(source), emit.twice(weight)
    dims = tuple(emit.dim(a) for a in leaves)
    emit.builder.tensor(name, dims)
    # as many channels out as in may be one dim: the weight then has it twice, the first as what is made
    turned = bool(node.arg(6, "transposed", False))
    channels = emit.atoms.leaves(emit.inf.of(node.result)[1])
    first = {} if turned else {a: d for a, d in zip(channels, w.indices, strict=False) if a in emit.leaves(weight)}
    indices = tuple(first.get(a, emit.dim(a)) for a in leaves)
    # a transposed one works at every place of what it reads
    box = union((x.indices if turned else indices, w.indices))
    spatial = tuple(d for d in (*x.indices, *indices) if d not in w.indices and d != "batch")
    kernel = tuple(d for d in w.indices if d not in x.indices and d not in indices)
    made = Operator(
        name, Kind.CONVOLUTION, "dense", (x, w), (Operand(name, indices),), work=matrix_work(box),
        saves=(source,) if emit.builder.tensors[source].role is Role.ACTIVATION else (),
        indivisible=tuple(dict.fromkeys((*spatial, *kernel))),
    )  # fmt: skip
    tensor = emit.remember(emit.builder.append(made), leaves)
    bias = node.arg(2, "bias")
    if isinstance(bias, Value):
        offset = emit.weight(bias)
        tensor = emit.point(f"{name}.biased", "add", (tensor, offset), fusion=f"{name}.bias")
    emit.hold(node.result, tensor)


BLOCKS: Mapping[str, Emission] = {
    "attention": _attention, "indexer": _indexer, "experts": _experts, "routing": _routing,
    "causal_conv1d": _causal_conv, "state_space": _state_space, "gated_delta": _delta, "kimi_delta": _delta,
    "loss": _loss, "group_norm": _group_norm, "convolution": _convolution,
}  # fmt: skip
