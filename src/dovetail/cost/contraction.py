"""Matrix products on systolic arrays and on GPU-like cores, for arrays of shapes and of chips at once."""

from __future__ import annotations

from dataclasses import field, fields

import numpy as np

from dovetail.arrays import Floats, summed
from dovetail.cost.shapes import Gemm
from dovetail.cost.systolic import array_cycles, streamed_elements
from dovetail.frozen import frozen

#: Thread-block tiles of stock kernels (CUTLASS and cuBLAS name these sizes), largest first.
GPU_TILES: tuple[tuple[int, int], ...] = (
    (256, 128), (128, 256), (192, 128), (128, 192), (128, 128), (128, 64), (64, 128), (64, 64),
)  # fmt: skip

#: Most ways along k that are considered. Assumed.
MOST_WAYS = 16


@frozen
class GpuKernels:
    """What stock matrix kernels have in common on every GPU; fitted by accuracy.gemm_timings.fit_kernels.

    On measured bf16 products of A100, H100, H200, B200 and GB200 with m of 512 or more. Mean error with m of 1,024 or
    more: 6 to 8 %; on a chip these constants were not fitted on 6 to 9 %.
    """

    #: bytes of an operand's row a tile streams in the time its pipeline fills and its result leaves
    prologue_bytes: float = 500.0
    #: slowdown per (1/rows + 1/cols) beyond the largest tile's: small tiles load more for each multiply-add
    feed: float = 38.0
    #: part of a wave the last one takes however few tiles are left; the rest of the loss stock schedules avoid
    last_wave: float = 0.45


GPU_KERNELS = GpuKernels()


@frozen
class MatrixUnits:
    """What a matrix product needs to know of a chip; every field an array over chips."""

    peak_flops: Floats
    #: independent units the work is spread over: SMs of a GPU, systolic arrays elsewhere
    units: Floats
    rows: Floats
    cols: Floats
    clock_hz: Floats
    memory_bytes_per_s: Floats
    #: on-chip bytes that hold operand blocks
    buffer_bytes: Floats
    #: part of the peak that clocks and power leave to products however large
    sustained: Floats
    launch_s: Floats
    #: 1 where results stay in a systolic array, 0 where weights do
    output_stationary: Floats = field(default_factory=lambda: np.zeros(()))
    #: of the memory all cores share; infinite where there is none or nothing is known to limit it
    shared_sram_bytes_per_s: Floats = field(default_factory=lambda: np.full((), np.inf))
    #: beside one core; 0 where there is none
    core_sram_bytes: Floats = field(default_factory=lambda: np.zeros(()))
    #: of all cores' own memories together; infinite as that of the shared one
    core_sram_bytes_per_s: Floats = field(default_factory=lambda: np.full((), np.inf))

    @property
    def dims(self) -> int:
        """Axes of the fields: 0 for one chip."""
        return max(np.ndim(getattr(self, each.name)) for each in fields(self))


@frozen
class Cast:
    """The kernels ahead of a product that make its left operand narrow."""

    #: read and written for each element: 2 read and 1 written in one pass, 2 more where a maximum is sought first
    bytes_per_element: float
    #: launches and reductions, however small the operand
    seconds: float


def gpu_seconds(gemm: Gemm, chip: MatrixUnits, element_bytes: float = 2, kernels: GpuKernels = GPU_KERNELS) -> Floats:
    """GPU-like: the best tile of the menu in waves over the SMs, what power sustains, and memory, largely overlapped.

    Operands have `element_bytes`, results at least two.
    """
    # a tile that has its operands runs at the published peak: it is power that keeps large products below it
    tiles = _tile_flops(gemm, chip.units, element_bytes, kernels) * (chip.units / chip.peak_flops)
    power = gemm.flops / (chip.peak_flops * chip.sustained)
    moved = off_chip_bytes(gemm, chip.buffer_bytes, element_bytes, max(element_bytes, 2.0))
    return _overlapped(tiles, power, moved / chip.memory_bytes_per_s) + chip.launch_s


def cast_seconds(gemm: Gemm, chip: MatrixUnits, cast: Cast) -> Floats:
    """Making the left operand narrow: it streams through memory before the product starts."""
    return cast.bytes_per_element * gemm.batch * gemm.m * gemm.k / chip.memory_bytes_per_s + cast.seconds


def _tile_flops(gemm: Gemm, units: Floats, element_bytes: float, kernels: GpuKernels) -> Floats:
    """What the busiest SM works through under the best tile, overheads counted as operations."""
    prologue = kernels.prologue_bytes / element_bytes
    # SMs without a tile of their own share one along k: k/ways + ways · prologue steps, least at this whole number
    most_ways = np.minimum(0.5 + np.sqrt(0.25 + gemm.k / prologue), MOST_WAYS)
    last = kernels.last_wave
    fewest: Floats = np.asarray(np.inf)
    for rows, cols in GPU_TILES:
        slowdown = 1 + kernels.feed * (1 / rows + 1 / cols - 1 / 128 - 1 / 256)
        step = 2 * rows * cols * slowdown
        waves = gemm.batch * np.ceil(gemm.m / rows) * np.ceil(gemm.n / cols) / units
        ways = np.floor(np.minimum(np.maximum(1 / waves, 1.0), most_ways))
        tile = gemm.k * step / ways + prologue * step * ways
        fewest = np.minimum(fewest, tile * np.maximum(last * np.ceil(waves) + (1 - last) * waves, 1.0))
    return fewest


def _overlapped(*limits: Floats) -> Floats:
    """A little above the largest limit where others come near it: nothing overlaps perfectly.

    Of the powers 3, 4, 6, 8, 16 and the plain maximum the sixth fits the measured products best.
    """
    squares = [limit * limit for limit in limits]
    return np.cbrt(np.sqrt(summed(square * square * square for square in squares)))


def systolic_seconds(gemm: Gemm, chip: MatrixUnits, element_bytes: float = 2) -> Floats:
    """The longest of the arrays' cycles at the sustained clock and of each memory's bytes at its bandwidth."""
    rows, cols, stays = chip.rows, chip.cols, chip.output_stationary
    arrays = array_cycles(gemm, rows, cols, chip.units, stays) / (chip.clock_hz * chip.sustained)
    memory = off_chip_bytes(gemm, chip.buffer_bytes, element_bytes) / chip.memory_bytes_per_s
    streamed = element_bytes * streamed_elements(gemm, rows, cols, stays)
    # blocks in a core's memory save traffic to it, but never cost more than streaming past that memory
    entering = np.minimum(streamed, off_chip_bytes(gemm, chip.core_sram_bytes, element_bytes))
    on_chip = np.maximum(entering / chip.shared_sram_bytes_per_s, streamed / chip.core_sram_bytes_per_s)
    return np.maximum(np.maximum(arrays, memory), on_chip) + chip.launch_s


def off_chip_bytes(
    gemm: Gemm, buffer_bytes: Floats, element_bytes: float = 2, result_bytes: float | None = None
) -> Floats:
    """Least traffic over C-, B- and A-resident blockings that fit the buffer (square blocks of a third of it)."""
    m, n, k = gemm.m, gemm.n, gemm.k
    result = m * n * ((result_bytes or element_bytes) / element_bytes)
    side = np.maximum(np.sqrt(buffer_bytes / (3 * element_bytes)), 1.0)
    over_m, over_n, over_k = (np.ceil(size / np.minimum(side, size)) for size in (m, n, k))
    c_resident = m * k * over_n + k * n * over_m + result
    b_resident = k * n + m * k * over_n + result * (2 * over_k - 1)
    a_resident = m * k + k * n * over_m + result * (2 * over_k - 1)
    return gemm.batch * element_bytes * np.minimum(np.minimum(c_resident, b_resident), a_resident)
