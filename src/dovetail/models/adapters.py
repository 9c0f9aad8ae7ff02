"""LoRA and QLoRA: which linear layers get adapters, of which rank, and how the frozen weights are stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.graph import LayerGraph, ModelGraph, verify_chain
from dovetail.graph.low_rank import adapted, linear_layers
from dovetail.models.model import EMBEDDING, HEAD

Target = Literal["q", "k", "v", "o", "gate", "up", "down"]
"""linear layers of a block: projections to queries, keys and values, of attention's output, and of a feed-forward"""

#: How the names of a target's linear layers end, or what they are.
_ENDINGS: dict[str, tuple[str, ...]] = {"gate": (".gate",), "up": (".up",), "down": (".down",)}
_NAMES: dict[str, tuple[str, ...]] = {
    "q": ("query", "query_latent", "query_content", "query_positional"),
    "k": ("key", "kv_latent", "key_content", "key_positional"),
    "v": ("value",),
    "o": ("output",),
}


class Adapters(Spec):
    """LoRA: small trained products beside linear layers of the blocks, all of the model's own weights frozen."""

    rank: Annotated[int, Field(ge=1, le=2**16)]
    """width between the two products of an adapter"""
    targets: Annotated[tuple[Target, ...], Field(strict=False, min_length=1, max_length=7)] | Literal["all"] = (
        *("q", "k", "v", "o"),
    )
    """which linear layers have one; all: every linear layer of the blocks but routers"""
    base: Literal["bf16", "nf4"] = "bf16"
    """how frozen weights are stored; nf4: those of the blocks' linear layers in 4 bits (QLoRA), others as in bf16"""

    @property
    def train_kind(self) -> Literal["lora", "qlora"]:
        """What training with these adapters is called."""
        return "qlora" if self.base == "nf4" else "lora"

    @property
    def words(self) -> str:
        """The same for people, with its rank and where the adapters are."""
        where = "all linear layers" if self.targets == "all" else ", ".join(self.targets)
        return f"{'QLoRA' if self.base == 'nf4' else 'LoRA'} of rank {self.rank} on {where}"

    def document(self) -> dict[str, object]:
        """The fields as a plan file has them."""
        return self.model_dump(mode="json")

    def of(self, layer: LayerGraph) -> tuple[str, ...]:
        """The linear layers of a layer that get an adapter."""
        names = [name for name in linear_layers(layer) if name not in ("router", "merge")]
        if self.targets == "all":
            return tuple(names)
        return tuple(name for name in names if any(_is(name, target) for target in self.targets))

    def check(self, graph: ModelGraph) -> None:
        """Refuses a target that the model has no linear layer for."""
        if self.targets == "all":
            return
        names = {name for key in _blocks(graph) for name in linear_layers(graph.layers[key])}
        for target in self.targets:
            if not any(_is(name, target) for name in names):
                has = [each for each in (*_NAMES, *_ENDINGS) if any(_is(name, each) for name in names)]
                fix = f"it should name some of {', '.join(has)}, or be all" if has else "it should be all"
                raise InputError("job: adapters.targets", f"names {target}, which {graph.name} does not have", fix)

    def model(self, graph: ModelGraph) -> ModelGraph:
        """A model with these adapters; embedding and head are frozen."""
        blocks = set(_blocks(graph))
        layers = {
            name: adapted(
                layer,
                self.of(layer) if name in blocks else (),
                self.rank,
                quantized=self.base == "nf4" and name in blocks,
            )
            for name, layer in graph.layers.items()
        }
        return verify_chain(ModelGraph(graph.name, layers, graph.chain))


def _blocks(graph: ModelGraph) -> Iterable[str]:
    return (name for name in graph.layers if name not in (EMBEDDING, HEAD))


def _is(name: str, target: str) -> bool:
    return name in _NAMES.get(target, ()) or name.endswith(_ENDINGS.get(target, ("\0",)))
