"""The traced models, with the operators of torchtitan's eager code, and their losses.

The norms and the fused loss are stand-ins that allocate what CUDA kernels do, and compute nothing: a CPU build composes
RMSNorm of many operators and keeps LayerNorm's statistics in bf16.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial
from torch.nn import functional

from memory_oracle.case import Case


class Marks(Protocol):
    """Told where the forward stands, and through the tensors it is given where the backward stands."""

    def before_layer(self, hidden: torch.Tensor, layer: int) -> torch.Tensor:
        """Before block `layer`, or the head where it equals the number of blocks."""
        ...


class NormFunction(torch.autograd.Function):
    """Allocates what the CUDA kernels of RMSNorm and, with a bias, LayerNorm do: the result and fp32 statistics."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        per_token = (*x.shape[:-1], 1)
        statistics = [x.new_empty(per_token, dtype=torch.float32) for _ in range(1 if bias is None else 2)]
        ctx.biased = bias is not None
        ctx.save_for_backward(x, weight, *statistics)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        x, weight, *_ = ctx.saved_tensors
        trained = ctx.needs_input_grad[1]
        of_bias = torch.empty_like(weight) if ctx.biased and trained else None
        return torch.empty_like(x), torch.empty_like(weight) if trained else None, of_bias


class RMSNorm(nn.Module):
    """RMSNorm of the last dimension, also of a sequence-sharded DTensor."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One fused operator on what this rank holds."""
        weight = self.weight
        if isinstance(x, DTensor):
            assert isinstance(weight, DTensor)
            local: torch.Tensor = NormFunction.apply(x.to_local(), weight.to_local(grad_placements=[Partial()]), None)
            return DTensor.from_local(local, x.device_mesh, x.placements, run_check=False)
        return NormFunction.apply(x, weight.to_local() if isinstance(weight, DTensor) else weight, None)


class LayerNorm(nn.Module):
    """LayerNorm of the last dimension."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden))
        self.bias = nn.Parameter(torch.empty(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One fused operator."""
        return NormFunction.apply(x, self.weight, self.bias)


def rotated(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of one of query and key, as torchtitan's ComplexRoPE."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table).flatten(-2).type_as(x)


class QuantizedProduct(torch.autograd.Function):
    """A product with a 4-bit weight, which is written out in bf16 for it, as bitsandbytes' MatMul4Bit does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, packed: torch.Tensor, outer: int) -> torch.Tensor:
        ctx.packed, ctx.outer = packed, outer
        return functional.linear(x, x.new_empty(outer, x.shape[-1]))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (grad,) = grads
        return grad @ grad.new_empty(ctx.outer, 4 * ctx.packed.numel() // ctx.outer), None, None


class QuantizedLinear(nn.Module):
    """A frozen linear layer of 4 bits; its scales, 8 bits for 64 numbers and 32 for 256 of these, are whole."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.outer = outer
        self.weight = nn.Parameter(torch.empty(inner * outer // 4, 1))
        self.scales = torch.empty(inner * outer // 64, dtype=torch.uint8)
        self.scales_of_scales = torch.empty(inner * outer // 16384)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product alone."""
        return QuantizedProduct.apply(x, self.weight, self.outer)


class LoraLinear(nn.Module):
    """A linear layer with an adapter, without dropout, as PEFT's `lora.Linear` computes it."""

    def __init__(self, inner: int, outer: int, rank: int, *, quantized: bool) -> None:
        super().__init__()
        self.base = QuantizedLinear(inner, outer) if quantized else nn.Linear(inner, outer, bias=False)
        self.lora_a = nn.Linear(inner, rank, bias=False)
        self.lora_b = nn.Linear(rank, outer, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the frozen weight makes, and the scaled change."""
        return self.base(x) + self.lora_b(self.lora_a(x)) * 2.0


def linear(case: Case, inner: int, outer: int, *, adapted: bool) -> nn.Module:
    """A linear layer, with an adapter where the case has one here."""
    if adapted and case.lora_rank:
        return LoraLinear(inner, outer, case.lora_rank, quantized=case.quantized)
    if case.quantized:
        return QuantizedLinear(inner, outer)
    return nn.Linear(inner, outer, bias=False)


def freeze(model: nn.Module) -> None:
    """All but adapters are bf16 and have no gradient."""
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            parameter.data = parameter.data.to(torch.bfloat16)
            parameter.requires_grad_(False)


class LlamaAttention(nn.Module):
    """Projections, rotary embedding and SDPA with grouped heads: `enable_gqa`, so keys are not repeated."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.head_dim = case.head_dim
        self.grouped = case.heads > case.kv_heads
        self.wq = linear(case, case.hidden, case.heads * case.head_dim, adapted=True)
        self.wk = linear(case, case.hidden, case.kv_heads * case.head_dim, adapted=True)
        self.wv = linear(case, case.hidden, case.kv_heads * case.head_dim, adapted=True)
        self.wo = linear(case, case.heads * case.head_dim, case.hidden, adapted=True)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """Attention of one micro-batch; the number of heads is what this rank holds."""
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q, k, v = (part.view(*part.shape[:2], -1, self.head_dim) for part in (q, k, v))
        q, k = rotated(q, table), rotated(k, table)
        out = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=self.grouped
        )
        return self.wo(out.transpose(1, 2).contiguous().flatten(2))


class LlamaFeedForward(nn.Module):
    """SwiGLU, operator by operator."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.w1 = linear(case, case.hidden, case.ffn, adapted=case.lora_all)
        self.w2 = linear(case, case.ffn, case.hidden, adapted=case.lora_all)
        self.w3 = linear(case, case.hidden, case.ffn, adapted=case.lora_all)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As torchtitan writes it."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class LlamaBlock(nn.Module):
    """Norm, attention, norm, feed-forward, with two residual sums."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.attention = LlamaAttention(case)
        self.feed_forward = LlamaFeedForward(case)
        self.attention_norm = RMSNorm(case.hidden)
        self.ffn_norm = RMSNorm(case.hidden)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        """As torchtitan writes it."""
        h = x + self.attention(self.attention_norm(x), table)
        return h + self.feed_forward(self.ffn_norm(h))


class Gpt2Block(nn.Module):
    """LayerNorm, one projection to query, key and value, SDPA, GELU; biases everywhere, no dropout."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.heads * case.head_dim
        self.width, self.head_dim = width, case.head_dim
        self.attention_norm = LayerNorm(case.hidden)
        self.ffn_norm = LayerNorm(case.hidden)
        self.qkv = nn.Linear(case.hidden, 3 * width)
        self.wo = nn.Linear(width, case.hidden)
        self.up = nn.Linear(case.hidden, case.ffn)
        self.down = nn.Linear(case.ffn, case.hidden)

    def forward(self, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        """Query, key and value are views of one tensor, as in nanoGPT."""
        q, k, v = self.qkv(self.attention_norm(x)).split(self.width, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = x + self.wo(out.transpose(1, 2).contiguous().flatten(2))
        return h + self.down(functional.gelu(self.up(self.ffn_norm(h)), approximate="tanh"))


class Decoder(nn.Module):
    """Embedding, blocks, final norm, untied head."""

    table: torch.Tensor

    def __init__(self, case: Case) -> None:
        super().__init__()
        gpt2 = case.family == "gpt2"
        block = Gpt2Block if gpt2 else LlamaBlock
        self.tok_embeddings = nn.Embedding(case.vocab, case.hidden)
        self.positions = nn.Embedding(case.seq_len, case.hidden) if gpt2 else None
        self.layers = nn.ModuleList(block(case) for _ in range(case.layers))
        self.norm = LayerNorm(case.hidden) if gpt2 else RMSNorm(case.hidden)
        self.output = nn.Linear(case.hidden, case.vocab, bias=False)
        # angles of the rotary embedding, or the positions to look up
        table = (
            torch.arange(case.seq_len)
            if gpt2
            else torch.empty(case.seq_len, 1, case.head_dim // 2, dtype=torch.complex64)
        )
        self.register_buffer("table", table, persistent=False)
        self.marks: Marks | None = None
        self.adapted = case.lora_rank > 0
        if self.adapted:
            freeze(self)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of one micro-batch."""
        assert self.marks is not None
        hidden = self.tok_embeddings(tokens)
        if self.positions is not None:
            hidden = hidden + self.positions(self.table)
        if self.adapted:
            hidden.requires_grad_()
        for number, layer in enumerate(self.layers):
            hidden = layer(self.marks.before_layer(hidden, number), self.table)
        hidden = self.norm(self.marks.before_layer(hidden, len(self.layers)))
        return self.output(hidden)


class FusedLossFunction(torch.autograd.Function):
    """A loss kernel that keeps the bf16 logits and writes one bf16 gradient."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits)
        return logits.new_empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (logits,) = ctx.saved_tensors
        return torch.empty_like(logits)


def loss_of(case: Case, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, eager or as one fused kernel."""
    if case.eager_loss:
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
    return FusedLossFunction.apply(logits.to_local() if isinstance(logits, DTensor) else logits)
