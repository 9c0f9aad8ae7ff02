"""Models of several fields, written plainly in PyTorch alone: what somebody brings who traces a module.

Each takes its sizes as arguments, small ones unless told, and makes inputs that fit it; `build` puts the sizes of
a published model in their place. No size of a small model equals another it could be mistaken for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


def _tokens(vocab: int, *shape: int, device: str) -> torch.Tensor:
    return torch.randint(vocab, shape, device=device)


def _split(x: torch.Tensor, heads: int) -> torch.Tensor:
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def _merge(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


class CausalAttention(nn.Module):
    """Attention written out: scores, mask, softmax, values."""

    mask: torch.Tensor

    def __init__(self, hidden: int, heads: int, positions: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)
        self.register_buffer("mask", torch.tril(torch.ones(positions, positions)).bool(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        query, key, value = (_split(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        return self.proj(_merge(scores.softmax(dim=-1) @ value))


class GptBlock(nn.Module):
    """Attention and a GELU feed-forward, each behind a norm."""

    def __init__(self, hidden: int, heads: int, positions: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden)
        self.attention = CausalAttention(hidden, heads, positions)
        self.norm2 = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """A GPT with learned positions and one table for tokens and logits."""

    def __init__(
        self, vocab: int = 131, hidden: int = 48, heads: int = 4, layers: int = 3, positions: int = 40
    ) -> None:
        super().__init__()
        self.vocab, self.positions = vocab, positions
        self.tokens = nn.Embedding(vocab, hidden)
        self.places = nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList([GptBlock(hidden, heads, positions) for _ in range(layers)])
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def example(self, batch: int, seq: int | None = None, device: str = "meta") -> tuple[torch.Tensor, ...]:
        """Tokens, as many as there are positions unless told."""
        return (_tokens(self.vocab, batch, seq or self.positions, device=device),)


def segment_sums(x: torch.Tensor) -> torch.Tensor:
    """Sums of x from behind each place up to each later one; minus infinity where there is none."""
    sums = x.cumsum(dim=-1)
    differences = sums[..., :, None] - sums[..., None, :]
    below = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).tril()
    return differences.masked_fill(~below, float("-inf"))


def chunked_scan(
    x: torch.Tensor, decay: torch.Tensor, into: torch.Tensor, out_of: torch.Tensor, chunk: int
) -> torch.Tensor:
    """A selective scan as products (state-space duality, Dao and Gu 2024).

    The state h becomes exp(decay)·h + into⊗x at each place, and out_of·h is the result. x is (batch, length, heads,
    width), decay (batch, length, heads), the other two (batch, length, state).
    """
    batch, length, heads, width = x.shape
    chunks = length // chunk
    x = x.view(batch, chunks, chunk, heads, width)
    decay = decay.view(batch, chunks, chunk, heads).permute(0, 3, 1, 2)
    into, out_of = (part.view(batch, chunks, chunk, -1) for part in (into, out_of))
    sums = decay.cumsum(dim=-1)

    pairs = torch.einsum("bcln,bcsn->bcls", out_of, into)
    weights = pairs[:, None] * segment_sums(decay).exp()
    inside = torch.einsum("bhcls,bcshp->bclhp", weights, x)

    faded = x * (sums[..., -1:] - sums).exp().permute(0, 2, 3, 1)[..., None]
    states = torch.einsum("bcln,bclhp->bchpn", into, faded)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
    between = segment_sums(F.pad(sums[..., -1], (1, 0))).exp()
    states = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]

    carried = torch.einsum("bcln,bchpn->bclhp", out_of, states) * sums.exp().permute(0, 2, 3, 1)[..., None]
    return (inside + carried).reshape(batch, length, heads, width)


class MambaBlock(nn.Module):
    """Projection, depthwise convolution, selective scan, gate, projection."""

    def __init__(self, hidden: int, heads: int, state: int, conv: int, chunk: int) -> None:
        super().__init__()
        self.inner, self.heads, self.state, self.chunk = 2 * hidden, heads, state, chunk
        self.norm = nn.RMSNorm(hidden)
        self.in_proj = nn.Linear(hidden, 2 * self.inner + 2 * state + heads, bias=False)
        mixed = self.inner + 2 * state
        self.conv = nn.Conv1d(mixed, mixed, conv, groups=mixed, padding=conv - 1)
        self.step_bias = nn.Parameter(torch.zeros(heads))
        self.log_decay = nn.Parameter(torch.zeros(heads))
        self.skip = nn.Parameter(torch.ones(heads))
        self.gate_norm = nn.RMSNorm(self.inner)
        self.out_proj = nn.Linear(self.inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        gate, mixed, step = self.in_proj(self.norm(x)).split(
            [self.inner, self.inner + 2 * self.state, self.heads], dim=-1
        )
        mixed = F.silu(self.conv(mixed.transpose(1, 2))[..., :length].transpose(1, 2))
        value, into, out_of = mixed.split([self.inner, self.state, self.state], dim=-1)
        step = F.softplus(step + self.step_bias)
        value = value.reshape(batch, length, self.heads, -1)
        y = chunked_scan(value * step[..., None], -self.log_decay.exp() * step, into, out_of, self.chunk)
        y = (y + value * self.skip[:, None]).flatten(2)
        return x + self.out_proj(self.gate_norm(y * F.silu(gate)))


class Mamba(nn.Module):
    """A stack of Mamba blocks between a token table and a head of its own."""

    def __init__(
        self, vocab: int = 131, hidden: int = 48, heads: int = 6, state: int = 20, conv: int = 4, chunk: int = 8,
        layers: int = 3,
    ) -> None:  # fmt: skip
        super().__init__()
        self.vocab, self.chunk = vocab, chunk
        self.tokens = nn.Embedding(vocab, hidden)
        self.blocks = nn.Sequential(*[MambaBlock(hidden, heads, state, conv, chunk) for _ in range(layers)])
        self.norm = nn.RMSNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens))))

    def example(self, batch: int, seq: int | None = None, device: str = "meta") -> tuple[torch.Tensor, ...]:
        """Tokens, five chunks unless told."""
        return (_tokens(self.vocab, batch, seq or 5 * self.chunk, device=device),)


class FusedAttention(nn.Module):
    """Attention in both directions by PyTorch's own function."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (_split(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        return self.proj(_merge(F.scaled_dot_product_attention(query, key, value)))


class VitBlock(nn.Module):
    """An encoder block, norms first."""

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden)
        self.attention = FusedAttention(hidden, heads)
        self.norm2 = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, ffn), nn.GELU(), nn.Linear(ffn, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    """A vision transformer that classifies by a token of its own."""

    def __init__(
        self, image: int = 30, patch: int = 6, hidden: int = 48, heads: int = 4, ffn: int = 112, layers: int = 3,
        classes: int = 10,
    ) -> None:  # fmt: skip
        super().__init__()
        self.image = image
        self.patches = nn.Conv2d(3, hidden, patch, stride=patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, hidden))
        self.places = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, hidden))
        self.blocks = nn.ModuleList([VitBlock(hidden, heads, ffn) for _ in range(layers)])
        self.norm = nn.LayerNorm(hidden)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.norm(x)[:, 0])

    def example(self, batch: int, device: str = "meta") -> tuple[torch.Tensor, ...]:
        """Images."""
        return (torch.randn(batch, 3, self.image, self.image, device=device),)


def _zeroed(linear: nn.Linear) -> nn.Linear:
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def _sinusoids(places: torch.Tensor, width: int) -> torch.Tensor:
    rates = torch.exp(-math.log(1e4) * torch.arange(width // 2, device=places.device) / (width // 2))
    angles = places[:, None].float() * rates
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _modulate(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * (1 + scale[:, None]) + shift[:, None]


class DitBlock(nn.Module):
    """A block whose norms and residuals the condition shifts, scales and gates (adaLN-zero)."""

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden, elementwise_affine=False)
        self.attention = FusedAttention(hidden, heads)
        self.norm2 = nn.LayerNorm(hidden, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(hidden, ffn), nn.GELU(approximate="tanh"), nn.Linear(ffn, hidden))
        self.modulation = nn.Sequential(nn.SiLU(), _zeroed(nn.Linear(hidden, 6 * hidden)))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).chunk(6, dim=-1)
        x = x + gate1[:, None] * self.attention(_modulate(self.norm1(x), shift1, scale1))
        return x + gate2[:, None] * self.mlp(_modulate(self.norm2(x), shift2, scale2))


class Dit(nn.Module):
    """A diffusion transformer: the noise in a latent image, from the image, the time and the label."""

    places: torch.Tensor

    def __init__(
        self, size: int = 12, patch: int = 2, channels: int = 4, hidden: int = 48, heads: int = 6, ffn: int = 112,
        layers: int = 3, classes: int = 10, frequencies: int = 32,
    ) -> None:  # fmt: skip
        super().__init__()
        self.size, self.patch, self.channels, self.classes = size, patch, channels, classes
        self.frequencies = frequencies
        self.patches = nn.Linear(patch * patch * channels, hidden)
        self.time = nn.Sequential(nn.Linear(frequencies, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.label = nn.Embedding(classes + 1, hidden)
        places = _sinusoids(torch.arange((size // patch) ** 2), hidden)
        self.register_buffer("places", places, persistent=False)
        self.blocks = nn.ModuleList([DitBlock(hidden, heads, ffn) for _ in range(layers)])
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), _zeroed(nn.Linear(hidden, 2 * hidden)))
        self.out = _zeroed(nn.Linear(hidden, patch * patch * channels))

    def forward(self, noisy: torch.Tensor, time: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        batch, side, patch = noisy.shape[0], self.size // self.patch, self.patch
        x = noisy.reshape(batch, self.channels, side, patch, side, patch)
        x = self.patches(x.permute(0, 2, 4, 3, 5, 1).reshape(batch, side * side, -1)) + self.places
        condition = self.time(_sinusoids(time, self.frequencies)) + self.label(label)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(condition).chunk(2, dim=-1)
        x = self.out(_modulate(self.norm(x), shift, scale))
        x = x.reshape(batch, side, side, patch, patch, self.channels).permute(0, 5, 1, 3, 2, 4)
        return x.reshape(noisy.shape)

    def example(self, batch: int, device: str = "meta") -> tuple[torch.Tensor, ...]:
        """Noisy latents, a time and a label each."""
        noisy = torch.randn(batch, self.channels, self.size, self.size, device=device)
        return noisy, _tokens(1000, batch, device=device), _tokens(self.classes, batch, device=device)


class ResidualBlock(nn.Module):
    """Two convolutions behind norms; the way around changes the number of channels where it must."""

    def __init__(self, before: int, after: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, before)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.around = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        return self.around(x) + self.conv2(F.silu(self.norm2(y)))


class PixelAttention(nn.Module):
    """Attention among the pixels of an image."""

    def __init__(self, channels: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        self.attention = FusedAttention(channels, heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x).flatten(2).transpose(1, 2)
        return x + self.attention(y).transpose(1, 2).reshape(x.shape)


class Unet(nn.Module):
    """Three resolutions down and up again, joined by what each left on the way down."""

    def __init__(
        self, size: int = 20, channels: int = 3, width: int = 24, depth: int = 2, heads: int = 4, groups: int = 6
    ) -> None:
        super().__init__()
        self.size, self.channels, self.depth = size, channels, depth
        widths = [width, 2 * width, 3 * width]
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        befores = [width, *widths[:-1]]
        for before, after in zip(befores, widths, strict=True):
            self.down.extend([ResidualBlock(before if i == 0 else after, after, groups) for i in range(depth)])
        self.shrink = nn.ModuleList([nn.Conv2d(w, w, 3, stride=2, padding=1) for w in widths[:-1]])
        before = widths[-1]
        self.middle = nn.Sequential(
            ResidualBlock(before, before, groups),
            PixelAttention(before, heads, groups),
            ResidualBlock(before, before, groups),
        )
        for after in reversed(widths):
            for i in range(depth):
                self.up.append(ResidualBlock((before if i == 0 else after) + after, after, groups))
            before = after
        self.grow = nn.ModuleList([nn.Conv2d(w, w, 3, padding=1) for w in reversed(widths[1:])])
        self.norm = nn.GroupNorm(groups, width)
        self.last = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.first(image)
        left = []
        for index, block in enumerate(self.down):
            if index and index % self.depth == 0:
                x = self.shrink[index // self.depth - 1](x)
            x = block(x)
            left.append(x)
        x = self.middle(x)
        for index, block in enumerate(self.up):
            if index and index % self.depth == 0:
                x = F.interpolate(x, scale_factor=2.0, mode="nearest")
                x = self.grow[index // self.depth - 1](x)
            x = block(torch.cat([x, left.pop()], dim=1))
        return self.last(F.silu(self.norm(x)))

    def example(self, batch: int, device: str = "meta") -> tuple[torch.Tensor, ...]:
        """Noisy images."""
        return (torch.randn(batch, self.channels, self.size, self.size, device=device),)


class CrossAttention(nn.Module):
    """Attention from one sequence to another, or to itself."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, *, causal: bool = False) -> torch.Tensor:
        query, key, value = self.query(x), self.key(memory), self.value(memory)
        query, key, value = (_split(part, self.heads) for part in (query, key, value))
        scores = torch.matmul(query, key.transpose(2, 3)) * query.shape[-1] ** -0.5
        if causal:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        return self.out(_merge(torch.matmul(torch.softmax(scores, dim=-1), value)))


class EncoderLayer(nn.Module):
    """Self-attention and a ReLU feed-forward, norms after each."""

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.attention = CrossAttention(hidden, heads)
        self.feed_forward = nn.Sequential(nn.Linear(hidden, ffn), nn.ReLU(), nn.Linear(ffn, hidden))
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attention(x, x))
        return self.norm2(x + self.feed_forward(x))


class DecoderLayer(nn.Module):
    """The same with a causal mask, and attention to the encoder's result in between."""

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.attention = CrossAttention(hidden, heads)
        self.cross = CrossAttention(hidden, heads)
        self.feed_forward = nn.Sequential(nn.Linear(hidden, ffn), nn.ReLU(), nn.Linear(ffn, hidden))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(hidden) for _ in range(3))

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attention(x, x, causal=True))
        x = self.norm2(x + self.cross(x, memory))
        return self.norm3(x + self.feed_forward(x))


class EncoderDecoder(nn.Module):
    """The translation model of 2017, with a table for each language."""

    places: torch.Tensor

    def __init__(
        self, source_vocab: int = 131, target_vocab: int = 149, hidden: int = 48, heads: int = 4, ffn: int = 112,
        encoders: int = 3, decoders: int = 2, source_length: int = 28, target_length: int = 20,
    ) -> None:  # fmt: skip
        super().__init__()
        self.vocabularies, self.lengths = (source_vocab, target_vocab), (source_length, target_length)
        self.source, self.target = nn.Embedding(source_vocab, hidden), nn.Embedding(target_vocab, hidden)
        places = _sinusoids(torch.arange(max(self.lengths)), hidden)
        self.register_buffer("places", places, persistent=False)
        self.encoder = nn.ModuleList([EncoderLayer(hidden, heads, ffn) for _ in range(encoders)])
        self.decoder = nn.ModuleList([DecoderLayer(hidden, heads, ffn) for _ in range(decoders)])
        self.head = nn.Linear(hidden, target_vocab, bias=False)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        memory = self.source(source) + self.places[: source.shape[1]]
        for layer in self.encoder:
            memory = layer(memory)
        x = self.target(target) + self.places[: target.shape[1]]
        for layer in self.decoder:
            x = layer(x, memory)
        return self.head(x)

    def example(self, batch: int, device: str = "meta") -> tuple[torch.Tensor, ...]:
        """Sentences in both languages."""
        pairs = zip(self.vocabularies, self.lengths, strict=True)
        return tuple(_tokens(vocab, batch, length, device=device) for vocab, length in pairs)


class LoopedMixture(nn.Module):
    """Experts one after the other, each on the tokens that chose it: how many is known only when it runs."""

    def __init__(self, hidden: int, ffn: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(hidden, ffn), nn.SiLU(), nn.Linear(ffn, hidden)) for _ in range(experts)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        gates, chosen = self.router(flat).softmax(dim=-1).topk(self.top_k, dim=-1)
        gates = gates / gates.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == index)
            out = out.index_add(0, rows, gates[rows, place, None] * expert(flat[rows]))
        return out.view_as(x)


class DenseMixture(nn.Module):
    """Every expert on every token, weighted by nought where the token did not choose it."""

    def __init__(self, hidden: int, ffn: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.experts, self.top_k = experts, top_k
        self.router = nn.Linear(hidden, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, hidden, ffn) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(experts, ffn, hidden) * ffn**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates, chosen = self.router(x).softmax(dim=-1).topk(self.top_k, dim=-1)
        gates = gates / gates.sum(dim=-1, keepdim=True)
        weights = (F.one_hot(chosen, self.experts) * gates[..., None]).sum(dim=-2)
        inner = F.silu(torch.einsum("bsh,ehf->bsef", x, self.up))
        outer = torch.einsum("bsef,efh->bseh", inner, self.down)
        return torch.einsum("bseh,bse->bsh", outer, weights)


class MixtureModel(nn.Module):
    """A small language model whose feed-forwards are mixtures."""

    def __init__(
        self, mixture: type[LoopedMixture] | type[DenseMixture] = LoopedMixture, vocab: int = 131, hidden: int = 48,
        heads: int = 4, ffn: int = 56, experts: int = 6, top_k: int = 2, layers: int = 2, positions: int = 40,
    ) -> None:  # fmt: skip
        super().__init__()
        self.vocab, self.positions = vocab, positions
        self.tokens = nn.Embedding(vocab, hidden)
        self.places = nn.Embedding(positions, hidden)
        self.attentions = nn.ModuleList([CausalAttention(hidden, heads, positions) for _ in range(layers)])
        self.mixtures = nn.ModuleList([mixture(hidden, ffn, experts, top_k) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(2 * layers + 1)])
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for index, (attention, mixture) in enumerate(zip(self.attentions, self.mixtures, strict=True)):
            x = x + attention(self.norms[2 * index](x))
            x = x + mixture(self.norms[2 * index + 1](x))
        return self.head(self.norms[-1](x))

    def example(self, batch: int, seq: int | None = None, device: str = "meta") -> tuple[torch.Tensor, ...]:
        """Tokens, as many as there are positions unless told."""
        return (_tokens(self.vocab, batch, seq or self.positions, device=device),)


@dataclass(frozen=True)
class Case:
    """A model: how it is made, and the sizes of a published one."""

    make: Callable[..., nn.Module]
    realistic: Mapping[str, int]


def _looped(**sizes: int) -> nn.Module:
    return MixtureModel(LoopedMixture, **sizes)


def _dense(**sizes: int) -> nn.Module:
    return MixtureModel(DenseMixture, **sizes)


_MIXTURE = {
    "vocab": 32000, "hidden": 1024, "heads": 16, "ffn": 3584, "experts": 8, "top_k": 2, "layers": 12,
    "positions": 1024,
}  # fmt: skip

CASES: Mapping[str, Case] = MappingProxyType(
    {
        # GPT-2
        "gpt": Case(Gpt, {"vocab": 50257, "hidden": 768, "heads": 12, "layers": 12, "positions": 1024}),
        # Mamba-2 130M but for a head of its own
        "mamba": Case(
            Mamba, {"vocab": 50280, "hidden": 768, "heads": 24, "state": 128, "conv": 4, "chunk": 256, "layers": 24}
        ),
        # ViT-B/16
        "vit": Case(
            Vit,
            {"image": 224, "patch": 16, "hidden": 768, "heads": 12, "ffn": 3072, "layers": 12, "classes": 1000},
        ),
        # DiT-XL/2 at 256 × 256
        "dit": Case(
            Dit,
            {
                "size": 32, "patch": 2, "channels": 4, "hidden": 1152, "heads": 16, "ffn": 4608, "layers": 28,
                "classes": 1000, "frequencies": 256,
            },
        ),
        # as wide as a latent diffusion model
        "unet": Case(
            Unet, {"size": 64, "channels": 4, "width": 320, "depth": 2, "heads": 8, "groups": 32}
        ),
        # the base model of 2017
        "encoder_decoder": Case(
            EncoderDecoder,
            {
                "source_vocab": 37000, "target_vocab": 37000, "hidden": 512, "heads": 8, "ffn": 2048, "encoders": 6,
                "decoders": 6, "source_length": 512, "target_length": 512,
            },
        ),
        "looped_mixture": Case(_looped, _MIXTURE),
        "dense_mixture": Case(_dense, _MIXTURE),
    }
)  # fmt: skip


def build(name: str, *, realistic: bool = False, device: str = "meta", **sizes: int) -> Any:
    """A model by its name; sizes replace single ones."""
    case = CASES[name]
    with torch.device(device):
        return case.make(**{**(case.realistic if realistic else {}), **sizes})
