"""Layers to price: a model of one block, laid out, with the seconds of each of its operators on a chip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail import hardware
from dovetail.arrays import Floats
from dovetail.cost.operators import ChipUnits, PlacedWork, kernel_counts, local_sizes, operator_seconds
from dovetail.cost.shapes import Gemm, gemm_of
from dovetail.cost.units import chip_units
from dovetail.documents import validate
from dovetail.graph import HALF_PRECISION, LayerGraph, Operator
from dovetail.layout import PlacedLayer, PlacedOperator, Strategy, place_layer
from dovetail.layout.mesh import Mesh
from dovetail.models import Model, model_graph

MIXER = {"kind": "attention", "heads": 16, "kv_heads": 16, "head_dim": 128}
EXPERTS = {"kind": "mixture", "experts": 16, "top_k": 4, "size": 768}
BIASED = {
    "mixer": MIXER | {"rotary": False, "qkv_bias": True, "output_bias": True},
    "feed_forward": {"kind": "dense", "size": 8192, "activation": "gelu", "bias": True},
    "norm": "layer",
}


def layers(*, fused: bool = True, dropout: bool = False, hidden: int = 2048, **block: Any) -> Mapping[str, LayerGraph]:
    """Embedding, block and head of a Llama of one block, that varied."""
    parts = {"mixer": MIXER, "feed_forward": {"kind": "dense", "size": 8192}} | block
    document = {
        "name": "one-block", "hidden": hidden, "vocab": 32000, "dropout": dropout,
        "blocks": {"block": parts}, "layers": [{"blocks": ["block"]}],
    }  # fmt: skip
    return model_graph(validate(Model, document, "one-block"), fused_attention=fused).layers


def units(chip: str = "h100-sxm", precision: str = "bf16") -> ChipUnits:
    """A chip of the catalogue."""
    return chip_units(hardware.chip(chip), precision)


class Priced:
    """A layer of one microbatch on a chip, cut over some tensor- or expert-parallel chips."""

    def __init__(
        self,
        graph: LayerGraph,
        chip: ChipUnits | None = None,
        *,
        batch: int = 1,
        seq: int = 2048,
        tensor: int = 1,
        experts: int = 1,
    ) -> None:
        mesh = Mesh(tensor=("t",) if tensor > 1 else (), data=("e",), expert=("e",) if experts > 1 else ())
        self.chip = chip or units()
        self.placed: PlacedLayer = place_layer(graph, Strategy(mesh))
        self.axes = {"t": tensor, "e": experts}
        self.sizes = graph.resolve(batch=batch * experts, seq=seq)
        self.tensors = self.placed.tensors

    @property
    def operators(self) -> dict[str, Operator]:
        """By name, forward and backward."""
        return {p.operator.name: p.operator for p in self._every}

    @property
    def _every(self) -> tuple[PlacedOperator, ...]:
        return (*self.placed.forward, *self.placed.backward)

    @property
    def all_seconds(self) -> dict[str, Floats]:
        """Operator → seconds on one chip or several."""
        found: dict[str, Floats] = {}
        for operators in (self.placed.forward, self.placed.backward):
            found |= operator_seconds(self._work(operators), self.chip)
        return found

    @property
    def seconds(self) -> dict[str, float]:
        """Operator → seconds."""
        return {name: float(s) for name, s in self.all_seconds.items()}

    @property
    def kernels(self) -> dict[str, float]:
        """Operator → kernels."""
        return {n: float(k) for n, k in kernel_counts(self._work(self._every)).items()}

    def _work(self, operators: Sequence[PlacedOperator]) -> PlacedWork:
        return PlacedWork(operators, self.tensors, self.sizes, self.axes, HALF_PRECISION)

    def gemm(self, name: str) -> Gemm:
        """A product as one chip sees it."""
        placed = next(p for p in self._every if p.operator.name == name)
        return gemm_of(placed.operator, local_sizes(placed, self.sizes, self.axes))
