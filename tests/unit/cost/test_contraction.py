"""Matrix products: the formulas against counting, and arrays against single shapes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cost.contraction import MatrixUnits, gpu_seconds, off_chip_bytes, systolic_seconds
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


def test_large_products_come_near_the_sustained_peak():
    chip = units(sustained=0.88)
    ratio = 2 * 8192**3 / 312e12 / float(gpu_seconds(gemm(1, 8192, 8192, 8192), chip))
    assert 0.80 < ratio < 0.88


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
