"""One small graph or more per kind and function: what the rules of differentiation are checked on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail.graph import DerivedSize, LayerBuilder, LayerGraph, Mask, Role, Span
from dovetail.graph.attention import attention, indexer
from dovetail.graph.function import FUNCTIONS
from dovetail.graph.routing import ExpertGroups, combine, dispatch, routing
from dovetail.graph.scan import CHUNK, convolution, linear_attention, state_space

Case = Callable[[], LayerGraph]
Dims = tuple[str, ...]

SIZES: Mapping[str, int | DerivedSize] = {
    "key_seq": DerivedSize(("seq",)),
    "heads": 2,
    "group": 3,
    "wide": 4,
    "narrow": 3,
    "joined": 7,
    "kernel": 3,
    "rows": 7,
    "experts": 6,
    "top_k": 2,
    "expert_tokens": DerivedSize(("batch", "seq", "top_k"), ("experts",)),
    "selected": DerivedSize(("seq",), at_most=3),
    CHUNK: 2,
}
TOKENS: Dims = ("batch", "seq")
STREAM: Dims = (*TOKENS, "wide")
PAIRS: Dims = ("seq", "batch", "heads", "group")
KEYS: Dims = (*TOKENS, "heads", "wide")
VALUES: Dims = (*TOKENS, "heads", "group", "narrow")

#: Functions of more than one input.
ARITY = {
    "add": 2, "multiply": 2, "swiglu": 2, "geglu": 2, "geglu_tanh": 2, "reglu": 2, "swiglu_clamped": 2,
    "sigmoid_gate": 2, "log_decay": 3, "pointwise2": 2, "pointwise3": 3,
}  # fmt: skip
ATTRIBUTES = {"scale": {"scale": 0.7}, "softcap": {"cap": 1.5}}


def start(name: str) -> LayerBuilder:
    return LayerBuilder(name, SIZES)


def elementwise(function: str, *operands: Dims) -> Case:
    """The function of inputs over these dims, the first of which are the output's."""

    def case() -> LayerGraph:
        b = start(function)
        names = [b.input(f"x{i}", dims) for i, dims in enumerate(operands)]
        widest = max(operands, key=len)
        return b.build(b.elementwise("y", function, *names, dims=widest, attributes=ATTRIBUTES.get(function)))

    return case


def twice(function: str) -> Case:
    """The function of one tensor in every place."""

    def case() -> LayerGraph:
        b = start(f"{function} twice")
        return b.build(b.elementwise("y", function, *[b.input("x", STREAM)] * ARITY[function]))

    return case


def contraction(left: Dims, right: Dims, out: Dims, *, weight: bool = True) -> Case:
    def case() -> LayerGraph:
        b = start("contraction")
        b.size("seq_", DerivedSize(("seq",)))
        x = b.input("x", left)
        w = b.weight("w", right) if weight else b.input("w", right)
        return b.build(b.contraction("y", x, w, out))

    return case


def self_product() -> LayerGraph:
    """One tensor as both operands, renamed, with pairs outside a window left out."""
    b = start("self product")
    mask = Mask(causal=True, span=Span.WINDOW, width=2)
    x = b.input("x", STREAM)
    scores = b.contraction("scores", x, b.use(x, seq="key_seq"), (*TOKENS, "key_seq"), mask=mask)
    p = b.softmax("p", scores, "key_seq", mask=mask, scale=0.6)
    return b.build(b.contraction("y", p, b.use(x, seq="key_seq"), STREAM, mask=mask))


def with_constant() -> LayerGraph:
    """A constant operand needs no gradient, so nothing is kept for one."""
    b = start("constant")
    y = b.contraction("y", b.input("x", STREAM), b.constant("c", ("wide", "narrow")), (*TOKENS, "narrow"))
    return b.build(b.elementwise("z", "multiply", y, b.constant("d", ("narrow",))))


def norm(function: str, over: Dims, *weights: Dims) -> Case:
    def case() -> LayerGraph:
        b = start(function)
        names = tuple(b.weight(f"w{i}", dims) for i, dims in enumerate(weights))
        return b.build(b.normalisation("y", function, b.input("x", KEYS), over, names, epsilon=0.1))

    return case


def fused(mask: Mask, *, sinks: bool = False, shared: bool = False) -> Case:
    """Grouped queries; keys that may be the values as well."""

    def case() -> LayerGraph:
        b = start("attention")
        q = b.input("q", (*TOKENS, "heads", "group", "wide"))
        k = b.input("k", KEYS)
        v = k if shared else b.input("v", (*TOKENS, "heads", "narrow"))
        b.size("value", 4)
        value = b.use(v, {"seq": "key_seq", "wide": "value"})
        s = b.weight("s", ("heads", "group")) if sinks else None
        return b.build(attention(b, "y", (q, b.use(k, seq="key_seq"), value), mask, scale=0.5, sinks=s))

    return case


def sparse(*, sinks: bool = False, weighted: bool = True) -> Case:
    """Attention to the keys an indexer chose; its own projections get no gradient and keep nothing."""

    def case() -> LayerGraph:
        b = start("sparse attention")
        x = b.input("x", STREAM)
        q = b.contraction("iq", x, b.weight("iq.weight", ("wide", "heads", "narrow")), (*TOKENS, "heads", "narrow"))
        k = b.contraction("ik", x, b.weight("ik.weight", ("wide", "narrow")), (*TOKENS, "narrow"))
        k = b.normalisation("ik.norm", "layer", k, ("narrow",), (b.weight("ik.norm.weight", ("narrow",)),))
        w = None
        if weighted:
            w = b.contraction("iw", x, b.weight("iw.weight", ("wide", "heads")), (*TOKENS, "heads"))
        choice = indexer(b, "index", q, b.use(k, seq="key_seq"), w, Mask(causal=True), "selected")
        mask = Mask(causal=True, span=Span.TOP_K, width=3)
        keys, values = b.input("k", KEYS), b.input("v", (*TOKENS, "heads", "narrow"))
        query = b.contraction("q", x, b.weight("q.weight", ("wide", "heads", "group")), (*TOKENS, "heads", "group"))
        key = b.contraction("kk", keys, b.weight("kk.weight", ("wide", "group")), (*TOKENS, "heads", "group"))
        s = b.weight("s", ("heads",)) if sinks else None
        operands = (query, b.use(key, seq="key_seq"), b.use(values, seq="key_seq"))
        return b.build(attention(b, "y", operands, mask, scale=0.5, sinks=s, choice=choice))

    return case


def scan(function: str, decay: Dims, *, constant: bool = False) -> Case:
    """Linear attention with grouped value heads; gated_delta also takes beta."""

    def case() -> LayerGraph:
        b = start(function)
        q, k, v = b.input("q", KEYS), b.input("k", KEYS), b.input("v", VALUES)
        rate = b.constant("decay", decay) if constant else b.input("rate", decay)
        if function == "decay":
            return b.build(linear_attention(b, "y", function, (q, k, v, rate), scale=0.8))
        log_decay = b.elementwise("g", "log_decay", rate, b.weight("bias", decay[2:]), b.weight("a", ("heads",)))
        beta = b.elementwise("beta", "sigmoid", b.input("b", VALUES[:-1]))
        return b.build(linear_attention(b, "y", function, (q, k, v, log_decay, beta), scale=0.8))

    return case


def ssd() -> LayerGraph:
    b = start("ssd")
    heads = ("heads", "group")
    x, b_, c = b.input("x", VALUES), b.input("b", KEYS), b.input("c", KEYS)
    dt = b.elementwise("dt", "softplus", b.input("step", (*TOKENS, *heads)))
    return b.build(state_space(b, "y", (x, dt, b.weight("a", heads), b_, c, b.weight("d", heads))))


def causal_convolution() -> LayerGraph:
    b = start("convolution")
    return b.build(convolution(b, "y", b.input("x", KEYS), b.weight("w", ("heads", "wide", "kernel")), "kernel"))


def lookup(ids: Dims, table: Dims) -> Case:
    def case() -> LayerGraph:
        b = start("lookup")
        index = b.input("ids", ids, Role.INDEX)
        return b.build(b.embedding("y", b.weight("table", table), index, (*ids, *table[1:])))

    return case


def route(function: str, *, renormalise: bool, bias: bool = False, groups: int = 1) -> Case:
    """Gates by themselves; a bias may be a constant or a weight, and gets no gradient as either."""

    def case() -> LayerGraph:
        b = start(function)
        declare = b.constant if renormalise else b.weight
        steer = declare("bias", ("experts",)) if bias else None
        logits = b.input("logits", (*TOKENS, "experts"))
        gates, _ = routing(
            b, "y", function, logits, "experts", bias=steer, renormalise=renormalise, groups=ExpertGroups(groups)
        )
        return b.build(gates)

    return case


def mixture() -> LayerGraph:
    """Tokens to experts with biases and back: padding must leave no trace."""
    b = start("mixture")
    x = b.input("x", STREAM)
    gates, choice = routing(b, "gates", "softmax", b.input("logits", (*TOKENS, "experts")), "experts", renormalise=True)
    slots = ("experts", "expert_tokens")
    tokens = dispatch(b, "dispatch", x, choice, "experts")
    hidden = b.contraction("up", tokens, b.weight("w", ("experts", "wide", "narrow")), (*slots, "narrow"))
    hidden = b.elementwise("biased", "add", hidden, b.weight("bias", ("experts", "narrow")))
    scales = b.embedding("scales", b.weight("scale", ("experts",)), choice, (*TOKENS, "top_k"))
    gates = b.elementwise("scaled", "multiply", gates, scales)
    return b.build(combine(b, "y", hidden, gates, choice, (*TOKENS, "narrow")))


def concatenate() -> LayerGraph:
    """The second part lacks a dim and is repeated along it."""
    b = start("concatenate")
    parts = (b.input("x", KEYS), b.input("y", (*TOKENS, "narrow")))
    along = ("wide", "narrow", "joined")
    return b.build(b.movement("z", "concatenate", parts, (*TOKENS, "heads", "joined"), along))


def sliced() -> LayerGraph:
    b = start("slice")
    return b.build(b.movement("y", "slice", (b.input("x", STREAM),), (*TOKENS, "narrow"), ("wide", "narrow")))


def loss() -> LayerGraph:
    b = start("loss")
    logits, labels = b.input("logits", (*TOKENS, "rows")), b.input("labels", TOKENS, Role.INDEX)
    return b.build(b.loss("loss", logits, labels, "rows"))


def softmax() -> LayerGraph:
    b = start("softmax")
    return b.build(b.softmax("y", b.input("x", KEYS), "heads", scale=1.4))


def residual() -> LayerGraph:
    """One tensor feeds two operators, a third hands it on; the layer returns its input as well."""
    b = start("residual")
    x = b.input("x", STREAM)
    y = b.elementwise("y", "add", x, b.elementwise("s", "silu", x))
    return b.build(b.elementwise("z", "add", y, x), x)


CASES: Mapping[str, Case] = {
    **{f"elementwise {f}": elementwise(f, *[STREAM] * ARITY.get(f, 1)) for f in FUNCTIONS},
    **{f"elementwise {f} with a vector": elementwise(f, STREAM, *[("wide",)] * (n - 1)) for f, n in ARITY.items()},
    **{f"elementwise {f} of a vector": elementwise(f, *[TOKENS] * (n - 1), STREAM) for f, n in ARITY.items()},
    **{f"elementwise {f} twice": twice(f) for f in ARITY},
    "contraction": contraction(STREAM, ("wide", "narrow"), (*TOKENS, "narrow")),
    "contraction of three dims": contraction(KEYS, ("narrow", "wide", "heads"), ("narrow", *TOKENS)),
    "contraction to a scale": contraction(STREAM, ("wide",), TOKENS),
    "contraction batched": contraction(KEYS, PAIRS, ("heads", "wide", "group"), weight=False),
    "contraction outer": contraction(TOKENS, ("wide",), ("wide", *TOKENS)),
    "contraction with itself": self_product,
    "contraction with a constant": with_constant,
    "rms": norm("rms", ("wide",)),
    "rms weighted": norm("rms", ("wide",), ("wide",)),
    "rms with bias": norm("rms", ("wide",), ("wide",), ("wide",)),
    "rms over two dims": norm("rms", ("heads", "wide"), ("wide", "heads")),
    "rms with weights per head": norm("rms", ("wide",), ("heads", "wide")),
    "layer": norm("layer", ("wide",)),
    "layer weighted": norm("layer", ("wide",), ("wide",)),
    "layer with bias": norm("layer", ("heads", "wide"), ("heads", "wide"), ("wide", "heads")),
    "softmax": softmax,
    "attention": fused(Mask(causal=False)),
    "attention causal": fused(Mask(causal=True)),
    "attention window": fused(Mask(causal=True, span=Span.WINDOW, width=2), sinks=True),
    "attention chunk": fused(Mask(causal=True, span=Span.CHUNK, width=2)),
    "attention keys are values": fused(Mask(causal=True), shared=True, sinks=True),
    "attention sparse": sparse(),
    "attention sparse, heads alike": sparse(weighted=False),
    "attention sparse with sinks": sparse(sinks=True),
    "gated_delta": scan("gated_delta", VALUES[:-1]),
    "gated_delta per channel": scan("gated_delta", KEYS),
    "decay": scan("decay", ("heads",), constant=True),
    "decay with a gradient": scan("decay", VALUES[:-1]),
    "ssd": ssd,
    "convolution": causal_convolution,
    "lookup": lookup(TOKENS, ("rows", "wide")),
    "lookup of positions": lookup(("seq",), ("rows", "wide")),
    "lookup of numbers": lookup((*TOKENS, "top_k"), ("rows",)),
    **{
        f"routing {f}, renormalise {r}": route(f, renormalise=r, bias=f in ("sigmoid", "top_k_softmax"))
        for f in ("softmax", "sigmoid", "top_k_softmax")
        for r in (False, True)
    },
    "routing within a group": route("sigmoid", renormalise=True, bias=True, groups=3),
    "mixture": mixture,
    "concatenate": concatenate,
    "slice": sliced,
    "loss": loss,
    "residual": residual,
}  # fmt: skip
