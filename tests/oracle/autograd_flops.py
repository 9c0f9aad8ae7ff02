"""What PyTorch's own autograd multiplies in a step of a module: matrix FLOPs, forward and backward.

Twice: `joint_flops` reads the traced graph of both passes, `autograd_flops` runs them and counts as they go. Formulas
are PyTorch's, with those it lacks, and rules of ours where it has none or others:

- attention in one operator costs two products forward and four backward, as written out; nothing computed a second
  time counts, no mask saves anything;
- the weight gradient of a convolution costs what its forward costs, in groups too, where PyTorch counts as if every
  group held all channels;
- solving triangular systems is no product, though its gradient holds one;
- a product of vectors, or of a matrix and a vector, is a product of matrices with one row or column.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from typing import Any, TypeAlias

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, map_arg
from torch.fx.traceback import preserve_node_meta
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count
from torch_blocks import MATMUL_LIKE, Seen

aten = torch.ops.aten

Shape: TypeAlias = "Sequence[int]"
#: forward, backward, and both together by operator
Flops: TypeAlias = "tuple[int, int, dict[str, int]]"


class UncountedError(AssertionError):
    """An operator that seems to multiply matrices has no formula."""


def _attention(query: Shape, key: Shape, value: Shape) -> int:
    """Scores and weighted values."""
    batch, heads, queries, width = query
    keys, value_width = key[-2], value[-1]
    return 2 * batch * heads * queries * keys * (width + value_width)


def _attention_forward(query: Shape, key: Shape, value: Shape, *_: object, **__: object) -> int:
    return _attention(query, key, value)


def _attention_backward(_: Shape, query: Shape, key: Shape, value: Shape, *__: object, **___: object) -> int:
    return 2 * _attention(query, key, value)


def _grouped(left: Shape, right: Shape, *_: object, **__: object) -> int:
    """The groups cut one axis, of rows or of summed columns, into pieces; where each has its own, it is batched."""
    if len(left) == len(right) == 3:
        return 2 * prod(left) * right[-1]
    rows, summed = left[-2:]
    return 2 * rows * summed * right[-1]


def _convolution_backward(
    gradient: Shape, x: Shape, weight: Shape, _bias: object, _stride: object, _padding: object, _dilation: object,
    transposed: bool, _output_padding: object, _groups: int, mask: Sequence[bool], **_: object,
) -> int:  # fmt: skip
    forward = conv_flop_count(list(x), list(weight), list(gradient), transposed=transposed)
    return forward * sum(mask[:2])


def _dot(left: Shape, *_: object, **__: object) -> int:
    return 2 * prod(left)


def _matrix_vector(matrix: Shape, *_: object, **__: object) -> int:
    return 2 * prod(matrix)


def _added(_: Shape, *operands: Any, **__: object) -> int:
    """A product that is added to something: of two matrices (`addbmm`), a matrix and a vector, two vectors."""
    left, right = operands[:2]
    return 2 * prod(left) * (right[-1] if len(right) == 3 or len(left) == len(right) == 1 else 1)


#: What FlopCounterMode lacks, and what it counts in another way.
FORMULAS: Mapping[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention: _attention_forward,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention_forward,
    aten._scaled_dot_product_efficient_attention: _attention_forward,
    aten._scaled_dot_product_cudnn_attention: _attention_forward,
    aten._scaled_dot_product_fused_attention_overrideable: _attention_forward,
    aten._scaled_dot_product_flash_attention_backward: _attention_backward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten._scaled_dot_product_efficient_attention_backward: _attention_backward,
    aten._scaled_dot_product_cudnn_attention_backward: _attention_backward,
    aten._scaled_dot_product_fused_attention_overrideable_backward: _attention_backward,
    aten._grouped_mm: _grouped,
    aten.convolution_backward: _convolution_backward,
    aten.dot: _dot,
    aten.vdot: _dot,
    aten.mv: _matrix_vector,
    aten.addmv: _added,
    aten.addbmm: _added,
    aten.addr: _added,
}


def _counter() -> FlopCounterMode:
    return FlopCounterMode(display=False, custom_mapping=dict(FORMULAS))


class _Step(nn.Module):
    """A module that returns its loss: its own where it has one, otherwise the mean square of its output."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = self.module(*args, **kwargs)
        loss = getattr(result, "loss", None)
        if loss is not None:
            return loss
        out = result if isinstance(result, torch.Tensor) else getattr(result, "logits", None)
        out = result[0] if out is None else out
        return out if out.dim() == 0 else out.float().square().mean()


def _without_data(mode: FakeTensorMode, module: nn.Module, given: Any) -> tuple[nn.Module, Any]:
    """A module and its inputs as tensors of the CPU without storage; what shares a tensor still does."""
    fakes: dict[int, Any] = {}
    with mode:
        for tensor in (*module.parameters(), *module.buffers(), *tree_leaves(given)):
            if not isinstance(tensor, torch.Tensor) or id(tensor) in fakes:
                continue
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            if isinstance(tensor, nn.Parameter):
                fakes[id(tensor)] = nn.Parameter(fake, tensor.requires_grad)
            else:
                fakes[id(tensor)] = fake.requires_grad_(tensor.requires_grad)
    # deepcopy takes what it is told to have copied already
    return copy.deepcopy(module, dict(fakes)), tree_map(lambda leaf: fakes.get(id(leaf), leaf), given)


def _mode() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def joint_graph(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Graph:
    """Forward and backward of a module and its loss as one ATen graph.

    On the CPU: on meta, the gradient of a cross entropy is lost with a mere warning.
    """
    step, (given, options) = _without_data(_mode(), _Step(module), (tuple(args), dict(kwargs or {})))
    with preserve_node_meta(), ExitStack() as stack, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        warnings.filterwarnings("error", message=".*an autograd kernel was not registered")
        program = torch.export.export(step, given, options, strict=False)
        joint = aot_export_joint_with_descriptors(stack, program.module(), given, options)
    return joint.graph_module.graph


def joint_flops(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Flops:
    """FLOPs of the traced graph; what the loss does not depend on is not in it."""
    passes = {True: 0, False: 0}
    operators: Counter[str] = Counter()
    for packet, is_forward, cost in joint_operators(module, args, kwargs):
        passes[is_forward] += cost
        operators.update({packet.__name__: cost} if cost else {})
    return passes[True], passes[False], dict(operators)


def joint_operators(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> list[tuple[Any, bool, int]]:
    """The operators of the traced graph: what each is, whether it is one of the forward, its matrix FLOPs."""
    formulas = _counter().flop_registry
    found: list[tuple[Any, bool, int]] = []
    for node in joint_graph(module, args, kwargs).nodes:
        packet = getattr(node.target, "overloadpacket", None)
        if node.op != "call_function" or packet is None:
            continue
        given, options = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        cost = formulas[packet](*given, **options, out_val=node.meta["val"]) if packet in formulas else 0
        found.append((packet, node.meta.get("partitioner_tag") == "is_forward", cost))
    _check_counted({packet for packet, *_ in found}, formulas)
    return found


def autograd_flops(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Flops:
    """FLOPs of a forward and a backward that run: for real, or without data where the parameters are on meta.

    For what cannot be traced: experts whose share of the tokens is known only when they run.
    """
    step, given = _Step(module), (tuple(args), dict(kwargs or {}))
    with ExitStack() as stack:
        if any(parameter.is_meta for parameter in module.parameters()):
            mode = _mode()
            step, given = _without_data(mode, step, given)
            stack.enter_context(mode)
        seen = stack.enter_context(Seen())
        with _counter() as forward:
            loss = step(*given[0], **given[1])
        with _counter() as backward:
            leaves = (*step.parameters(), *tree_leaves(given))
            wanted = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
            torch.autograd.grad(loss, wanted, allow_unused=True)
    _check_counted(seen.operators, forward.flop_registry)
    operators: Counter[str] = Counter()
    for counter in (forward, backward):
        operators.update({packet.__name__: cost for packet, cost in counter.get_flop_counts()["Global"].items()})
    return forward.get_total_flops(), backward.get_total_flops(), dict(operators)


def _check_counted(seen: set[Any], formulas: Mapping[Any, Any]) -> None:
    missing = sorted(str(packet) for packet in seen if packet not in formulas and MATMUL_LIKE.search(packet.__name__))
    if missing:
        raise UncountedError(f"no formula for {', '.join(missing)}")
