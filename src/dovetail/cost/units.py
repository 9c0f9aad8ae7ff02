"""Chips as the cost models see them: published peaks times calibrated efficiencies."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dovetail.arrays import Floats
from dovetail.cost.attention import AttentionUnits
from dovetail.cost.calibration import Efficiencies, calibration, generation_followed, power_share
from dovetail.cost.contraction import MatrixUnits
from dovetail.cost.operators import ChipUnits, Cores
from dovetail.cost.tier import GridAxis, TierArrays
from dovetail.cost.vector import VectorUnits
from dovetail.errors import InputError
from dovetail.hardware import Chip, Cluster, Tier
from dovetail.hardware.network import ways

#: A chunk that leaves a node passes through the host's proxy at both ends: so many starts instead of one. Assumed,
#: with a look at training runs; messages up to 1 MiB between four B200 nodes take 360 µs, which this does not explain.
NETWORK_STARTS = 3

#: From this year on GPUs copy and multiply asynchronously. Attention kernels written before do not use that and reach
#: this part of those that do (FlashAttention-3 paper, section 1: FlashAttention-2 reaches 35 % of an H100's peak).
ASYNCHRONOUS_YEAR, SYNCHRONOUS_SHARE = 2022, 0.57

#: Special-function operations of a GPU's core in a clock: CUDA C++ Programming Guide, throughput of native arithmetic
#: instructions, 16 from compute capability 7.0 on; AMD's cores have a quarter of 64 lanes. Blackwell Ultra doubles them
#: (NVIDIA, "Making Softmax More Efficient with NVIDIA Blackwell Ultra").
SPECIAL_FUNCTIONS = 16
DOUBLED_SPECIAL_FUNCTIONS = frozenset({"blackwell-ultra"})

#: Jobs of fewer than 16 bits read each operand and write it narrow twice, as it is and transposed: 2 + 1 + 1 bytes in
#: fp8 (Transformer Engine, cast_transpose).
CAST_BYTES = {"fp8": 4.0, "fp4": 3.125}
#: Bytes of an element as it is multiplied; fp4 has a scale of one byte for 16.
NARROW_BYTES = {"fp8": 1.0, "fp4": 0.5625}

#: Precisions of a job → the operand precision its matrix products run in.
OPERANDS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp4": "fp4", "fp32": "tf32"}


def chip_units(
    chip: Chip,
    precision: str,
    efficiencies: Efficiencies | None = None,
    traffic: Floats | float = 1.0,
    attention: Floats | float = 1.0,
    *,
    synchronous: bool = False,
) -> ChipUnits:
    """One chip for one precision, at its own efficiencies or others (arrays: many at once).

    `traffic` is what vector kernels move, of the bytes that fused ones would; `attention` what attention kernels
    reach, of the best of their time; `synchronous` ones are from before the chip.
    """
    sustained = efficiencies or calibration(chip, precision).efficiencies
    rates = chip.dense_flops.published()
    # a chip without figures for a precision runs it at its half-precision rate
    half = rates.get("bf16", rates.get("fp16", 0.0))
    peak = rates.get(OPERANDS[precision], half)
    memory = _streaming_bytes_per_s(chip) * sustained.memory
    vector = _number(2 * chip.vector_cores * chip.vector_lanes * chip.clock_hz)
    units = _matrix_count(chip)
    matrix = _matrix_units(chip, peak, sustained.matrix * power_share(chip), memory, sustained.launch_s)
    slower = _matrix_units(chip, min(half, peak), sustained.matrix_half * power_share(chip), memory, sustained.launch_s)
    reached = power_share(chip) * attention * (SYNCHRONOUS_SHARE if synchronous and _asynchronous(chip) else 1.0)
    fused = AttentionUnits(
        # its products keep half precision in narrower jobs
        matrix_flops=_number(min(half, peak)),
        # elsewhere than on GPUs a block of queries is not bound to one unit
        units=_number(units if chip.kind == "gpu" else 1),
        forward_efficiency=sustained.attention_forward * reached,
        backward_efficiency=sustained.attention_backward * reached,
        vector_flops=vector,
        exponentials_per_s=_number(_exponentials_per_s(chip)),
        blocked=_number(chip.kind == "gpu"),
        memory_bytes_per_s=memory,
        launch_s=sustained.launch_s,
    )
    lanes = VectorUnits(vector, memory / traffic, sustained.launch_s)
    # a chip without the format multiplies in half precision, and nothing is cast
    narrow = precision if OPERANDS[precision] in rates else "bf16"
    casts = CAST_BYTES.get(narrow, 0.0)
    cores = Cores(_number(chip.tensor_cores), _number(chip.vector_cores), _number(chip.clock_hz))
    sharing = "scheduled" if chip.shares_cores else "none"
    systolic, width = chip.kind == "systolic", NARROW_BYTES.get(narrow)
    return ChipUnits(matrix, slower, fused, lanes, systolic, cores, sharing, width, casts)


def _matrix_count(chip: Chip) -> int:
    """Units that products are spread over: systolic arrays, or cores with all their small matrix units."""
    return chip.tensor_cores if chip.kind == "systolic" else chip.vector_cores


def _matrix_units(chip: Chip, peak_flops: float, sustained: Floats, memory: Floats, launch_s: Floats) -> MatrixUnits:
    """One chip's matrix units at one precision's peak."""
    rows, cols, units = chip.rows or 1, chip.cols or 1, _matrix_count(chip)
    core_bytes_per_s = chip.vector_cores * chip.core_sram_bytes_per_s if chip.core_sram_bytes_per_s else None
    return MatrixUnits(
        peak_flops=_number(peak_flops),
        units=_number(units),
        rows=_number(rows),
        cols=_number(cols),
        # full arrays reach the published peak of the precision, whatever part of their cells it uses
        clock_hz=_number(peak_flops / (2 * units * rows * cols)),
        memory_bytes_per_s=memory,
        buffer_bytes=_number(max(chip.shared_sram_bytes, chip.vector_cores * chip.core_sram_bytes, 2.0**20)),
        sustained=sustained,
        launch_s=launch_s,
        output_stationary=_number(chip.dataflow == "output"),
        shared_sram_bytes_per_s=_level_bytes_per_s(chip.shared_sram_bytes, chip.shared_sram_bytes_per_s),
        core_sram_bytes=_number(chip.core_sram_bytes),
        core_sram_bytes_per_s=_level_bytes_per_s(chip.core_sram_bytes, core_bytes_per_s),
    )


def _level_bytes_per_s(capacity_bytes: float, bytes_per_s: float | None) -> Floats:
    """What a memory on the chip lets through; no limit where it holds nothing or has no figure."""
    return _number(bytes_per_s if capacity_bytes and bytes_per_s else math.inf)


def _exponentials_per_s(chip: Chip) -> float:
    """What special-function units compute; no limit where they have no figure."""
    if chip.kind != "gpu":
        return math.inf
    doubled = 2 if generation_followed(chip) in DOUBLED_SPECIAL_FUNCTIONS else 1
    return doubled * SPECIAL_FUNCTIONS * chip.vector_cores * chip.clock_hz


def _asynchronous(chip: Chip) -> bool:
    return chip.kind == "gpu" and chip.year >= ASYNCHRONOUS_YEAR


def _streaming_bytes_per_s(chip: Chip) -> float:
    """The rate kernels stream at; a chip without off-chip memory streams from its own."""
    streaming = chip.hbm_bytes_per_s or chip.shared_sram_bytes_per_s or 0.0
    streaming = streaming or chip.vector_cores * (chip.core_sram_bytes_per_s or 0.0)
    if not streaming:
        fix = "give the bandwidth of its HBM, shared or core SRAM"
        raise InputError(f"chip {chip.name}: hbm_bytes_per_s", "is 0 and no SRAM has a bandwidth", fix)
    return streaming


def tier_arrays(chip: Chip, tier: Tier, efficiencies: Efficiencies | None = None) -> TierArrays:
    """One network tier as collectives see it: the chip's own links as far as they reach, a network beyond."""
    sustained = efficiencies or calibration(chip, "bf16").efficiencies
    reached = not chip.tiers or tier.size <= chip.tiers[0].size
    inside = reached if tier.ports is None else tier.ports == "links"
    return TierArrays(
        bytes_per_s=_number(tier.bytes_per_s / tier.oversubscription),
        latency_s=_number(tier.latency_s),
        launch_s=sustained.collective_launch_s if inside else NETWORK_STARTS * sustained.collective_launch_s,
        efficiency=sustained.link if inside else sustained.network,
        in_network_reduction=tier.in_network_reduction,
        ports=tier.ports,
    )


def way_arrays(cluster: Cluster, efficiencies: Efficiencies | None = None) -> tuple[TierArrays, ...]:
    """The ways of a cluster's network: tiers, and the axes of grids whose messages are routed."""
    along: list[TierArrays] = []
    for way in ways(cluster.tiers):
        tier = cluster.tiers[way.tier]
        arrays = tier_arrays(cluster.chip, tier, efficiencies)
        if way.axis is not None:
            # all links of a chip are alike, two for each axis
            share = arrays.bytes_per_s / len(tier.shape)
            axis = GridAxis(way.tier, tier.shape[way.axis], wraps=tier.topology == "torus")
            arrays = replace(arrays, bytes_per_s=share, grid=axis)
        along.append(arrays)
    return tuple(along)


def _number(value: float) -> Floats:
    return np.asarray(value, dtype=np.float64)
