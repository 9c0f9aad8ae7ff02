"""Seconds that no step of a plan can take less than, from FLOPs, bytes and peak rates alone: the bound L0.

It holds for every framework, recompute policy and partition, and is the largest of what each of these takes by
itself, everything else hidden behind it:

- matrix work and vector work: all that `least_work` counts, at the peak rate of its format and of the lanes, spread
    evenly over the chips of a stage. No operator is sharded twice along an axis of the mesh, so a chip has at least its
    even part;
- memory: the weights that products stream;
- tensor parallelism: the sums over the residual stream. Other axes shard what is summed but save no sum, and experts,
  however they are spread, only add exchanges;
- sharded weights (ZeRO-3): gathered for the forward and for the backward, and their gradients reduced;
- gradients: summed over all replicas of the weights and brought back to them, once a step.

All but the last are times of a micro-batch; `Pipelines` says what a pipeline makes of them over all partitions, and
`crossing` what of a chip's bytes crosses each part of a network.

What a plan asks of a chip (`Demands`) and what a chip does in a second (`Pace`) are separate: the bound is the
largest of the one over the other, so what is asked is counted once for any number of chips that differ in pace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dovetail.arrays import ROUNDING, TOLERANCE, Bools, Floats, summed
from dovetail.bounds.least_work import LeastWork, forward_shares, least_work
from dovetail.cost.calibration import Efficiencies
from dovetail.cost.operators import ChipUnits
from dovetail.cost.units import chip_units, tier_arrays
from dovetail.frozen import frozen
from dovetail.hardware import Cluster
from dovetail.models import Job
from dovetail.plans.plan_batch import PlanBatch

#: Bytes per parameter in which gradients are reduced and updated weights gathered, at least: a number of 8 bits.
LEAST_STATE_BYTES = 1.0

#: Shares of the forward below this are taken as none, and as this where they would be divided by.
LEAST_SHARE = 1e-3

#: Nothing lost and nothing waited for.
PEAKS = Efficiencies(*(np.ones(()) for _ in range(7)), launch_s=np.zeros(()), collective_launch_s=np.zeros(()))


def hardware_bound(
    job: Job,
    cluster: Cluster,
    plans: PlanBatch,
    *,
    state_bytes: ArrayLike = LEAST_STATE_BYTES,
    efficiencies: Efficiencies | None = None,
) -> Floats:
    """Seconds a step takes at least, of plans given by columns that broadcast.

    `state_bytes` is the width of a parameter's gradient as it is reduced, or of the weight as it is gathered, the
    smaller of the two; `efficiencies` put what a calibration says is sustained in the place of published peaks.
    """
    sustained = efficiencies or PEAKS
    units = chip_units(cluster.chip, job.precision, sustained)
    asked = demands(job, formats_of(units), blocks_of(cluster), plans, np.asarray(state_bytes, np.float64))
    return asked.seconds(_pace(cluster, units, sustained)) * (1 - TOLERANCE)


@frozen
class Pace:
    """What a chip does in a second at best; numbers, or arrays over chips."""

    #: products in the job's format
    matrix_flops: Floats
    vector_flops: Floats
    memory_bytes_per_s: Floats
    #: what it sends beyond the blocks of each tier
    sent_bytes_per_s: tuple[Floats, ...]


@frozen
class Demands:
    """What a step of a plan asks of a chip at least; arrays over plans."""

    #: products, as FLOPs that the job's format would make in the same time
    matrix_flops: Floats
    vector_flops: Floats
    memory_bytes: Floats
    #: what it sends beyond the blocks of each tier
    sent_bytes: tuple[Floats, ...]

    def seconds(self, pace: Pace) -> Floats:
        """The longest that any of them takes alone."""
        longest = np.maximum(self.matrix_flops / pace.matrix_flops, self.vector_flops / pace.vector_flops)
        longest = np.maximum(longest, self.memory_bytes / pace.memory_bytes_per_s)
        for sent, bytes_per_s in zip(self.sent_bytes, pace.sent_bytes_per_s, strict=True):
            longest = np.maximum(longest, sent / bytes_per_s)
        return longest


@frozen
class Formats:
    """The numbers a chip multiplies for a job: all of a chip that its demands depend on."""

    #: the peak of the job's format over that of products in it, in half precision, and inside attention; by phase
    slowness: Floats
    #: of an element in the job's narrow format; None where there is none
    narrow_bytes: float | None


def formats_of(units: ChipUnits) -> Formats:
    """How a chip runs the products of a job."""
    narrow, half = (float(part.peak_flops * part.sustained) for part in (units.matrix, units.half))
    attention = units.attention
    forward = float(attention.matrix_flops * attention.forward_efficiency)
    backward = float(attention.matrix_flops * attention.backward_efficiency)
    rates = np.array([[narrow, half, forward], [narrow, half, backward], [narrow, half, backward]])
    return Formats(narrow / rates, units.narrow_bytes)


def demands(
    job: Job, formats: Formats, blocks: Blocks, plans: PlanBatch, state: Floats | float = LEAST_STATE_BYTES
) -> Demands:
    """What plans ask of the chips of a cluster, whatever these do in a second."""
    work, size = least_work(job, formats.narrow_bytes), plans.micro_batch
    t, c, d, p = plans.tensor_parallel, plans.context_parallel, plans.data_parallel, plans.pipeline_parallel
    # a batch that does not divide has no plan; its bound means nothing, but is a number
    pipelines = Pipelines(np.maximum(job.global_batch / (size * d), 1.0), p, plans.pipeline_schedule)

    def on_chip(counted: Floats) -> Floats:
        parts = [size / (t * c) * part for part in work.over_layers(counted)]
        return pipelines.lower_bound(parts, forward_shares(counted))

    expert_chips = plans.expert_parallel * plans.expert_tensor_parallel
    streamed = pipelines.lower_bound(
        work.streamed_bytes(t, expert_chips), forward_shares(work.dense_bytes, work.expert_bytes)
    )
    return Demands(
        matrix_flops=on_chip((work.matrix_flops * formats.slowness).sum(axis=-1)),
        vector_flops=on_chip(work.vector_flops),
        memory_bytes=streamed,
        sent_bytes=_sent_bytes(work, blocks, plans, pipelines, np.asarray(state)),
    )


def _sent_bytes(
    work: LeastWork, blocks: Blocks, plans: PlanBatch, pipelines: Pipelines, state: Floats
) -> tuple[Floats, ...]:
    """Bytes a chip sends beyond the blocks of each tier, by whatever makes it send most."""
    t, p, width, in_sequence = plans.tensor_parallel, plans.pipeline_parallel, work.width, plans.sequence_parallel
    stage_chips = t * plans.context_parallel * plans.data_parallel
    widths = np.array([[width, 0.0, width + end] for end in (state.min(), state.max())])
    gathered = np.where(
        plans.zero_stage == 3, pipelines.lower_bound([width, 0.0, width + state], forward_shares(widths)), 0.0
    )
    stream = zip(work.over_layers(work.reduced_bytes), work.over_layers(work.scattered_bytes), strict=True)
    summed = [np.where(in_sequence, shards, whole) for whole, shards in stream]
    shares = forward_shares(work.reduced_bytes, work.scattered_bytes)
    sums = plans.micro_batch / plans.context_parallel * pipelines.lower_bound(summed, shares)
    expert_chips = plans.expert_parallel * plans.expert_tensor_parallel
    copied = work.replicated_parameters(t, expert_chips)
    by_tier: list[Floats] = []
    for block, adding in blocks:
        # with sequence parallelism the stream is gathered and scattered, without it all-reduced
        sent = sums * crossing(block, t, 1.0, times=np.where(in_sequence | adding, 1.0, 2.0))
        for parameters, spacing, alike in copied:
            sharded = crossing(block, np.maximum(t * plans.zero_group / spacing, 1.0), spacing, alike)
            reduced = crossing(
                block, np.maximum(stage_chips / spacing, 1.0), spacing, alike, times=1.0 if adding else 2.0
            )
            sent = np.maximum(sent, parameters * np.maximum(gathered * sharded, state / p * reduced))
        by_tier.append(sent)
    return tuple(by_tier)


@dataclass(frozen=True)
class Pipelines:
    """Pipelines of plans, an array over them in every field."""

    num_microbatches: Floats
    num_stages: Floats
    schedule: NDArray[np.str_]

    def lower_bound(self, work: Sequence[Floats | float], forward_shares: tuple[float, float]) -> Floats:
        """The least of a work that runs one after the other in a step, given the forward shares of all layers.

        The work is a micro-batch's forward, input gradient and weight gradient through all layers.
        """
        forward, of_input, of_weight = work
        # a micro-batch passes all layers and its gradient comes back; weight gradients may wait
        return np.maximum(forward + of_input, self._factor(*forward_shares) * (forward + of_input + of_weight))

    def _factor(self, least_share: float, most_share: float) -> Floats:
        """How many times a micro-batch's work T a step of m takes at least, over all partitions into p stages.

        The stages' works t_k add up to T, of which the forward is a share between the two given.

        - Any schedule: the busiest stage has T/p or more of every micro-batch: m/p.
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
        interleaved, g_pipe, zero_bubble, plain = self._runs
        factor = np.where(interleaved & (factor < 1), 1.0, factor)
        factor = np.where(g_pipe, (m + p - 1) / p, factor)
        if np.any(zero_bubble) and least_share > LEAST_SHARE:
            late = least_share / (1 - _power(1 - least_share / m, p))
            factor = np.where(zero_bubble, np.maximum(factor, late), factor)
        if np.any(plain):
            waited = 1 + 1 / _waits(m, p, max(most_share, LEAST_SHARE))
            factor = np.where(plain, np.maximum(self._filled, waited), factor)
        return factor

    @cached_property
    def _runs(self) -> tuple[Bools, ...]:
        """Which of them are interleaved, GPipe, ZB-H1 and 1F1B: comparing texts takes longer than the rest."""
        return tuple(self.schedule == name for name in ("interleaved", "gpipe", "zb_h1", "1f1b"))

    @cached_property
    def _filled(self) -> Floats:
        return 1 / (1 - _power(1 - 1 / self.num_microbatches, self.num_stages))


def _power(base: Floats, exponent: Floats) -> Floats:
    """Whole powers by squaring: the same bits on every machine and for one plan as for many, as `**` does not give."""
    left = exponent.astype(np.int64)
    power: Floats = np.ones(())
    for _ in range(int(left.max(initial=0)).bit_length()):
        power = np.where(left & 1, power * base, power)
        base, left = base * base, left >> 1
    return power


def _waits(m: Floats, p: Floats, share: float) -> Floats:
    """The sum over stages of 1F1B, Σ_k 1/((m − 1) − b · (min(m, p − k) − 1)), or a little more.

    Of the terms that differ the largest is taken as it is; the others, convex in w, are below their integral, and its
    logarithm ln x below (x − 1)/√x.
    """
    others = np.maximum(m - 1, TOLERANCE)
    waiting = np.minimum(m, p) - 1
    rest = np.maximum(others - share * waiting, ROUNDING * others)
    ratio = (others + share / 2) / (rest + share / 2)
    return (ratio - 1) / np.sqrt(ratio) / share + (p - waiting) / rest


#: For the blocks of chips inside each tier: their size, and whether switches beyond them add up.
Blocks = Sequence[tuple[int, bool]]


def blocks_of(cluster: Cluster) -> Blocks:
    """Single chips, and the groups of every tier but the last."""
    tiers = cluster.tiers
    sizes = [1, *(tier.size for tier in tiers)]
    return [(sizes[j], any(tier.in_network_reduction for tier in tiers[j:])) for j in range(len(tiers))]


def crossing(
    block: float, group: Floats, spacing: Floats | float, alike: Floats | float = 1.0, times: Floats | float = 1.0
) -> Floats:
    """What a chip of a group sends beyond its block, per byte each of them holds whole, to sum or to gather it.

    A block of neighbouring chips has at most `inside` of the group's n chips, `spacing` apart. A sum over the group is
    brought to all of them, or what is spread over them gathered, only if (1 − inside/n) of the bytes enter every block
    on average, over its chips' links of the tiers beyond: those of the `inside` chips, and of others that hold the same
    (`alike` for each). To sum, as much leaves to be added up elsewhere; where no switch adds up or hands out, each byte
    of either is a chip's own to send, so an all-reduce needs both (2 `times`; Patarasuk, Yuan 2009).
    """
    inside = np.clip(block / spacing, 1.0, group)
    carriers = np.clip(block * alike / spacing, 1.0, group * alike)
    return times * (1 - inside / group) / carriers


def _pace(cluster: Cluster, units: ChipUnits, efficiencies: Efficiencies) -> Pace:
    arrays = [tier_arrays(cluster.chip, tier, efficiencies) for tier in cluster.tiers]
    rates = [tier.bytes_per_s * tier.efficiency for tier in arrays]
    return Pace(
        units.matrix.peak_flops * units.matrix.sustained,
        units.vector.vector_flops,
        units.matrix.memory_bytes_per_s,
        tuple(summed(rates[j:]) for j in range(len(rates))),
    )
