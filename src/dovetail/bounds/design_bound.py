"""Seconds that no plan can beat on a cluster of a chip that nobody built: the bound L0 of many designs at once.

What a plan asks of a chip (`Demands`) does not depend on what the chip does in a second, so the bound of a design is
the least over plans of the largest over demands of demand × seconds for one of it. A plan that asks no less than
another of everything never decides, whatever the design: few are left, and each costs some array operations.

Plans are all that the model allows on so many chips, whatever framework runs them. Two kinds of fields need not be
listed: sharded weights (ZeRO-3) only ask for more, and of experts only the chips that share one replica of them
count. Of these every number that nests with the other degrees and divides experts × their columns is taken, some of
which no plan has; more plans make a bound lower, never wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product
from math import gcd, prod

import numpy as np

from dovetail import frameworks
from dovetail.arrays import TOLERANCE, Floats, Ints
from dovetail.bounds.hardware_bound import PEAKS, Demands, blocks_of, demands, formats_of
from dovetail.cost.calibration import Efficiencies
from dovetail.cost.operators import ChipUnits
from dovetail.cost.units import OPERANDS, chip_units, tier_arrays
from dovetail.graph.count import whole
from dovetail.graph.size import product as points
from dovetail.hardware import Cluster
from dovetail.hardware.design import NARROW_RATES, Designs, design_of
from dovetail.models import Job
from dovetail.plans.pipeline_schedule import MAX_CHUNK_RUNS, PipelineSchedule
from dovetail.plans.plan_batch import PlanBatch
from dovetail.plans.space import Space, divisors
from dovetail.plans.stage_degrees import stage_degrees

#: Designs that are bounded together: few enough for a processor's cache.
CHUNK = 8192


class DesignBound:
    """Lower bounds of a job's step over all plans with one of some micro-batches, for any designs of a base.

    The cluster is that of the base: its chips and the tiers beyond the chips' own links hold for all designs. What
    plans ask is found once for each format of products. `efficiencies` put what designs sustain in the place of
    published peaks: all designs of a base sustain the same parts of theirs.
    """

    def __init__(
        self, job: Job, cluster: Cluster, micro_batches: Sequence[int], efficiencies: Efficiencies = PEAKS
    ) -> None:
        self._job, self._cluster, self._micro_batches = job, cluster, tuple(micro_batches)
        self._efficiencies = efficiencies
        #: narrowest bits of a design → the terms of plans that may decide
        self._decisive: dict[float, Floats] = {}

    def least_s(self, designs: Designs) -> Floats:
        """Seconds that no plan beats, of each design; infinite where no plan has one of the micro-batches."""
        bounds = np.full(prod(designs.shape), np.inf)
        seconds = self._seconds(designs)
        for rows in _alike(designs, self._job):
            # all of them multiply the same numbers, at paces in the same proportions
            bits = float(np.broadcast_to(designs.narrowest_bits, designs.shape).reshape(-1)[rows[0]])
            if bits not in self._decisive:
                self._decisive[bits] = self._terms(designs, bits)
            _fill(bounds, rows, self._decisive[bits], seconds)
        return bounds.reshape(designs.shape)

    def _terms(self, designs: Designs, bits: float) -> Floats:
        plans = enumerated_plans(self._job, self._cluster, self._micro_batches)
        if not plans.micro_batch.size:
            return np.zeros((1, 0))
        formats = formats_of(self._units(designs, bits))
        asked = demands(self._job, formats, blocks_of(self._cluster), plans)
        outer = self._tier_rates[1:]
        return least_terms(_terms(asked, [1 / sum(outer[j:]) for j in range(len(outer))]))

    def _units(self, designs: Designs, bits: float) -> ChipUnits:
        """Those of a design with these narrowest products."""
        alike = design_of(designs.base).varied({"narrowest_bits": np.asarray(bits)}).chip(0, "design")
        return chip_units(alike, self._job.precision, self._efficiencies)

    @cached_property
    def _tier_rates(self) -> list[float]:
        """Bytes per second of every tier of the cluster of the base."""
        tiers = [tier_arrays(self._cluster.chip, tier, self._efficiencies) for tier in self._cluster.tiers]
        return [float(tier.bytes_per_s * tier.efficiency) for tier in tiers]

    def _seconds(self, designs: Designs) -> Floats:
        """Seconds for one of each demand, demands × designs.

        Those that designs differ in: matrix, vector, memory, and their own links where there are any.
        """
        sustained = self._units(designs, float(np.min(designs.narrowest_bits))).matrix.sustained
        rates = [
            designs.peak_flops(OPERANDS[self._job.precision]) * sustained,
            2 * designs.vector_cores * designs.vector_lanes * designs.clock_hz,
            _streaming_bytes_per_s(designs) * self._efficiencies.memory,
        ]
        if self._cluster.tiers:
            own = self._cluster.tiers[0].bytes_per_s
            inner = self._tier_rates[0] / own if own else 0.0
            rates.append(designs.link_bytes_per_s * inner + sum(self._tier_rates[1:]))
        with np.errstate(divide="ignore"):
            return np.stack([1 / np.broadcast_to(rate, designs.shape).reshape(-1) for rate in rates])


def _streaming_bytes_per_s(designs: Designs) -> Floats:
    """As of a chip: a design without off-chip memory streams from its own."""
    shared, core = designs.shared_sram_bytes_per_s, designs.vector_cores * designs.core_sram_bytes_per_s
    on_chip = np.where(np.isfinite(shared) & (shared > 0), shared, core)
    return np.where(designs.hbm_bytes_per_s > 0, designs.hbm_bytes_per_s, on_chip)


def _alike(designs: Designs, job: Job) -> list[Ints]:
    """Designs that multiply in the job's format, and those without it."""
    bits = NARROW_RATES.get(OPERANDS[job.precision], (0, 1.0))[0]
    narrow = np.broadcast_to(designs.narrowest_bits <= bits, designs.shape).reshape(-1)
    return [rows for rows in (np.nonzero(narrow)[0], np.nonzero(~narrow)[0]) if len(rows)]


def _terms(asked: Demands, beyond_s: Sequence[float]) -> Floats:
    """Demands × plans: those that designs differ in, and last the seconds that none changes."""
    kinds = [asked.matrix_flops, asked.vector_flops, asked.memory_bytes, *asked.sent_bytes[:1]]
    fixed = np.zeros(())
    for sent, seconds in zip(asked.sent_bytes[1:], beyond_s, strict=True):
        fixed = np.maximum(fixed, sent * seconds)
    return np.stack(np.broadcast_arrays(*kinds, fixed))


def least_terms(terms: Floats) -> Floats:
    """The columns that no other is below or equal to in every row; of equal ones one."""
    order = np.argsort(np.log(np.maximum(terms, np.finfo(np.float64).tiny)).sum(axis=0), kind="stable")
    left, undominated = terms[:, order], list[Floats]()
    while left.shape[1]:
        # nothing that comes later in this order can be below or equal to the first, unless it is equal
        first = left[:, :1]
        undominated.append(first)
        left = left[:, (left < first).any(axis=0)]
    return np.concatenate([terms[:, :0], *undominated], axis=1)


def _fill(bounds: Floats, rows: Ints, terms: Floats, times_s: Floats) -> None:
    """Writes the bounds of some designs, a part of them at a time."""
    for start in range(0, len(rows), CHUNK):
        chunk = rows[start : start + CHUNK]
        first, end = int(chunk[0]), int(chunk[-1]) + 1
        # neighbours are read where they are
        place = slice(first, end) if end - first == len(chunk) else chunk
        seconds = times_s[:, place]
        best, longest, one = np.full(len(chunk), np.inf), np.empty(len(chunk)), np.empty(len(chunk))
        for *asked, fixed in terms.T.tolist():
            longest.fill(fixed)
            for each, of_one in zip(asked, seconds, strict=True):
                if each:  # nothing of what takes forever takes no time
                    np.maximum(longest, np.multiply(of_one, each, out=one), out=longest)
            np.minimum(best, longest, out=best)
        np.multiply(best, 1 - TOLERANCE, out=one)
        bounds[place] = one


def enumerated_plans(job: Job, cluster: Cluster, micro_batches: Sequence[int]) -> PlanBatch:
    """All plans that the model allows with one of these micro-batches, as far as the bound depends on them."""
    chips, batch, num_layers = cluster.chips, job.global_batch, job.model.num_layers
    sizes = dict.fromkeys(micro_batches)
    assert all(size > 0 for size in sizes), "a micro-batch has a sequence or more"
    columns, rows = _expert_columns(job), list[tuple[float, ...]]()
    for t, c, in_sequence in _suitable(job, cluster):
        stages = [p for p in divisors(chips // (t * c)) if p <= num_layers + 2]
        for p, size in product(stages, sizes):
            d = chips // (t * c * p)
            if batch % (size * d):
                continue
            schedules = list(_schedules(p, batch // (size * d), num_layers))
            experts = _expert_chips(columns, t, c, d)
            rows += [(t, c, d, p, size, x, in_sequence, schedule) for x, schedule in product(experts, schedules)]
    names = np.array([schedule.value for schedule in PipelineSchedule])
    t, c, d, p, size, x, in_sequence, schedule = np.array(rows, np.float64).reshape(-1, 8).T
    return PlanBatch(
        tensor_parallel=t,
        context_parallel=c,
        data_parallel=d,
        pipeline_parallel=p,
        pipeline_schedule=names[schedule.astype(np.int64)],
        micro_batch=size,
        expert_parallel=x,
        expert_tensor_parallel=np.ones(()),
        sequence_parallel=in_sequence > 0,
        zero_stage=np.zeros(()),
        zero_group=np.ones(()),
    )


def _suitable(job: Job, cluster: Cluster) -> list[tuple[int, int, bool]]:
    """Tensor and context degrees, with and without sequence parallelism, that divide what they shard.

    Experts that are whole on every chip leave the other degrees most freedom, and so does gathering keys.
    """
    ideal = frameworks.load("ideal")
    narrowed = Space(context_kind=("all_gather",), expert_parallel=(1,), expert_tensor_parallel=(1,))
    degrees = stage_degrees(job, cluster, ideal, narrowed.resolve(job, cluster, ideal))
    return [(s.plan.tensor_parallel, s.plan.context_parallel, s.plan.sequence_parallel) for s in degrees]


def _expert_columns(job: Job) -> int:
    """Experts × their columns, as far as all layers have them in common: what chips share; 0 where there are none."""
    layers = [layer.fixed_sizes() for layer in job.graph().layers.values() if "experts" in layer.sizes]
    return gcd(*(whole(points(sizes, ("experts", "expert_ffn"))) for sizes in layers))


def _expert_chips(columns: int, t: int, c: int, d: int) -> list[int]:
    """Numbers of chips that can share one replica of all experts."""
    if not columns:
        return [t]
    shared = divisors(gcd(columns, t * c * d))
    return [x for x in shared if all(x % group == 0 or group % x == 0 for group in (t, t * c))]


def _schedules(p: int, m: int, num_layers: int) -> Iterator[int]:
    """Schedules, by number, that so many stages and micro-batches can have; one stage is the same under all."""
    for number, schedule in enumerate(PipelineSchedule):
        chunks = 2 if schedule is PipelineSchedule.INTERLEAVED else 1
        if p * m * chunks > MAX_CHUNK_RUNS or p * chunks > num_layers + 2:
            continue
        if p == 1 and schedule is not PipelineSchedule.ONE_F_ONE_B:
            continue
        if schedule is PipelineSchedule.DUAL_PIPE and (p % 2 or m % 2 or m < 2 * p):
            continue
        yield number
