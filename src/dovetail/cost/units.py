"""Chips as the cost models see them: published peaks times calibrated efficiencies."""

from __future__ import annotations

import numpy as np

from dovetail.cost.calibration import calibration
from dovetail.cost.collective import TierArrays
from dovetail.cost.contraction import MatrixUnits
from dovetail.cost.operators import ChipUnits
from dovetail.cost.shapes import Array
from dovetail.cost.vector import AttentionUnits, VectorUnits
from dovetail.errors import InputError
from dovetail.hardware import Chip, Tier

#: Precisions of a job → the operand precision its matrix products run in.
OPERANDS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp4": "fp4", "fp32": "tf32"}


def chip_units(chip: Chip, precision: str) -> ChipUnits:
    """One chip for one precision; fields are arrays of shape ()."""
    known, _ = calibration(chip.name, chip.kind)
    rates = chip.dense_flops.published()
    # a chip without figures for a precision runs it at its half-precision rate
    half = rates.get("bf16", rates.get("fp16", 0.0))
    peak = rates.get(OPERANDS[precision], half)
    # a chip without off-chip memory streams from its own
    streaming = chip.hbm_bytes_per_s or chip.shared_sram_bytes_per_s or 0.0
    streaming = streaming or chip.vector_cores * (chip.core_sram_bytes_per_s or 0.0)
    if not streaming:
        fix = "give the bandwidth of its HBM, shared or core SRAM"
        raise InputError(f"chip {chip.name}: hbm_bytes_per_s", "is 0 and no SRAM has a bandwidth", fix)
    memory = _number(streaming * known.memory)
    vector = _number(2 * chip.vector_cores * chip.vector_lanes * chip.clock_hz)
    systolic = chip.kind == "systolic"
    rows, cols = chip.rows or 1, chip.cols or 1
    units = chip.tensor_cores if systolic else chip.vector_cores
    matrix = MatrixUnits(
        peak_flops=_number(peak),
        units=_number(units),
        rows=_number(rows),
        cols=_number(cols),
        # full arrays reach the published peak of the precision, whatever part of their cells it uses
        clock_hz=_number(peak / (2 * units * rows * cols)),
        memory_bytes_per_s=memory,
        buffer_bytes=_number(max(chip.shared_sram_bytes, chip.vector_cores * chip.core_sram_bytes, 2.0**20)),
        sustained=_number(known.matrix),
        launch_s=_number(known.launch_s),
    )
    attention = AttentionUnits(
        # its products keep half precision in narrower jobs
        matrix_flops=_number(min(half, peak)),
        forward_efficiency=_number(known.attention_forward),
        backward_efficiency=_number(known.attention_backward),
        vector_flops=vector,
        memory_bytes_per_s=memory,
        launch_s=_number(known.launch_s),
    )
    return ChipUnits(matrix, attention, VectorUnits(vector, memory, _number(known.launch_s)), systolic)


def tier_arrays(chip: Chip, tier: Tier) -> TierArrays:
    """One network tier as collectives see it."""
    known, _ = calibration(chip.name, chip.kind)
    return TierArrays(
        bytes_per_s=_number(tier.bytes_per_s / tier.oversubscription),
        latency_s=_number(tier.latency_s),
        launch_s=_number(known.collective_launch_s),
        efficiency=_number(known.collective),
        in_network_reduction=tier.in_network_reduction,
    )


def _number(value: float) -> Array:
    return np.asarray(value, dtype=np.float64)
