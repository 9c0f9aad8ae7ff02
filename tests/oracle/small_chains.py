"""Random layers: a few operators in a row, on tensors and weights that may be used again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from dovetail.graph import DerivedSize, LayerBuilder, LayerGraph, Mask, Role, Span

Draw = Callable[..., Any]

TOKENS = ("batch", "seq")
WIDTHS = ("narrow", "wide")
SIZES = {"narrow": 2, "wide": 3, "key_seq": DerivedSize(("seq",))}

#: Smooth functions only: finite differences across a kink measure nothing.
UNARY = (
    "silu",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "sigmoid",
    "tanh",
    "softplus",
    "dropout",
    "rotary",
    "scale",
    "softcap",
)
BINARY = ("add", "multiply", "swiglu", "geglu", "geglu_tanh", "sigmoid_gate")
MASKS = (
    None,
    Mask(causal=True),
    Mask(causal=True, span=Span.WINDOW, width=2),
    Mask(causal=True, span=Span.CHUNK, width=2),
)


class Chain:
    """A layer under construction, its streams over (batch, seq, width), and the draws that shape it."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.builder = LayerBuilder("chain", SIZES)
        self.streams = [self.builder.input(f"x.{width}", (*TOKENS, width)) for width in WIDTHS]

    def stream(self, width: str | None = None) -> str:
        """Any stream so far, or any of this width."""
        fitting = [s for s in self.streams if width in (None, self.width(s))]
        return self.draw(st.sampled_from(fitting))

    def width(self, stream: str) -> str:
        return self.builder.tensors[stream].dims[-1]

    def weight(self, dims: tuple[str, ...]) -> str:
        """A new weight, or one of these dims that is in use already."""
        fitting = [t.name for t in self.builder.tensors.values() if t.role is Role.WEIGHT and t.dims == dims]
        chosen = self.draw(st.sampled_from([*fitting, ""]))
        return chosen or self.builder.weight(f"w{len(self.builder.tensors)}", dims)

    def step(self, name: str) -> None:
        kind = self.draw(st.sampled_from(list(STEPS)))
        self.streams.append(STEPS[kind](self, name, self.stream()))

    def build(self) -> LayerGraph:
        """The layer; it hands on what nothing in it reads, and perhaps a stream more."""
        graph = self.builder.build(*self.streams)
        read = {o.tensor for operator in graph.operators for o in operator.inputs}
        ends = [s for s in self.streams if s not in read]
        extra = self.draw(st.sampled_from([*self.streams, ""]))
        return replace(graph, outputs=tuple(s for s in self.streams if s in ends or s == extra))


def _project(chain: Chain, name: str, source: str) -> str:
    width = chain.draw(st.sampled_from(WIDTHS))
    if width == chain.width(source):
        return _unary(chain, name, source)
    weight = chain.weight((chain.width(source), width))
    return chain.builder.contraction(name, source, weight, (*TOKENS, width))


def _unary(chain: Chain, name: str, source: str) -> str:
    attributes = {"scale": -0.6, "cap": 1.5}
    return chain.builder.elementwise(name, chain.draw(st.sampled_from(UNARY)), source, attributes=attributes)


def _binary(chain: Chain, name: str, source: str) -> str:
    function = chain.draw(st.sampled_from(BINARY))
    return chain.builder.elementwise(name, function, source, chain.stream(chain.width(source)))


def _vector(chain: Chain, name: str, source: str) -> str:
    weight = chain.weight((chain.width(source),))
    return chain.builder.elementwise(name, chain.draw(st.sampled_from(BINARY)), source, weight)


def _per_token(chain: Chain, name: str, source: str) -> str:
    """A number per token, from a product of streams, that gates a stream."""
    width = chain.width(source)
    number = chain.builder.contraction(f"{name}.number", source, chain.stream(width), TOKENS)
    dims = (*TOKENS, width)
    return chain.builder.elementwise(name, chain.draw(st.sampled_from(BINARY)), number, chain.stream(width), dims=dims)


def _norm(chain: Chain, name: str, source: str) -> str:
    function = chain.draw(st.sampled_from(("rms", "layer")))
    dims = (chain.width(source),)
    weights = tuple(chain.weight(dims) for _ in range(chain.draw(st.integers(0, 2))))
    return chain.builder.normalisation(name, function, source, dims, weights, epsilon=0.1)


def _mix(chain: Chain, name: str, source: str) -> str:
    """Attention written out: the streams of queries, keys and values may be one."""
    b, mask = chain.builder, chain.draw(st.sampled_from(MASKS))
    key = b.use(chain.stream(chain.width(source)), seq="key_seq")
    scores = b.contraction(f"{name}.scores", source, key, (*TOKENS, "key_seq"), mask=mask)
    p = b.softmax(f"{name}.p", scores, "key_seq", mask=mask, scale=0.4)
    value = chain.stream()
    return b.contraction(name, p, b.use(value, seq="key_seq"), (*TOKENS, chain.width(value)), mask=mask)


STEPS = {
    "project": _project,
    "unary": _unary,
    "binary": _binary,
    "vector": _vector,
    "per token": _per_token,
    "norm": _norm,
    "mix": _mix,
}


@st.composite
def chains(draw: Draw) -> LayerGraph:
    chain = Chain(draw)
    for number in range(chain.draw(st.integers(1, 6))):
        chain.step(f"t{number}")
    return chain.build()
