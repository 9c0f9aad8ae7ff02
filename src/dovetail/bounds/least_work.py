"""What one sequence asks of chips at least, however it is trained: counts of a graph and of its derived backward.

- Matrix and vector work: every product and every operation on lanes, without what a causal mask leaves out. A loss is
  left out of the latter: fused kernels make it while they read the logits.
- Memory: every weight of a product is streamed from memory once by the forward and by each of the two gradients. What
  products hand to each other may stay on the chip (maximal fusion) and is left out.
- The stream between layers, where the layout derivation finds sums over it with a tensor axis alone.
- Parameters whose gradients are summed: those all tokens use, and those of experts, which are on different chips.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from dovetail.arrays import Floats
from dovetail.cost.operators import runs_narrow
from dovetail.frozen import frozen
from dovetail.graph import Kind, LayerGraph, ModelGraph, Operator, Phase, Role, Tensor, Unit, differentiate, flops
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.graph.size import Sizes, as_array
from dovetail.graph.tensor import Element
from dovetail.layout import CollectiveKind, CollectivePhase, Strategy, place_layer
from dovetail.layout.mesh import Mesh
from dovetail.models import Job

_PHASES = (Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)
#: Dims of what layers hand on.
_STREAM = ("batch", "seq", "hidden")


@frozen
class LeastWork:
    """Work and bytes of one sequence; the first axis is the layer class, the second the phase."""

    #: how often each layer class occurs
    layers: Floats
    #: matrix FLOPs; the last axis: products in the job's format, in half precision, and inside attention kernels
    matrix_flops: Floats
    #: operations on vector lanes
    vector_flops: Floats
    #: of the weights that products read and the gradients they write: those all tokens use, and those of experts
    dense_bytes: Floats
    expert_bytes: Floats
    #: of the stream where tensor-parallel chips reduce it, and where they gather and scatter parts of the sequence
    reduced_bytes: Floats
    scattered_bytes: Floats
    #: that have gradients, tied ones once: those all tokens use, and those of experts
    dense_parameters: float
    expert_parameters: float
    #: bytes of an element as layers hand it on
    width: float

    def streamed_bytes(self, tensor: Floats, expert_chips: Floats) -> list[Floats]:
        """Bytes of a chip's memory for one micro-batch's weights, by phase."""
        parts = zip(self.over_layers(self.dense_bytes), self.over_layers(self.expert_bytes), strict=True)
        return [dense / tensor + routed / expert_chips for dense, routed in parts]

    def replicated_parameters(self, tensor: Floats, expert_chips: Floats) -> list[tuple[Floats, Floats, Floats]]:
        """Dense weights, and experts: how many a chip holds, the spacing of their replicas, chips alike in a replica.

        Where fewer chips share the experts than are tensor parallel, several of these hold the same experts.
        """
        groups = [(self.dense_parameters / tensor, tensor, np.ones(()))]
        if self.expert_parameters:
            spacing = np.maximum(tensor, expert_chips)
            groups.append((self.expert_parameters / expert_chips, spacing, spacing / expert_chips))
        return groups

    def over_layers(self, work: Floats) -> list[float]:
        """All layers together, by phase."""
        return (self.layers @ work).tolist()


def forward_shares(*works: Floats) -> tuple[float, float]:
    """The least and the most that the forward is of any layer class's work."""
    rows = np.concatenate(works)
    totals = rows.sum(axis=1)
    shares = rows[totals > 0, 0] / totals[totals > 0]
    return (float(shares.min()), float(shares.max())) if len(shares) else (0.0, 1.0)


def least_work(job: Job, narrow_bytes: float | None) -> LeastWork:
    """Counts of one sequence of a job, where its narrow format has elements of so many bytes (None: it has none)."""
    return _counts(_Shared(job.graph()), job.seq_len, narrow_bytes, job.element_bytes()[Element.COMPUTE])


@frozen
class _Shared:
    """A graph as a cache key: graphs are built once per model and shared, so identity serves."""

    graph: ModelGraph

    def __hash__(self) -> int:
        return id(self.graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shared) and other.graph is self.graph


@lru_cache(maxsize=64)
def _counts(shared: _Shared, seq_len: int, narrow_bytes: float | None, width: int) -> LeastWork:
    graph = shared.graph
    classes = [_layer_counts(layer, seq_len, narrow_bytes or width, width) for layer in graph.layers.values()]
    matrix, vector, dense, routed = (np.stack(parts) for parts in zip(*classes, strict=True))
    layers = np.array([graph.counts()[name] for name in graph.layers], np.float64)
    reduced, scattered = (seq_len * width * part for part in _stream_elements(shared))
    return LeastWork(layers, matrix, vector, dense, routed, reduced, scattered, *_parameters(shared), float(width))


def _layer_counts(
    graph: LayerGraph, seq_len: int, narrow_width: float, width: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """Of one layer and sequence, by phase: matrix FLOPs by how they are run, vector FLOPs, dense and routed weights."""
    backward = differentiate(graph).graph
    tensors = {**backward.tensors, **graph.tensors}
    sizes = graph.resolve(batch=1, seq=seq_len)
    matrix, vector, dense, routed = np.zeros((3, 3)), np.zeros(3), np.zeros(3), np.zeros(3)
    for operator in (*graph.operators, *backward.operators):
        phase, narrow = _PHASES.index(operator.phase), runs_narrow(operator, tensors)
        unit = (0 if narrow else 1) if operator.kind is Kind.CONTRACTION else 2
        matrix[phase, unit] += float(as_array(flops(operator, sizes, Unit.MATRIX, causal=True)))
        if operator.kind is Kind.CONTRACTION:
            weights = routed if EXPERT_TOKENS in operator.dims else dense
            weights[phase] += _weight_points(operator, tensors, sizes) * (narrow_width if narrow else width)
        elif operator.kind is not Kind.LOSS:
            vector[phase] += float(as_array(flops(operator, sizes, Unit.VECTOR, causal=True)))
    return matrix, vector, dense, routed


def _weight_points(operator: Operator, tensors: Mapping[str, Tensor], sizes: Sizes) -> float:
    """Elements of weights and of their gradients among a product's operands."""
    operands = [tensors[operand.tensor] for operand in (*operator.inputs, *operator.outputs)]
    return sum(
        float(as_array(tensor.points(sizes)))
        for tensor in operands
        if tensor.role in (Role.WEIGHT, Role.WEIGHT_GRADIENT)
    )


@lru_cache(maxsize=64)
def _stream_elements(shared: _Shared) -> tuple[Floats, Floats]:
    """What tensor-parallel chips sum of a token's stream by layer class and phase, and what they gather and scatter."""
    layers = shared.graph.layers.values()
    whole, parts = ([_layer_stream(layer, in_sequence) for layer in layers] for in_sequence in (False, True))
    return np.stack(whole), np.stack(parts)


def _layer_stream(graph: LayerGraph, in_sequence: bool) -> Floats:
    """Those of one layer; none where they go one way only, as at the ends of the chain.

    All that a backward exchanges is its weight gradients': the input gradients alone may take less, hidden behind them.
    """
    placed = place_layer(graph, Strategy(Mesh(tensor=("tensor",)), sequence_parallel=in_sequence))
    kinds = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER) if in_sequence else (CollectiveKind.ALL_REDUCE,)
    token = graph.resolve(batch=1, seq=1)
    elements = np.zeros(3)
    for collective in placed.collectives:
        if collective.kind in kinds and collective.tensor.dims == _STREAM:
            phase = 0 if collective.phase is CollectivePhase.FORWARD else 2
            elements[phase] += float(as_array(collective.tensor.points(token)))
    return elements if elements[0] and elements[2] else np.zeros(3)


@lru_cache(maxsize=64)
def _parameters(shared: _Shared) -> tuple[float, float]:
    """Parameters with gradients, tied ones counted once: those that all tokens use, and those of routed experts."""
    counts, seen, totals = shared.graph.counts(), set[str](), [0.0, 0.0]
    for name, layer in shared.graph.layers.items():
        routed = {operand.tensor for o in layer.operators if EXPERT_TOKENS in o.dims for operand in o.inputs}
        trained = differentiate(layer).gradients
        for weight in layer.weights():
            if weight.name in trained and weight.tied not in seen:
                points = float(as_array(weight.points(layer.fixed_sizes())))
                totals[weight.name in routed] += points * (1 if weight.tied else counts[name])
                seen |= {weight.tied} if weight.tied else set()
    return totals[0], totals[1]
