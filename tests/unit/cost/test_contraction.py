"""Matrix products: the formulas against counting, and arrays against single shapes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cost.contraction import (
    GPU_KERNELS,
    Cast,
    MatrixUnits,
    cast_seconds,
    gpu_seconds,
    off_chip_bytes,
    systolic_seconds,
)
from dovetail.cost.shapes import Gemm

SIZE = st.integers(1, 9000)


def units(**fields):
    values = {
        "peak_flops": 312e12, "units": 108, "rows": 128, "cols": 128, "clock_hz": 1e9, "memory_bytes_per_s": 2e12,
        "buffer_bytes": 40e6, "sustained": 1.0, "launch_s": 0.0,
    }  # fmt: skip
    return MatrixUnits(**{n: np.asarray(v, float) for n, v in (values | fields).items()})


def gemm(batch, m, n, k):
    return Gemm(*(np.asarray(v, float) for v in (batch, m, n, k)))


@given(m=st.integers(1, 600), n=st.integers(1, 600), k=st.integers(1, 600), cores=st.integers(1, 9))
def test_systolic_cycles_equal_counting_tiles(m, n, k, cores):
    rows, cols = 32, 16
    chip = units(units=cores, rows=rows, cols=cols, clock_hz=1.0, memory_bytes_per_s=1e30)
    tiles = [(i, j) for i in range(0, k, rows) for j in range(0, n, cols)]
    busiest = max(len(tiles[c::cores]) for c in range(cores))
    assert float(systolic_seconds(gemm(1, m, n, k), chip)) == busiest * max(m, rows) + rows + cols


@given(m=SIZE, n=SIZE, k=SIZE, buffer=st.integers(1_000, 10**8))
def test_traffic_lies_between_compulsory_and_no_reuse(m, n, k, buffer):
    moved = float(off_chip_bytes(gemm(1, m, n, k), np.asarray(float(buffer)), 2))
    assert moved >= 2 * (m * k + k * n + m * n)
    assert moved <= 2 * (2 * m * n * k + m * n) + 1
    more = float(off_chip_bytes(gemm(1, m, n, k), np.asarray(4.0 * buffer), 2))
    assert more <= moved


@given(m=SIZE, n=SIZE, k=SIZE, batch=st.integers(1, 64))
def test_no_product_beats_the_peak_or_the_memory(m, n, k, batch):
    chip = units()
    shape = gemm(batch, m, n, k)
    for model in (gpu_seconds, systolic_seconds):
        seconds = float(model(shape, chip))
        assert seconds >= 2 * batch * (m * k + k * n + m * n) / 2e12 * (1 - 1e-12)
    assert float(gpu_seconds(shape, chip)) >= 2 * batch * m * n * k / 312e12 * (1 - 1e-12)


@given(m=SIZE, n=SIZE, k=SIZE, batch=st.integers(1, 64), dim=st.sampled_from("mnk"), more=st.integers(1, 500))
def test_a_larger_product_is_never_faster(m, n, k, batch, dim, more):
    sizes = {"m": m, "n": n, "k": k}
    larger = sizes | {dim: sizes[dim] + more}
    for width in (1, 2):
        seconds, longer = (float(gpu_seconds(gemm(batch, **s), units(), width)) for s in (sizes, larger))
        assert longer >= seconds * (1 - 1e-12)


@given(m=SIZE, n=SIZE, k=SIZE, worse=st.sampled_from([{"sustained": 0.6}, {"memory_bytes_per_s": 1e12}]))
def test_a_worse_chip_is_never_faster(m, n, k, worse):
    shape = gemm(1, m, n, k)
    assert float(gpu_seconds(shape, units(**worse))) >= float(gpu_seconds(shape, units()))


@given(m=SIZE, n=SIZE, k=SIZE)
def test_rows_and_columns_are_alike(m, n, k):
    seconds = float(gpu_seconds(gemm(1, m, n, k), units()))
    assert seconds == pytest.approx(float(gpu_seconds(gemm(1, n, m, k), units())), rel=1e-9)


def test_large_products_come_near_the_sustained_peak():
    chip = units(sustained=0.8)
    ratio = 2 * 8192**3 / 312e12 / float(gpu_seconds(gemm(1, 8192, 8192, 8192), chip))
    assert 0.75 < ratio < 0.8


def test_one_tile_beyond_a_full_wave_costs_more_than_its_share():
    chip = units(units=100, memory_bytes_per_s=1e30)
    full, more = (float(gpu_seconds(gemm(1, m, 2560, 8192), chip)) for m in (1280, 1281))
    assert more > 1.1 * full


def test_a_lone_tile_takes_its_steps_and_the_prologue_on_one_core():
    chip = units(memory_bytes_per_s=1e30)
    slowdown = 1 + GPU_KERNELS.feed * (2 / 64 - 1 / 128 - 1 / 256)
    flops = 2 * 64 * 64 * (64 + GPU_KERNELS.prologue_bytes / 2) * slowdown
    assert float(gpu_seconds(gemm(1, 64, 64, 64), chip)) == pytest.approx(flops / (312e12 / 108), rel=1e-6)


def test_few_tiles_share_k_when_it_is_long():
    chip = units(memory_bytes_per_s=1e30)
    short, long = (float(gpu_seconds(gemm(1, 256, 256, k), chip)) for k in (256, 65536))
    # 256 times the work in far less than 256 times the time: idle SMs take parts of k
    assert long < 64 * short
    alone = units(units=2, peak_flops=312e12 / 54, memory_bytes_per_s=1e30)
    assert long < float(gpu_seconds(gemm(1, 256, 256, 65536), alone)) / 4


def test_narrow_operands_are_read_narrow_and_results_written_wide():
    chip = units(peak_flops=1e30, memory_bytes_per_s=1e12)
    seconds = float(gpu_seconds(gemm(1, 4096, 2048, 64), chip, 1))
    assert seconds == pytest.approx((4096 * 64 + 64 * 2048 + 2 * 4096 * 2048) / 1e12, rel=1e-6)


def test_a_cast_streams_the_left_operand_once_and_has_a_launch():
    chip = units(memory_bytes_per_s=1e12)
    seconds = float(cast_seconds(gemm(2, 1000, 5, 300), chip, Cast(3.0, 1e-6)))
    assert seconds == pytest.approx(3 * 2 * 1000 * 300 / 1e12 + 1e-6)


def test_arrays_of_shapes_and_chips_give_what_single_calls_give():
    rng = np.random.default_rng(1)
    m, n, k = (rng.integers(1, 8192, 50).astype(float) for _ in range(3))
    chips = np.linspace(50, 200, 7)[:, None]
    many = gpu_seconds(Gemm(np.ones(50), m, n, k), units(units=chips))
    assert many.shape == (7, 50)
    for i, j in ((0, 0), (3, 17), (6, 49)):
        one = gpu_seconds(gemm(1, m[j], n[j], k[j]), units(units=float(chips[i, 0])))
        assert many[i, j] == pytest.approx(float(one), rel=1e-12)
    assert math.isfinite(many.sum())
