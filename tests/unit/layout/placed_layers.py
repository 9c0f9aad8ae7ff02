"""Layers to lay out, and what a derived layout sends, in the words of the papers."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dovetail.documents import validate
from dovetail.graph import HALF_PRECISION, LayerGraph, Operator
from dovetail.graph.size import Size, divided
from dovetail.layout import Collective, CollectivePhase, PlacedLayer, Strategy, place_layer
from dovetail.models import Model, model_graph

Sizes = Mapping[str, int]
#: Kind, axes, bytes.
Sent = tuple[str, tuple[str, ...], Fraction]


def exact(size: Size) -> Fraction:
    """A size of one shape."""
    assert isinstance(size, int | Fraction)
    return Fraction(size)


def gpt(hidden: int, heads: int, *, fused: bool = False) -> Mapping[str, LayerGraph]:
    """Layers of a GPT with dropout and every bias, as Korthikanti et al. 2022 count it."""
    mixer = {
        "kind": "attention", "heads": heads, "kv_heads": heads, "head_dim": hidden // heads,
        "rotary": False, "qkv_bias": True, "output_bias": True,
    }  # fmt: skip
    feed_forward = {"kind": "dense", "size": 4 * hidden, "activation": "gelu", "bias": True}
    return layers({"mixer": mixer, "feed_forward": feed_forward, "norm": "layer"}, hidden, fused=fused, dropout=True)


def llama(hidden: int = 64, heads: int = 8, kv_heads: int = 4, **block: Any) -> Mapping[str, LayerGraph]:
    """Layers of a Llama, its block varied."""
    mixer = {"kind": "attention", "heads": heads, "kv_heads": kv_heads, "head_dim": hidden // heads}
    return layers({"mixer": mixer, "feed_forward": {"kind": "dense", "size": 3 * hidden}, **block}, hidden)


def mixture(hidden: int = 64, experts: int = 16, top_k: int = 4, **options: Any) -> Mapping[str, LayerGraph]:
    """Layers of a Llama whose feed-forward is a mixture."""
    feed_forward = {"kind": "mixture", "experts": experts, "top_k": top_k, "size": 24, **options}
    return llama(hidden, feed_forward=feed_forward)


def layers(
    block: Mapping[str, Any], hidden: int, *, vocab: int = 1024, fused: bool = True, dropout: bool = False
) -> Mapping[str, LayerGraph]:
    """Embedding, block and head of a model of one block."""
    document = {
        "name": "one-block", "hidden": hidden, "vocab": vocab, "dropout": dropout,
        "blocks": {"block": block}, "layers": [{"blocks": ["block"]}],
        "head": {"norm": block.get("norm", "rms")},
    }  # fmt: skip
    return model_graph(validate(Model, document, "one-block"), fused_attention=fused).layers


class Traffic:
    """The collectives of a layer under a strategy, for a batch, a sequence and axes of these sizes."""

    def __init__(self, graph: LayerGraph, strategy: Strategy, axis_sizes: Sizes, *, batch: int, seq: int) -> None:
        self.placed: PlacedLayer = place_layer(graph, strategy)
        self.axis_sizes = axis_sizes
        self.sizes = graph.resolve(batch=batch, seq=seq)

    def bytes(self, collective: Collective) -> Fraction:
        """Bytes at two per number."""
        return exact(collective.bytes(self.sizes, self.axis_sizes, HALF_PRECISION))

    def of(self, phase: CollectivePhase) -> list[Sent]:
        """Kind, axes and bytes of each collective, in a canonical order."""
        found = [c for c in self.placed.collectives if c.phase is phase]
        return sorted((str(c.kind), c.axes, self.bytes(c)) for c in found)

    @property
    def forward(self) -> list[Sent]:
        """Of a microbatch's forward."""
        return self.of(CollectivePhase.FORWARD)

    @property
    def backward(self) -> list[Sent]:
        """Of a microbatch's backward."""
        return self.of(CollectivePhase.BACKWARD)

    @property
    def step(self) -> list[Sent]:
        """Once per step."""
        return self.of(CollectivePhase.STEP)


def local_sizes(operator: Operator, cuts: Mapping[str, str], sizes: Mapping[str, Size], axes: Sizes) -> dict[str, Size]:
    """The sizes one chip sees: dims cut, and dims that tokens of a cut dim are regrouped into."""
    local = dict(sizes)
    for axis, dim in cuts.items():
        for cut in {dim, *(b for a, b in operator.regroups if a == dim)} & set(local):
            local[cut] = divided(local[cut], axes[axis])
    return local
