"""Linear attention mixers: Gated DeltaNet, Kimi Delta Attention, lightning attention."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from dovetail.documents import Spec
from dovetail.errors import InputError
from dovetail.graph import DerivedSize, LayerBuilder
from dovetail.graph.scan import CHUNK, convolution, linear_attention
from dovetail.models.assembly import Settings, normalise, project
from dovetail.models.limits import Heads, Small, Width

KEYS = ("key_heads", "key_dim")
VALUES = ("key_heads", "key_group", "value_dim")


class GatedDelta(Spec):
    """Gated DeltaNet (Yang et al. 2024): one decay per value head (Qwen3-Next, Qwen3.5)."""

    kind: Literal["gated_delta"]
    """names this mixer"""
    key_heads: Heads
    """heads of queries and keys"""
    value_heads: Heads
    """heads of values, a multiple of key_heads"""
    key_dim: Width
    """width of a query or key head"""
    value_dim: Width
    """width of a value head"""
    conv_kernel: Small = 4
    """tokens the short convolutions see"""
    chunk: Small = 64
    """tokens the scan works on at once"""

    @model_validator(mode="after")
    def _consistent(self) -> GatedDelta:
        if self.value_heads % self.key_heads:
            raise InputError("value_heads", f"{self.value_heads} is no multiple of key_heads", "make it one")
        return self

    def build(self, builder: LayerBuilder, source: str, settings: Settings) -> str:
        """Appends the mixer's operators; returns its output over the residual stream's dims."""
        del settings
        _size(
            builder,
            self.key_heads,
            self.value_heads,
            self.key_dim,
            self.value_dim,
            self.conv_kernel,
            self.chunk,
        )
        heads = VALUES[:-1]
        q = _short_convolution(builder, "query", project(builder, "query", source, KEYS, fusion="qkv"))
        k = _short_convolution(builder, "key", project(builder, "key", source, KEYS, fusion="qkv"))
        v = _short_convolution(builder, "value", project(builder, "value", source, VALUES, fusion="qkv"))
        q = normalise(builder, "query_norm", q, "plain_rms", over=("key_dim",))
        k = normalise(builder, "key_norm", k, "plain_rms", over=("key_dim",))
        beta = builder.elementwise("beta", "sigmoid", project(builder, "beta_logit", source, heads, fusion="qkv"))
        step = project(builder, "decay_step", source, heads, fusion="qkv")
        decay = _log_decay(builder, step, heads, heads)
        mixed = linear_attention(builder, "attention", "gated_delta", (q, k, v, decay, beta), scale=self.key_dim**-0.5)
        mixed = normalise(builder, "attention_norm", mixed, "rms", over=("value_dim",))
        gate = project(builder, "gate", source, VALUES, fusion="qkv")
        gated = builder.elementwise("gated", "swiglu", gate, mixed)
        return project(builder, "output", gated, ("hidden",), over=VALUES)


class KimiDelta(Spec):
    """Kimi Delta Attention: a decay per channel of the key (Kimi Linear report, eq. 1)."""

    kind: Literal["kimi_delta"]
    """names this mixer"""
    heads: Heads
    """heads of queries, keys and values"""
    head_dim: Width
    """width of a head"""
    conv_kernel: Small = 4
    """tokens the short convolutions see"""
    full_rank_gate: bool = False
    """the output gate is one projection instead of two through head_dim"""
    chunk: Small = 64
    """tokens the scan works on at once"""

    def build(self, builder: LayerBuilder, source: str, settings: Settings) -> str:
        """Appends the mixer's operators; returns its output over the residual stream's dims."""
        del settings
        _size(builder, self.heads, self.heads, self.head_dim, self.head_dim, self.conv_kernel, self.chunk)
        builder.size("rank", self.head_dim)
        values = ("key_heads", "value_dim")
        q = _short_convolution(builder, "query", project(builder, "query", source, KEYS, fusion="qkv"))
        k = _short_convolution(builder, "key", project(builder, "key", source, KEYS, fusion="qkv"))
        v = _short_convolution(builder, "value", project(builder, "value", source, values, fusion="qkv"))
        q = normalise(builder, "query_norm", q, "plain_rms", over=("key_dim",))
        k = normalise(builder, "key_norm", k, "plain_rms", over=("key_dim",))
        beta = builder.elementwise("beta", "sigmoid", project(builder, "beta_logit", source, ("key_heads",)))
        low = project(builder, "decay_latent", source, ("rank",))
        step = project(builder, "decay_step", low, KEYS, over=("rank",))
        decay = _log_decay(builder, step, KEYS, ("key_heads",))
        mixed = linear_attention(builder, "attention", "gated_delta", (q, k, v, decay, beta), scale=self.head_dim**-0.5)
        mixed = normalise(builder, "attention_norm", mixed, "rms", over=("value_dim",))
        gated = builder.elementwise("gated", "sigmoid_gate", self._gate(builder, source, values), mixed)
        return project(builder, "output", gated, ("hidden",), over=values)

    def _gate(self, builder: LayerBuilder, source: str, values: tuple[str, ...]) -> str:
        if self.full_rank_gate:
            return project(builder, "gate", source, values)
        low = project(builder, "gate_latent", source, ("rank",))
        return project(builder, "gate", low, values, over=("rank",))


class Lightning(Spec):
    """Lightning attention (MiniMax-01 report, section 2.2): fixed decays per head, no softmax."""

    kind: Literal["lightning"]
    """names this mixer"""
    heads: Heads
    """heads of queries, keys and values"""
    head_dim: Width
    """width of a head"""
    chunk: Small = 256
    """tokens the scan works on at once"""

    def build(self, builder: LayerBuilder, source: str, settings: Settings) -> str:
        """Appends the mixer's operators; returns its output over the residual stream's dims."""
        del settings
        _size(builder, self.heads, self.heads, self.head_dim, self.head_dim, 1, self.chunk)
        values = ("key_heads", "value_dim")
        parts: list[str] = []
        for name, dims in (("query", KEYS), ("key", KEYS), ("value", values)):
            projected = project(builder, name, source, dims, fusion="qkv")
            parts.append(builder.elementwise(f"{name}_silu", "silu", projected))
        decay = builder.constant("decay", ("key_heads",))
        mixed = linear_attention(builder, "attention", "decay", (*parts, decay))
        mixed = normalise(builder, "attention_norm", mixed, "rms", over=values)
        gate = project(builder, "gate", source, values)
        gated = builder.elementwise("gated", "sigmoid_gate", gate, mixed)
        return project(builder, "output", gated, ("hidden",), over=values)


def _size(
    builder: LayerBuilder,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    kernel: int,
    chunk: int,
) -> None:
    builder.size("key_heads", key_heads)
    builder.size("key_group", value_heads // key_heads)
    builder.size("key_dim", key_dim)
    builder.size("value_dim", value_dim)
    builder.size("conv_kernel", kernel)
    builder.size(CHUNK, DerivedSize(("seq",), at_most=chunk))


def _short_convolution(builder: LayerBuilder, name: str, source: str) -> str:
    channels = builder.tensors[source].dims[2:]
    weight = builder.weight(f"{name}_conv.weight", (*channels, "conv_kernel"))
    mixed = convolution(builder, f"{name}_conv", source, weight, "conv_kernel")
    return builder.elementwise(f"{name}_silu", "silu", mixed)


def _log_decay(builder: LayerBuilder, step: str, bias: tuple[str, ...], rate: tuple[str, ...]) -> str:
    offset = builder.weight("decay_bias", bias)
    scale = builder.weight("decay_rate", rate)
    return builder.elementwise("log_decay", "log_decay", step, offset, scale)
