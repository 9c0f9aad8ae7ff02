"""Multi-head latent attention: queries, keys and values expanded from low-rank latents."""

from __future__ import annotations

from typing import Literal

from dovetail.documents import Spec
from dovetail.graph import DerivedSize, LayerBuilder, Mask, Span
from dovetail.models.assembly import NormKind, Settings, normalise, project
from dovetail.models.attention import Indexer, attend, index_keys
from dovetail.models.limits import Heads, Width


class LatentAttention(Spec):
    """DeepSeek-V2 report, section 2.1: a part of each head carries positions, the rest comes from a latent."""

    kind: Literal["latent_attention"]
    """names this mixer"""
    heads: Heads
    """heads of queries, keys and values"""
    query_rank: Width | None = None
    """width of the query latent; left out: queries come straight from the stream"""
    kv_rank: Width
    """width of the latent of keys and values"""
    nope_dim: Width
    """part of a head without positions"""
    rope_dim: Width
    """part of a head with positions, shared by all heads of a key"""
    value_dim: Width
    """width of a value head"""
    rotary: bool = True
    """rotary positions"""
    bias: bool = False
    """on the projections from and to the stream"""
    norm: NormKind = "rms"
    """of the latents"""
    indexer: Indexer | None = None
    """chooses the keys each query attends to"""

    def build(self, builder: LayerBuilder, source: str, settings: Settings) -> str:
        """Appends the attention's operators; returns its output over the residual stream's dims."""
        self._size(builder)
        heads = ("kv_heads",)
        latent, over = source, "hidden"
        if self.query_rank is not None:
            builder.size("query_rank", self.query_rank)
            latent = project(builder, "query_latent", source, ("query_rank",), bias=self.bias)
            latent = normalise(builder, "query_latent_norm", latent, self.norm, over=("query_rank",))
            over = "query_rank"
        content = project(builder, "query_content", latent, (*heads, "nope_dim"), over=(over,), fusion="query")
        positional = project(builder, "query_positional", latent, (*heads, "rope_dim"), over=(over,), fusion="query")
        q = self._with_positions(builder, "query", content, positional)
        k, v = self._keys_values(builder, source)
        choice = index_keys(self.indexer, builder, source, latent) if self.indexer is not None else None
        scale = (self.nope_dim + self.rope_dim) ** -0.5
        mixed = attend(builder, (q, k, v), self.mask, settings, scale=scale, choice=choice)
        return project(builder, "output", mixed, ("hidden",), over=(*heads, "value_dim"), bias=self.bias)

    @property
    def mask(self) -> Mask:
        """Which keys each query sees."""
        return Mask(True) if self.indexer is None else Mask(True, Span.TOP_K, self.indexer.top_k)

    def _size(self, builder: LayerBuilder) -> None:
        builder.size("kv_heads", self.heads)
        builder.size("kv_rank", self.kv_rank)
        builder.size("nope_dim", self.nope_dim)
        builder.size("rope_dim", self.rope_dim)
        builder.size("head_dim", self.nope_dim + self.rope_dim)
        builder.size("value_dim", self.value_dim)
        builder.size("key_seq", DerivedSize(("seq",)))

    def _keys_values(self, builder: LayerBuilder, source: str) -> tuple[str, str]:
        latent = project(builder, "kv_latent", source, ("kv_rank",), bias=self.bias, fusion="kv_down")
        positional = project(builder, "key_positional", source, ("rope_dim",), bias=self.bias, fusion="kv_down")
        latent = normalise(builder, "kv_latent_norm", latent, self.norm, over=("kv_rank",))
        content = project(builder, "key_content", latent, ("kv_heads", "nope_dim"), over=("kv_rank",), fusion="kv_up")
        value = project(builder, "value", latent, ("kv_heads", "value_dim"), over=("kv_rank",), fusion="kv_up")
        return self._with_positions(builder, "key", content, positional), value

    def _with_positions(self, builder: LayerBuilder, name: str, content: str, positional: str) -> str:
        if self.rotary:
            positional = builder.elementwise(f"{name}_rotary", "rotary", positional, fusion="rotary")
        dims = (*builder.tensors[content].dims[:-1], "head_dim")
        along = ("nope_dim", "rope_dim", "head_dim")
        return builder.movement(name, "concatenate", (content, positional), dims, along=along)
