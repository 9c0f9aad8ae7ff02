"""Strategies only say which dim of an operator each axis shards; collectives follow from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from dovetail.frozen import frozen
from dovetail.graph import Kind, LayerGraph, Operator, Phase
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.layout.mesh import Mesh

ContextKind = Literal["all_gather", "ring", "ulysses"]

#: Dims Megatron-style tensor parallelism shards, first match first (Shoeybi et al. 2019, section 3).
TENSOR_DIMS = ("kv_heads", "ffn", "shared_ffn", "vocab", "key_heads", "state_groups")


@frozen
class Strategy:
    """One way to lay a layer out on a mesh."""

    mesh: Mesh
    rule: str = "megatron"
    #: outside tensor-parallel regions the tensor axes shard the sequence (Korthikanti et al. 2022)
    sequence_parallel: bool = False
    context: ContextKind = "all_gather"
    #: ZeRO stage: 1 shards optimizer state, 2 gradients too, 3 weights too (Rajbhandari et al. 2020)
    zero_stage: int = 0
    #: ZeRO-3 retains the gathered weights from forward to backward
    keep_gathered: bool = False

    @property
    def saves_shards(self) -> bool:
        """Whether the backward gathers again what the forward gathered, instead of saving it whole."""
        return self.rule != "dtensor"

    def of(self, graph: LayerGraph) -> Strategy:  # noqa: ARG002
        """The strategy of one layer class: the same for all, unless each has its own shards."""
        return self

    def shard(self, operator: Operator) -> dict[str, str]:
        """Axis → the dim of this operator it shards."""
        choose = STRATEGIES[self.rule]
        shards = {axis: choose(self, operator, axis) for axis in self.mesh.axes}
        return {axis: dim for axis, dim in shards.items() if dim is not None}

    def leaves_open(self, operator: Operator, axis: str) -> bool:
        """Whether the operator takes an arriving gradient as terms of a sum along this axis and hands on such terms.

        Where query groups are sharded and keys are not, each chip has the part of the keys' gradient its queries
        make; it stays so down to the keys' weights and the layer's input, which are reduced anyway. So does the
        gradient of what is made of weights alone, of which each chip has the part of its tokens.
        """
        keys = axis in self.mesh.group and "kv_heads" in operator.dims and "group" not in operator.dims
        return keys or is_of_weights(operator)

    def stream_shard(self) -> dict[str, str]:
        """How the residual stream is sharded between layers."""
        shards = dict.fromkeys(self.mesh.data, "batch") | dict.fromkeys(self.mesh.context, "seq")
        if self.sequence_parallel:
            shards |= dict.fromkeys(self.mesh.tensor, "seq")
        return shards

    def token_shard(self) -> dict[str, str]:
        """How token ids and labels are sharded: every tensor-parallel chip has all of them."""
        return dict.fromkeys(self.mesh.data, "batch") | dict.fromkeys(self.mesh.context, "seq")


def is_of_weights(operator: Operator) -> bool:
    """Whether the operator has no tokens, so that it makes something of weights alone, or its gradient."""
    return "batch" not in operator.dims and EXPERT_TOKENS not in operator.dims


def _megatron(strategy: Strategy, operator: Operator, axis: str) -> str | None:
    mesh, dims = strategy.mesh, operator.dims
    if EXPERT_TOKENS in dims:
        return _expert_dim(strategy, operator, axis)
    if axis in mesh.data:
        return "batch" if "batch" in dims else None
    if axis in mesh.context:
        return _context_dim(strategy, operator, axis)
    return _tensor_dim(strategy, operator, axis)


def _expert_dim(strategy: Strategy, operator: Operator, axis: str) -> str | None:
    mesh, dims = strategy.mesh, operator.dims
    if "seq" not in dims:  # between dispatch and combine
        if axis in mesh.expert:
            return "experts"
        if axis in mesh.expert_tensor and "expert_ffn" in dims:
            return "expert_ffn"
        return EXPERT_TOKENS if _holds_tokens(strategy, axis) else None
    if axis in mesh.expert and not _holds_tokens(strategy, axis):
        return "experts"  # tokens are replicated here: each chip picks those of its experts
    if axis in mesh.data:
        return "batch"
    return "seq" if _holds_tokens(strategy, axis) else None


def _holds_tokens(strategy: Strategy, axis: str) -> bool:
    return axis not in strategy.mesh.tensor or strategy.sequence_parallel


def _context_dim(strategy: Strategy, operator: Operator, axis: str) -> str | None:
    dims = operator.dims
    heads = "group" if axis in strategy.mesh.group else "kv_heads"
    if strategy.context == "ulysses" and "key_seq" in dims and heads in dims:
        return heads  # Jacobs et al. 2023: whole sequences, a part of the heads
    return "seq" if "seq" in dims else None


def _tensor_dim(strategy: Strategy, operator: Operator, axis: str) -> str | None:
    dims = operator.dims
    if axis in strategy.mesh.group and "kv_heads" in dims:
        return "group" if "group" in dims else None  # keys are fewer than chips: replicated here
    for dim in TENSOR_DIMS:
        if dim in dims and dim not in operator.indivisible:
            return dim
    if strategy.sequence_parallel and "seq" in dims and operator.kind is not Kind.OPTIMIZER:
        return "seq"
    return None


def _dtensor(strategy: Strategy, operator: Operator, axis: str) -> str | None:
    """The same shards as DTensor's colwise and rowwise styles; what is saved differs (`saves_shards`)."""
    # a bias is part of its product: its gradient sums the whole gradient, which the product's backward gathers
    bias = operator.phase is Phase.WEIGHT_GRADIENT and operator.function.startswith("sum.grad")
    dim = _megatron(strategy, operator, axis)
    return None if bias and dim == "seq" and axis in strategy.mesh.tensor else dim


Rule = Callable[[Strategy, Operator, str], str | None]

#: How each named strategy shards operators; a new one is a line here.
STRATEGIES: Mapping[str, Rule] = {
    "megatron": _megatron,
    "dtensor": _dtensor,
}
