"""Modules as people write them: layers that are unequal for many reasons, weights that are made of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

VOCAB, HIDDEN, INNER, HEADS = 131, 48, 100, 4
BATCH, SEQ = 2, 37


def tokens() -> torch.Tensor:
    return torch.arange(BATCH * SEQ).view(BATCH, SEQ) % VOCAB


class Block(nn.Module):
    """A feed-forward; its settings and arguments may have it do nothing."""

    def __init__(self, number: int = 0, setting: Any = None, activation: Callable[..., Any] = F.gelu) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)
        self.layer_idx, self.setting, self.activation = number, setting, activation

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        if skip or (isinstance(self.setting, dict) and self.setting["skip"]) or getattr(self.setting, "skip", False):
            return x + self.norm(x)
        return x + self.down(self.activation(self.up(self.norm(x))))


class Alternating(Block):
    """Its position says what it does."""

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        return super().forward(x if self.layer_idx % 2 else self.down(self.up(x)))


class Attention(Block):
    """Attention by this function of heads."""

    def __init__(self, attend: Callable[..., torch.Tensor], **buffers: torch.Tensor) -> None:
        super().__init__()
        self.qkv, self.out, self.attend = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN), attend
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        heads = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        return super().forward(x + self.out(self.attend(self, *heads).transpose(1, 2).flatten(2)))


class Cat(Attention):
    """Queries, keys and values by one product with the weights of three."""

    def __init__(self) -> None:
        super().__init__(plain)
        self.qkv: Any = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        query, key, value = self.qkv
        made = F.linear(self.norm(x), torch.cat([query.weight, key.weight, value.weight]))
        heads = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in made.chunk(3, -1))
        return x + self.out(plain(self, *heads).transpose(1, 2).flatten(2))


class Written(Block):
    """Writes parts of what it hands on into a tensor, and leaves others as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(HIDDEN, HIDDEN // 2)

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        made = torch.zeros_like(x)
        made[..., HIDDEN // 2 :] = self.narrow(super().forward(x))
        return x + made


class Scaled(Block):
    """A weight that is trained in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(INNER, 1))
        self.up = nn.Linear(HIDDEN, INNER, bias=False)

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        return x + self.down(F.gelu(F.linear(self.norm(x), self.up.weight * self.scale)))


def plain(_: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def difference(_: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    halves = zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
    one, other = (torch.softmax(a @ b.transpose(-1, -2), -1) for a, b in halves)
    return (one - 0.5 * other) @ v


def turned(layer: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Rotary positions as products of complex numbers, by a table that is handed in."""
    table = layer.table[: q.shape[2]]

    def turn(heads: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(heads.unflatten(-1, (-1, 2))) * table).flatten(-2)

    scores = turn(q) @ turn(k).transpose(-1, -2) / 4
    return torch.softmax(scores + torch.full(scores.shape[-2:], -torch.inf).triu(1), -1) @ v


class Net(nn.Module):
    """A table, blocks, a head; `run` says how the blocks are called."""

    def __init__(self, blocks: Any, run: Callable[..., torch.Tensor] | None = None) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, VOCAB)
        self.blocks, self.run = nn.ModuleList(blocks), run or one_by_one

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.run(self.blocks, self.table(ids)))


class Loss(Net):
    """Returns what it is trained on, as most training code does."""

    def forward(self, ids: torch.Tensor) -> Any:
        logits = super().forward(ids)
        return {"logits": logits, "loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())}


class Learned(Net):
    """Positions are a parameter of three axes, cut to the sequence."""

    def __init__(self) -> None:
        super().__init__([nn.TransformerEncoderLayer(HIDDEN, HEADS, INNER, batch_first=True) for _ in range(3)])
        self.places = nn.Parameter(torch.zeros(1, 2 * SEQ, HIDDEN))

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.run(self.blocks, self.table(ids) + self.places[:, : ids.shape[1]]))


class Paired(Net):
    """PyTorch's own encoder and decoder."""

    def __init__(self) -> None:
        super().__init__([])
        self.both = nn.Transformer(HIDDEN, HEADS, 2, 2, INNER, batch_first=True)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.both(self.table(ids), self.table(ids)))


class Pictures(nn.Module):
    """Convolutions: in groups, as many channels out as in, and one that makes an image larger."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 24, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(24, 24, 3, padding=1, groups=groups), nn.Sequential(nn.ReLU())) for _ in range(3)
        )
        self.last = nn.ConvTranspose2d(24, 10, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def one_by_one(blocks: Any, x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x = block(x)
    return x


def told_apart(blocks: Any, x: torch.Tensor) -> torch.Tensor:
    for number, block in enumerate(blocks):
        x = block(x, skip=number % 2 == 0)
    return x


def both_ways(blocks: Any, x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x = block(x) + block(x)
    return x


def twice(blocks: Any, x: torch.Tensor) -> torch.Tensor:
    return one_by_one(blocks, one_by_one(blocks, x))


def _text(make: Callable[[], nn.Module]) -> Callable[[], tuple[nn.Module, tuple[Any, ...]]]:
    return lambda: (make(), (tokens(),))


def _pictures(groups: int) -> Callable[[], tuple[nn.Module, tuple[Any, ...]]]:
    return lambda: (Pictures(groups), (torch.zeros(BATCH, 3, 14, 14),))


#: Name → a module and its inputs.
CASES: Mapping[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = MappingProxyType(
    {
        "settings in a dict": _text(lambda: Net([Block(0, {"skip": i == 1}) for i in range(4)])),
        "settings in an object": _text(lambda: Net([Block(0, SimpleNamespace(skip=i == 1)) for i in range(4)])),
        "its position decides": _text(lambda: Net([Alternating(i) for i in range(4)])),
        "an argument decides": _text(lambda: Net([Block() for _ in range(4)], told_apart)),
        "a function decides": _text(
            lambda: Net([Block(activation=nn.Linear(INNER, INNER) if i % 2 else F.silu) for i in range(4)])
        ),
        "called twice on the same": _text(lambda: Net([Block() for _ in range(3)], both_ways)),
        "all run again": _text(lambda: Net([Block() for _ in range(3)], twice)),
        "weights of three": _text(lambda: Net([Cat() for _ in range(3)])),
        "written in part": _text(lambda: Net([Written() for _ in range(3)])),
        "a scaled weight": _text(lambda: Net([Scaled() for _ in range(3)])),
        "a difference of probabilities": _text(lambda: Net([Attention(difference) for _ in range(3)])),
        "complex rotary": _text(
            lambda: Net([Attention(turned, table=torch.polar(torch.ones(64, 6), torch.ones(64, 6))) for _ in range(3)])
        ),
        "returns its loss": _text(lambda: Loss([Block() for _ in range(3)])),
        "PyTorch's encoder": _text(Learned),
        "PyTorch's encoder and decoder": _text(Paired),
        "no list of layers": _text(
            lambda: nn.Sequential(nn.Embedding(VOCAB, HIDDEN), Block(), nn.Linear(HIDDEN, VOCAB))
        ),
        "convolutions": _pictures(1),
        "grouped convolutions": _pictures(4),
        "depthwise convolutions": _pictures(24),
    }
)  # fmt: skip
