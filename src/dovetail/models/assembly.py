"""The pieces every layer is assembled from: projections, normalisations, residual additions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Literal

from dovetail.frozen import frozen
from dovetail.graph import Element, LayerBuilder

NormKind = Literal["rms", "layer", "layer_no_bias", "plain_rms", "plain_layer"]

#: The residual stream between layers.
STREAM = ("batch", "seq", "hidden")

GATED = {"swiglu", "geglu", "geglu_tanh", "reglu", "swiglu_clamped"}
Activation = Literal[
    "gelu", "gelu_tanh", "quick_gelu", "silu", "relu", "relu2",
    "swiglu", "geglu", "geglu_tanh", "reglu", "swiglu_clamped",
]  # fmt: skip


@frozen
class Settings:
    """What the graph of every layer depends on, besides the layer's own description."""

    #: chosen by the job: one attention kernel that stores no scores, or separate matmul, softmax and dropout
    fused_attention: bool = True
    #: set by the model: trained with dropout
    dropout: bool = False


@frozen
class ProjectionWeights:
    """What is special about the weights of a linear layer."""

    #: dims with one weight each: experts
    batch: tuple[str, ...] = ()
    #: the part of the weight one token uses
    active_share: Fraction = Fraction(1)
    #: element type of the result
    element: Element = Element.COMPUTE


PLAIN = ProjectionWeights()


def project(
    builder: LayerBuilder,
    name: str,
    source: str,
    out: tuple[str, ...],
    *,
    over: tuple[str, ...] = ("hidden",),
    bias: bool = False,
    fusion: str = "",
    weights: ProjectionWeights = PLAIN,
) -> str:
    """A linear layer: `source` loses the dims `over` and gains `out`."""
    batch, share, element = weights.batch, weights.active_share, weights.element
    weight = builder.weight(f"{name}.weight", (*batch, *over, *out), active_share=share)
    outer = tuple(d for d in builder.tensors[source].dims if d not in over)
    result = builder.contraction(name, source, weight, (*outer, *out), fusion=fusion, element=element)
    if bias:
        offset = builder.weight(f"{name}.bias", (*batch, *out), active_share=share)
        result = builder.elementwise(f"{name}.biased", "add", result, offset, element=element, fusion=f"{name}.bias")
    return result


def normalise(
    builder: LayerBuilder,
    name: str,
    source: str,
    kind: NormKind,
    over: tuple[str, ...] = ("hidden",),
    weighted: tuple[str, ...] | None = None,
) -> str:
    """A normalisation over dims, with the weights its kind has (over `weighted` where that differs)."""
    dims = over if weighted is None else weighted
    function = "rms" if kind.endswith("rms") else "layer"
    weights: list[str] = []
    if not kind.startswith("plain"):
        weights.append(builder.weight(f"{name}.weight", dims))
    if kind == "layer":
        weights.append(builder.weight(f"{name}.bias", dims))
    return builder.normalisation(name, function, source, over, tuple(weights))


def add(builder: LayerBuilder, name: str, left: str, right: str) -> str:
    """A residual addition."""
    return builder.elementwise(name, "add", left, right)


def drop(builder: LayerBuilder, name: str, source: str, settings: Settings) -> str:
    """Dropout where the model is trained with it."""
    return builder.elementwise(name, "dropout", source) if settings.dropout else source


def activate(builder: LayerBuilder, prefix: str, activation: str, up: Callable[[str], str]) -> str:
    """The nonlinearity of a feed-forward: of `up` alone, or `up` gated by `gate`, each made by the projection `up`."""
    parts = ("gate", "up") if activation in GATED else ("up",)
    return builder.elementwise(f"{prefix}.activation", activation, *[up(part) for part in parts])
