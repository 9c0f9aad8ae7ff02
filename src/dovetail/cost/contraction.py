"""Matrix products on systolic arrays and on GPU-like cores, for arrays of shapes and of chips at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.cost.shapes import Array, Gemm

#: Thread-block tiles of stock kernels, largest first, and the part of the peak each reaches when it
#: runs in a steady state: smaller tiles read their operands more often from shared memory. Assumed, not measured.
GPU_TILES: tuple[tuple[int, int, float], ...] = (
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 0.97),
    (128, 64, 0.84),
    (64, 128, 0.84),
    (64, 64, 0.68),
    (32, 64, 0.45),
)

#: Steps along k that a kernel spends filling and draining its pipeline, in elements. Assumed.
GPU_PROLOGUE_K = 192


@dataclass(frozen=True, slots=True)
class MatrixUnits:
    """What a matrix product needs to know of a chip; every field an array over chips."""

    peak_flops: Array
    #: independent units the work is spread over: SMs of a GPU, systolic arrays elsewhere
    units: Array
    rows: Array
    cols: Array
    clock_hz: Array
    memory_bytes_per_s: Array
    #: on-chip bytes that hold operand blocks
    buffer_bytes: Array
    #: part of the peak that large products sustain (clock under load, issue limits)
    sustained: Array
    launch_s: Array


def gpu_seconds(gemm: Gemm, chip: MatrixUnits, element_bytes: float = 2) -> Array:
    """GPU-like: the best tile of the menu, whole waves of tiles over the SMs, memory behind it."""
    best = np.inf
    rate = chip.peak_flops * chip.sustained / chip.units
    for rows, cols, efficiency in GPU_TILES:
        tiles = gemm.batch * np.ceil(gemm.m / rows) * np.ceil(gemm.n / cols)
        waves = _waves(tiles, chip.units)
        seconds = waves * (2 * rows * cols * (gemm.k + GPU_PROLOGUE_K)) / (rate * efficiency)
        best = np.minimum(best, seconds)
    memory = off_chip_bytes(gemm, chip.buffer_bytes, element_bytes) / chip.memory_bytes_per_s
    return np.maximum(best, memory) + chip.launch_s


def _waves(tiles: Array, units: Array) -> Array:
    # the last wave is never quite empty: kernels split k (stream-K) once few tiles are left
    full = np.floor(tiles / units)
    rest = tiles / units - full
    return full + np.where(rest > 0, np.maximum(rest, np.minimum(1.0, 0.5 + 0.5 * rest)), 0.0)


def systolic_seconds(gemm: Gemm, chip: MatrixUnits, element_bytes: float = 2) -> Array:
    """Weight stationary: ceil(k/rows)·ceil(n/cols) weight tiles, each streaming m rows; fill and drain once each."""
    tiles = gemm.batch * np.ceil(gemm.k / chip.rows) * np.ceil(gemm.n / chip.cols)
    # the next tile's weights load while rows stream, so a tile costs m cycles or the load, whichever is longer
    per_tile = np.maximum(gemm.m, chip.rows)
    cycles = np.ceil(tiles / chip.units) * per_tile + chip.rows + chip.cols
    memory = off_chip_bytes(gemm, chip.buffer_bytes, element_bytes) / chip.memory_bytes_per_s
    return np.maximum(cycles / (chip.clock_hz * chip.sustained), memory) + chip.launch_s


def off_chip_bytes(gemm: Gemm, buffer_bytes: Array, element_bytes: float = 2) -> Array:
    """Least traffic over C-, B- and A-resident blockings that fit the buffer (square blocks of a third of it)."""
    m, n, k = gemm.m, gemm.n, gemm.k
    side = np.maximum(np.sqrt(buffer_bytes / (3 * element_bytes)), 1.0)
    over_m, over_n, over_k = (np.ceil(size / np.minimum(side, size)) for size in (m, n, k))
    c_resident = m * k * over_n + k * n * over_m + m * n
    b_resident = k * n + m * k * over_n + m * n * (2 * over_k - 1)
    a_resident = m * k + k * n * over_m + m * n * (2 * over_k - 1)
    return gemm.batch * element_bytes * np.minimum(np.minimum(c_resident, b_resident), a_resident)
