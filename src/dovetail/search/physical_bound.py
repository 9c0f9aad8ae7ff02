"""Seconds that no step of a plan can take less than, from FLOPs, bytes and peak rates alone: the bound L0.

It holds for every framework, recompute choice and cut into stages, and is the largest of what each of these takes by
itself, everything else hidden behind it:

- matrix work: every product of the graph and of its derived backward, without what a causal mask leaves out, at the
  peak rate of the format it runs in, spread evenly over the chips of a stage. No operator is cut along an axis of the
  mesh twice, so a chip has at least its even part;
- memory: every weight of a product is streamed from memory once by the forward and by each of the two gradients. What
  products hand to each other may stay on the chip (maximal fusion) and is left out;
- tensor parallelism: the sums over the stream that the layout derivation finds with a tensor axis alone. Other axes
  cut what is summed but save no sum, and experts, however they are spread, only add exchanges;
- weights kept in shards (ZeRO 3): gathered for the forward and for the backward, and their gradients reduced;
- gradients: summed over all copies of the weights and brought back to them, once a step.

Weights that all tokens use and those of experts are looked at apart: they lie on different chips.

The first four are times of a microbatch; `Pipelines` says what a pipeline makes of them whatever its cut, and
`seconds_per_byte` how fast a network can be crossed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.cost.calibration import Efficiencies
from dovetail.cost.operators import ChipUnits, runs_narrow
from dovetail.cost.shapes import Array
from dovetail.cost.units import chip_units, tier_arrays
from dovetail.graph import Kind, LayerGraph, ModelGraph, Operator, Phase, Role, Tensor, Unit, differentiate, flops
from dovetail.graph.routing import EXPERT_TOKENS
from dovetail.graph.size import Sizes, as_array
from dovetail.graph.tensor import Element
from dovetail.hardware import Cluster
from dovetail.layout import CollectiveKind, Moment, Strategy, place_layer
from dovetail.layout.mesh import Mesh
from dovetail.models import Job
from dovetail.placement.plan import Plan

#: Taken off the bound, so that rounding does not lift it above a step time it equals.
ROUNDING = 1e-9

#: Bytes per parameter in which gradients are reduced and updated weights gathered, at least: a number of 8 bits.
LEAST_STATE_BYTES = 1.0

#: Shares of the forward below this are taken as none, and as this where they would be divided by.
LEAST_SHARE = 1e-3

#: The fields of a plan that the bound depends on.
FIELDS = (
    "tensor_parallel", "context_parallel", "data_parallel", "pipeline_parallel", "pipeline_schedule", "micro_batch",
    "expert_parallel", "expert_tensor_parallel", "sequence_parallel", "zero_stage", "zero_group",
)  # fmt: skip

#: Nothing lost and nothing waited for.
_PEAKS = Efficiencies(*(np.ones(()) for _ in range(7)), launch_s=np.zeros(()), collective_launch_s=np.zeros(()))

_PHASES = (Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)
#: Dims of what layers hand on.
_STREAM = ("batch", "seq", "hidden")


def bound_fields(plans: Sequence[Plan]) -> dict[str, Any]:
    """What `physical_bound` asks of plans, as arrays over them."""
    return {name: np.array([getattr(plan, name) for plan in plans]) for name in FIELDS}


def physical_bound(
    job: Job,
    cluster: Cluster,
    *,
    tensor_parallel: ArrayLike,
    context_parallel: ArrayLike,
    data_parallel: ArrayLike,
    pipeline_parallel: ArrayLike,
    pipeline_schedule: str | Sequence[str] | NDArray[np.str_],
    micro_batch: ArrayLike,
    expert_parallel: ArrayLike,
    expert_tensor_parallel: ArrayLike,
    sequence_parallel: ArrayLike,
    zero_stage: ArrayLike,
    zero_group: ArrayLike,
    state_bytes: ArrayLike = LEAST_STATE_BYTES,
    efficiencies: Efficiencies | None = None,
) -> Array:
    """Seconds a step takes at least, of plans given by arrays that broadcast.

    `state_bytes` is the width of a parameter's gradient as it is reduced, or of the weight as it is gathered, the
    smaller of the two; `efficiencies` put what a calibration says is sustained in the place of published peaks.
    """
    t, c, d, p = (_floats(n) for n in (tensor_parallel, context_parallel, data_parallel, pipeline_parallel))
    size, state = _floats(micro_batch), _floats(state_bytes)
    known = efficiencies or _PEAKS
    network, units = _network(cluster, known), chip_units(cluster.chip, job.precision, known)
    counts = _counts(_Shared(job.graph()), job.seq_len, units.narrow_bytes, job.element_bytes()[Element.COMPUTE])
    # a batch that does not divide has no plan; its bound means nothing, but is a number
    pipelines = Pipelines(np.maximum(job.global_batch / (size * d), 1.0), p, np.asarray(pipeline_schedule))

    matrix = counts.matrix_seconds(units)
    worked = [size / (t * c) * part for part in counts.over_layers(matrix)]
    expert_chips = _floats(expert_parallel) * _floats(expert_tensor_parallel)
    streamed = counts.streamed_seconds(units, t, expert_chips)
    shares = _forward_shares(matrix, counts.dense_bytes, counts.expert_bytes)
    on_chips = pipelines.least_seconds([worked, streamed], shares)

    width, reduction, sums = counts.width, np.zeros(()), list[list[Array]]()
    for held, apart, alike in counts.copied_parameters(t, expert_chips):
        sharded = seconds_per_byte(network, np.maximum(t * _floats(zero_group) / apart, 1.0), apart, alike)
        sharded = np.where(_floats(zero_stage) == 3, held * sharded, 0.0)
        sums.append([sharded * wide for wide in (width, 0.0, width + state)])
        copied = seconds_per_byte(network, np.maximum(t * c * d / apart, 1.0), apart, alike, all_reduce=True)
        reduction = np.maximum(reduction, held / p * state * copied)
    sums.append(counts.summed_seconds(network, t, size / c, np.asarray(sequence_parallel, np.bool_)))
    widths = np.array([[width, 0.0, width + end] for end in (state.min(), state.max())])
    shares = _forward_shares(counts.reduced_bytes, counts.scattered_bytes, widths)
    between_chips = pipelines.least_seconds(sums, shares)
    return np.maximum(np.maximum(on_chips, between_chips), reduction) * (1 - ROUNDING)


def _floats(values: ArrayLike) -> Array:
    return np.asarray(values, np.float64)


@dataclass(frozen=True)
class Pipelines:
    """Pipelines of plans, an array over them in every field."""

    num_microbatches: Array
    num_stages: Array
    schedule: NDArray[np.str_]

    def least_seconds(self, works: Sequence[Sequence[Array]], forward_shares: tuple[float, float]) -> Array:
        """What a step takes at least by each of several works alone, given the shares of any layer's that are forward.

        A work is a microbatch's forward, input gradient and weight gradient through all layers.
        """
        factor = self._factor(*forward_shares)
        least: Array = np.zeros(())
        for forward, of_input, of_weight in works:
            # a microbatch passes all layers and its gradient comes back; weight gradients may wait
            least = np.maximum(least, forward + of_input)
            least = np.maximum(least, factor * (forward + of_input + of_weight))
        return least

    def _factor(self, least_share: float, most_share: float) -> Array:
        """Times a microbatch's work T on m microbatches takes at least, whatever the cut into p stages.

        The stages' works t_k add up to T, of which the forward is a share between the two given.

        - Any schedule: the busiest stage has T/p or more of every microbatch: m/p.
        - GPipe: each half is a flow shop, Σ + (m − 1) · max of its stages: (m + p − 1)/p.
        - ZB-H1: stage k starts after the forwards of those before it: step ≥ a · P_k + m · t_k, with P_k = Σ_{i<k} t_i
          and a the least share. So step − a · P_k shrinks by no more than 1 − a/m from stage to stage, and
          step − a · T ≥ step · (1 − a/m)^p: a / (1 − (1 − a/m)^p).
        - 1F1B: after stage k's last backward come those of the stages before it too: the same with a = 1. And its first
          backward, which follows all forwards and the backwards behind it, comes after w = min(m, p − k) of its own
          forwards: step ≥ T + (m − 1) · t_k − (w − 1) · F_k, with F_k ≤ b · t_k for the most share b. Summed over
          stages: 1 + 1 / Σ_k 1/((m − 1) − b · (w − 1)).
        - A backward that is not split follows a whole forward (all but ZB-H1 and DualPipe): 1.
        """
        m, p = self.num_microbatches, self.num_stages
        factor = m / p
        factor = np.where((self.schedule == "interleaved") & (factor < 1), 1.0, factor)
        factor = np.where(self.schedule == "gpipe", (m + p - 1) / p, factor)
        zero_bubble, plain = self.schedule == "zb_h1", self.schedule == "1f1b"
        if np.any(zero_bubble) and least_share > LEAST_SHARE:
            late = least_share / (1 - _power(1 - least_share / m, p))
            factor = np.where(zero_bubble, np.maximum(factor, late), factor)
        if np.any(plain):
            held = 1 + 1 / _waits(m, p, max(most_share, LEAST_SHARE))
            factor = np.where(plain, np.maximum(self._filled, held), factor)
        return factor

    @cached_property
    def _filled(self) -> Array:
        return 1 / (1 - _power(1 - 1 / self.num_microbatches, self.num_stages))


def _power(base: Array, exponent: Array) -> Array:
    """Whole powers by squaring: the same bits on every machine and for one plan as for many, as `**` does not give."""
    left = exponent.astype(np.int64)
    power: Array = np.ones(())
    for _ in range(int(left.max(initial=0)).bit_length()):
        power = np.where(left & 1, power * base, power)
        base, left = base * base, left >> 1
    return power


def _waits(m: Array, p: Array, share: float) -> Array:
    """The sum over stages of 1F1B, Σ_k 1/((m − 1) − b · (min(m, p − k) − 1)), or a little more.

    Of the terms that differ the largest is taken as it is; the others, convex in w, are below their integral, and its
    logarithm ln x below (x − 1)/√x.
    """
    again = np.maximum(m - 1, 1e-9)
    held = np.minimum(m, p) - 1
    rest = np.maximum(again - share * held, 1e-12 * again)
    ratio = (again + share / 2) / (rest + share / 2)
    return (ratio - 1) / np.sqrt(ratio) / share + (p - held) / rest


def seconds_per_byte(
    network: Network, group: Array, spacing: Array, alike: Array | float = 1.0, *, all_reduce: bool = False
) -> Array:
    """Seconds per byte each chip of a group holds whole, to sum or to gather it, by the tightest cut of the network.

    A block of neighbouring chips inside tier j has at most `inside` of the group's n chips, `spacing` apart. A sum
    over the group is brought to all of them, or what is spread over them gathered, only if (1 − inside/n) of the bytes
    enter every block on average, over its chips' links of tier j and beyond: those of the `inside` chips, and of others
    that hold the same (`alike` for each). To sum, as much leaves to be added up elsewhere; where no switch adds up or
    hands out, each byte of either is a chip's own to send, so an all-reduce needs both (Patarasuk, Yuan 2009).
    """
    worst: Array = np.zeros(())
    for block, bytes_per_s, adding in network:
        inside = np.clip(block / spacing, 1.0, group)
        carriers = np.clip(block * alike / spacing, 1.0, group * alike)
        times = 2.0 if all_reduce and not adding else 1.0
        worst = np.maximum(worst, times * (1 - inside / group) / (carriers * bytes_per_s))
    return worst


#: For the blocks of chips inside each tier: their size, what a chip sends beyond them, and whether switches add up.
Network = Sequence[tuple[float, float, bool]]


def _network(cluster: Cluster, efficiencies: Efficiencies) -> Network:
    arrays = [tier_arrays(cluster.chip, tier, efficiencies) for tier in cluster.tiers]
    rates = [float(tier.bytes_per_s * tier.efficiency) for tier in arrays]
    blocks = [1, *(tier.size for tier in cluster.tiers)]
    return [
        (float(blocks[j]), sum(rates[j:]), any(tier.in_network_reduction for tier in arrays[j:]))
        for j in range(len(arrays))
    ]


@dataclass(frozen=True, slots=True)
class _Counts:
    """Work and bytes of one sequence; the first axis is the layer class, the second the phase."""

    #: how often each layer class occurs
    layers: Array
    #: matrix FLOPs; the last axis: products in the job's format, in half precision, and inside attention kernels
    matrix_flops: Array
    #: of the weights that products read and the gradients they write: those all tokens use, and those of experts
    dense_bytes: Array
    expert_bytes: Array
    #: of the stream where tensor-parallel chips reduce it, and where they gather and scatter parts of the sequence
    reduced_bytes: Array
    scattered_bytes: Array
    #: that have gradients, tied ones once: those all tokens use, and those of experts
    dense_parameters: float
    expert_parameters: float
    #: bytes of an element as layers hand it on
    width: float

    def matrix_seconds(self, units: ChipUnits) -> Array:
        """Seconds of the products on one chip, by layer class and phase."""
        narrow, half = (float(part.peak_flops * part.sustained) for part in (units.matrix, units.half))
        attention = units.attention
        forward = float(attention.matrix_flops * attention.forward_efficiency)
        backward = float(attention.matrix_flops * attention.backward_efficiency)
        rates = np.array([[narrow, half, forward], [narrow, half, backward], [narrow, half, backward]])
        return (self.matrix_flops / rates).sum(axis=-1)

    def streamed_seconds(self, units: ChipUnits, tensor: Array, expert_chips: Array) -> list[Array]:
        """Seconds of a chip's memory for one microbatch's weights, by phase."""
        parts = zip(self.over_layers(self.dense_bytes), self.over_layers(self.expert_bytes), strict=True)
        return [(dense / tensor + routed / expert_chips) / units.matrix.memory_bytes_per_s for dense, routed in parts]

    def summed_seconds(
        self, network: Network, tensor: Array, sequences: Array, in_sequence: NDArray[np.bool_]
    ) -> list[Array]:
        """Seconds of tensor-parallel sums over so many sequences, by phase."""
        alone = np.ones(())
        reduced = sequences * seconds_per_byte(network, tensor, alone, all_reduce=True)
        scattered = sequences * seconds_per_byte(network, tensor, alone)
        parts = zip(self.over_layers(self.reduced_bytes), self.over_layers(self.scattered_bytes), strict=True)
        return [np.where(in_sequence, scattered * shards, reduced * whole) for whole, shards in parts]

    def copied_parameters(self, tensor: Array, expert_chips: Array) -> list[tuple[Array, Array, Array]]:
        """Weights all tokens use, and experts: how many a chip holds, how far copies are apart, chips alike in a copy.

        Where fewer chips share the experts than are tensor parallel, several of these hold the same.
        """
        found = [(self.dense_parameters / tensor, tensor, np.ones(()))]
        if self.expert_parameters:
            apart = np.maximum(tensor, expert_chips)
            found.append((self.expert_parameters / expert_chips, apart, apart / expert_chips))
        return found

    def over_layers(self, work: Array) -> list[float]:
        """All layers together, by phase."""
        return (self.layers @ work).tolist()


def _forward_shares(*works: Array) -> tuple[float, float]:
    """The least and the most that the forward is of any layer class's work."""
    rows = np.concatenate(works)
    totals = rows.sum(axis=1)
    shares = rows[totals > 0, 0] / totals[totals > 0]
    return (float(shares.min()), float(shares.max())) if len(shares) else (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class _Shared:
    """A graph as a cache key: graphs are built once per model and shared, so identity serves."""

    graph: ModelGraph

    def __hash__(self) -> int:
        return id(self.graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shared) and other.graph is self.graph


@lru_cache(maxsize=64)
def _counts(shared: _Shared, seq_len: int, narrow_bytes: float | None, width: int) -> _Counts:
    graph = shared.graph
    classes = [_layer_counts(layer, seq_len, narrow_bytes or width, width) for layer in graph.layers.values()]
    matrix, dense, routed = (np.stack(parts) for parts in zip(*classes, strict=True))
    layers = np.array([graph.counts()[name] for name in graph.layers], np.float64)
    reduced, scattered = (seq_len * width * part for part in _stream_elements(shared))
    return _Counts(layers, matrix, dense, routed, reduced, scattered, *_parameters(shared), float(width))


def _layer_counts(graph: LayerGraph, seq_len: int, narrow_width: float, width: float) -> tuple[Array, Array, Array]:
    """Of one layer and sequence, by phase: matrix FLOPs by how they are run, bytes of dense and of routed weights."""
    backward = differentiate(graph).graph
    tensors = {**backward.tensors, **graph.tensors}
    sizes = graph.resolve(batch=1, seq=seq_len)
    matrix, dense, routed = np.zeros((3, 3)), np.zeros(3), np.zeros(3)
    for operator in (*graph.operators, *backward.operators):
        phase, narrow = _PHASES.index(operator.phase), runs_narrow(operator, tensors)
        unit = (0 if narrow else 1) if operator.kind is Kind.CONTRACTION else 2
        matrix[phase, unit] += float(as_array(flops(operator, sizes, Unit.MATRIX, causal=True)))
        if operator.kind is Kind.CONTRACTION:
            weights = routed if EXPERT_TOKENS in operator.dims else dense
            weights[phase] += _weight_points(operator, tensors, sizes) * (narrow_width if narrow else width)
    return matrix, dense, routed


def _weight_points(operator: Operator, tensors: Mapping[str, Tensor], sizes: Sizes) -> float:
    """Elements of weights and of their gradients among a product's operands."""
    operands = [tensors[operand.tensor] for operand in (*operator.inputs, *operator.outputs)]
    return sum(
        float(as_array(tensor.points(sizes)))
        for tensor in operands
        if tensor.role in (Role.WEIGHT, Role.WEIGHT_GRADIENT)
    )


@lru_cache(maxsize=64)
def _stream_elements(shared: _Shared) -> tuple[Array, Array]:
    """What tensor-parallel chips sum of a token's stream by layer class and phase, and what they gather and scatter."""
    layers = shared.graph.layers.values()
    whole, parts = ([_layer_stream(layer, in_sequence) for layer in layers] for in_sequence in (False, True))
    return np.stack(whole), np.stack(parts)


def _layer_stream(graph: LayerGraph, in_sequence: bool) -> Array:
    """Those of one layer; none where they go one way only, as at the ends of the chain.

    All that a backward exchanges is its weight gradients': the input gradients alone may take less, hidden behind them.
    """
    placed = place_layer(graph, Strategy(Mesh(tensor=("tensor",)), sequence_parallel=in_sequence))
    kinds = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER) if in_sequence else (CollectiveKind.ALL_REDUCE,)
    token = graph.resolve(batch=1, seq=1)
    found = np.zeros(3)
    for collective in placed.collectives:
        if collective.kind in kinds and collective.tensor.dims == _STREAM:
            phase = 0 if collective.moment is Moment.FORWARD else 2
            found[phase] += float(as_array(collective.tensor.points(token)))
    return found if found[0] and found[2] else np.zeros(3)


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
