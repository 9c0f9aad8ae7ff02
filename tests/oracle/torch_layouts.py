"""A Llama-like block under PyTorch's own parallelism, on a process group that only pretends, and what it sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

#: Every size that is cut is divisible by the chips.
BATCH, SEQ, HIDDEN, KV_HEADS, GROUP, HEAD_DIM, FFN, VOCAB = 4, 24, 48, 8, 3, 10, 136, 208

#: Kind, bytes as our Collective states them, chips in the group.
Sent = tuple[str, int, int]


class Attention(nn.Module):
    """Grouped-query attention as matmul and softmax; heads first, so that a cut of the heads is never undone."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, KV_HEADS * GROUP * HEAD_DIM, bias=bias)
        self.key = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=bias)
        self.value = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=bias)
        self.output = nn.Linear(KV_HEADS * GROUP * HEAD_DIM, HIDDEN, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)
        batch, seq, width = key.shape
        heads = width // HEAD_DIM
        query = query.view(batch, seq, heads, GROUP, HEAD_DIM).permute(2, 0, 3, 1, 4).flatten(2, 3)
        key = key.view(batch, seq, heads, HEAD_DIM).permute(2, 0, 3, 1)
        value = value.view(batch, seq, heads, HEAD_DIM).permute(2, 0, 1, 3)
        mixed = torch.matmul(torch.matmul(query, key).softmax(-1), value)
        mixed = mixed.unflatten(2, (GROUP, seq)).permute(1, 3, 0, 2, 4)
        return self.output(mixed.flatten(2, 4))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, FFN, bias=bias)
        self.up = nn.Linear(HIDDEN, FFN, bias=bias)
        self.down = nn.Linear(FFN, HIDDEN, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Norm, attention, norm, feed-forward around a residual stream."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.attention, self.feed_forward = Attention(bias=bias), FeedForward(bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Embedding(nn.Module):
    """Token table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, HIDDEN)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens)


class Head(nn.Module):
    """Final norm and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.logits = nn.RMSNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self.norm(x))


def tensor_parallel(block: nn.Module, mesh: DeviceMesh, *, sequence: bool, local: bool = True) -> nn.Module:
    """Megatron's cuts in DTensor's styles; each half's input is prepared once.

    Attention runs on local tensors, or on DTensors whose heads are cut.
    """
    stream: Placement = Shard(1) if sequence else Replicate()
    styles: dict[str, ParallelStyle] = {}
    for half, up, down in (("attention", "query key value", "output"), ("feed_forward", "gate up", "down")):
        styles[half] = PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(Replicate(),))
        styles |= {f"{half}.{name}": ColwiseParallel(use_local_output=local) for name in up.split()}
        styles[f"{half}.{down}"] = RowwiseParallel(output_layouts=stream)
        if sequence:
            styles[f"{half}_norm"] = SequenceParallel(use_local_output=True)
    return parallelize_module(block, mesh, styles)


def stream_input(mesh: DeviceMesh | None = None) -> torch.Tensor:
    """The residual stream of one chip, cut along the sequence where a mesh is given."""
    seq = SEQ if mesh is None else SEQ // mesh.size()
    return torch.ones(BATCH, seq, HIDDEN, dtype=torch.bfloat16, requires_grad=True)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _named(group: Any) -> int:
    return _resolve_process_group(group).size()


def _boxed(group: Any) -> int:
    return dist.ProcessGroup.unbox(group).size()


#: How each collective names its tensors and its group: bytes of the gathered result, else of what is put in.
RECORDED: Mapping[str, Callable[[Any, Any], Sent]] = {
    "_c10d_functional::all_reduce": lambda args, out: ("all_reduce", _size(args[0]), _named(args[2])),
    "_c10d_functional::all_gather_into_tensor": lambda args, out: ("all_gather", _size(out), _named(args[2])),
    "_c10d_functional::reduce_scatter_tensor": lambda args, out: ("reduce_scatter", _size(args[0]), _named(args[3])),
    "_c10d_functional::all_to_all_single": lambda args, out: ("all_to_all", _size(args[0]), _named(args[3])),
    "c10d::_allgather_base_": lambda args, out: ("all_gather", _size(args[0]), _boxed(args[2])),
    "c10d::_reduce_scatter_base_": lambda args, out: ("reduce_scatter", _size(args[1]), _boxed(args[2])),
    "c10d::allreduce_": lambda args, out: ("all_reduce", sum(_size(t) for t in args[0]), _boxed(args[1])),
}
#: Operators of the same namespaces that send nothing.
SILENT = {"_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"}


class Recorder(TorchDispatchMode):
    """Notes every collective that reaches the dispatcher; an unknown one is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[Sent] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if "c10d" in name and name not in SILENT:
            self.sent[RECORDED[name](args, out)] += 1
        return out


@dataclass(frozen=True)
class Traffic:
    """Collectives of one forward, its backward, and of completing the gradients left partial."""

    forward: Counter[Sent]
    backward: Counter[Sent]
    gradients: Counter[Sent]


def record(run: Callable[[], torch.Tensor], parameters: Iterable[nn.Parameter]) -> Traffic:
    """Runs forward and backward; every gradient then takes the placement of its parameter."""
    with Recorder() as forward:
        out = run()
    with Recorder() as backward:
        out.backward(torch.ones_like(out))
    with Recorder() as gradients:
        for parameter in parameters:
            gradient = parameter.grad
            assert gradient is not None
            if isinstance(parameter, DTensor) and isinstance(gradient, DTensor):
                gradient.redistribute(placements=parameter.placements)
    return Traffic(forward.sent, backward.sent, gradients.sent)
