"""Systolic arrays: cycles and streams counted by hand and cell by cell, memory levels, and what never makes slower."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cost.contraction import MatrixUnits, off_chip_bytes, systolic_seconds
from dovetail.cost.shapes import Gemm
from dovetail.cost.systolic import array_cycles, streamed_elements

SIZE = st.integers(1, 9000)
SMALL = st.integers(1, 600)
FIELDS = tuple(MatrixUnits.__dataclass_fields__)


def units(**fields):
    values = {
        "peak_flops": 2 * 8 * 128 * 128 * 1e9, "units": 8, "rows": 128, "cols": 128, "clock_hz": 1e9,
        "memory_bytes_per_s": 1e12, "buffer_bytes": 32e6, "sustained": 1.0, "launch_s": 0.0, "output_stationary": 0,
        "shared_sram_bytes_per_s": 4e12, "core_sram_bytes": 2e6, "core_sram_bytes_per_s": 10e12,
    }  # fmt: skip
    return MatrixUnits(**{n: np.asarray(v, float) for n, v in (values | fields).items()})


def unlimited(**fields):
    """A chip that nothing but what is given limits."""
    free = ("memory_bytes_per_s", "shared_sram_bytes_per_s", "core_sram_bytes_per_s", "clock_hz")
    return units(**(dict.fromkeys(free, math.inf) | fields))


def gemm(batch, m, n, k):
    return Gemm(*(np.asarray(v, float) for v in (batch, m, n, k)))


def cycles(shape, rows, cols, cores, output, *, overlapped=True):
    arrays = (np.asarray(float(v)) for v in (rows, cols, cores, output))
    return float(array_cycles(gemm(*shape), *arrays, overlapped=overlapped))


@pytest.mark.parametrize(
    ("shape", "array", "output", "overlapped", "serial"),
    [
        # 2 · 5 · 3 weight tiles, 8 on the busiest of 4 arrays, 1,000 rows each
        ((2, 1000, 300, 600), (128, 128, 4), 0, 8 * 1000 + 256, 8 * (1000 + 382)),
        # 2 · 8 · 3 result tiles, 12 on the busiest, 600 steps each
        ((2, 1000, 300, 600), (128, 128, 4), 1, 12 * 600 + 256, 12 * (600 + 254)),
        # 10 · 2 tiles on 3 arrays that are no squares
        ((1, 1000, 300, 600), (64, 256, 3), 0, 7 * 1000 + 320, 7 * (1000 + 2 * 64 + 254)),
        ((1, 1000, 300, 600), (64, 256, 3), 1, 11 * 600 + 320, 11 * (600 + 64 + 254)),
        # what streams is over before the next tile has been shifted in, or the last one out
        ((1, 10, 300, 600), (64, 256, 3), 0, 7 * 64 + 320, 7 * (10 + 2 * 64 + 254)),
        ((1, 1000, 300, 10), (64, 256, 3), 1, 11 * 64 + 320, 11 * (10 + 64 + 254)),
    ],
)
def test_cycles_counted_by_hand(shape, array, output, overlapped, serial):
    rows, cols, cores = array
    assert cycles(shape, rows, cols, cores, output) == overlapped
    assert cycles(shape, rows, cols, cores, output, overlapped=False) == serial


@given(m=SMALL, n=SMALL, k=SMALL, rows=st.integers(2, 40), cols=st.integers(2, 40), cores=st.integers(1, 9))
def test_output_stationary_cycles_equal_counting_tiles(m, n, k, rows, cols, cores):
    tiles = [(i, j) for i in range(0, m, rows) for j in range(0, n, cols)]
    busiest = max(len(tiles[c::cores]) for c in range(cores))
    chip = unlimited(units=cores, rows=rows, cols=cols, clock_hz=1.0, output_stationary=1)
    assert float(systolic_seconds(gemm(1, m, n, k), chip)) == busiest * max(k, rows) + rows + cols


@given(streamed=st.integers(1, 50), rows=st.integers(1, 12), cols=st.integers(1, 12))
def test_a_tile_by_itself_lasts_until_its_last_cell_is_done(streamed, rows, cols):
    cells = [(step, r, c) for step in range(streamed) for r in range(rows) for c in range(cols)]
    # weights are shifted in first; operands reach a cell one cycle later for each row and column before it
    weights_stay = max(rows + step + r + c for step, r, c in cells) + 1
    results_stay = max(step + r + c for step, r, c in cells) + 1
    assert cycles((1, streamed, cols, rows), rows, cols, 1, 0, overlapped=False) == weights_stay
    assert cycles((1, rows, cols, streamed), rows, cols, 1, 1, overlapped=False) == results_stay


@given(m=SIZE, n=SIZE, k=SIZE, batch=st.integers(1, 64), cores=st.integers(1, 64), output=st.booleans())
def test_overlap_costs_no_more_than_the_serial_count_and_one_shift(m, n, k, batch, cores, output):
    serial, overlapped = (cycles((batch, m, n, k), 128, 64, cores, output, overlapped=o) for o in (False, True))
    # rows + cols for fill and drain are two more than the diagonal takes; the shift of a result, which hides steps
    # fewer than rows, is none of the serial count's
    assert overlapped <= serial + 2 + 128 * output


def test_streams_counted_by_hand():
    shape, rows, cols = gemm(2, 1000, 300, 600), np.asarray(64.0), np.asarray(256.0)
    left, right, result = 1000 * 600, 600 * 300, 1000 * 300
    assert float(streamed_elements(shape, rows, cols, np.zeros(()))) == 2 * (2 * left + right + result)
    assert float(streamed_elements(shape, rows, cols, np.ones(()))) == 2 * (2 * left + 16 * right + result)


@given(m=SMALL, n=SMALL, k=SMALL, output=st.booleans())
def test_streams_equal_counting_tiles(m, n, k, output):
    rows, cols = 32, 24
    left = sum(m * k for _ in range(0, n, cols))
    right = sum(min(cols, n - j) * k for j in range(0, n, cols) for _ in (range(0, m, rows) if output else (0,)))
    arrays = (np.asarray(float(v)) for v in (rows, cols, output))
    assert float(streamed_elements(gemm(1, m, n, k), *arrays)) == left + right + m * n


@pytest.mark.parametrize(("output", "passes"), [(0, 1), (1, 8)])
def test_a_core_memory_carries_what_streams_through_the_arrays(output, passes):
    chip = unlimited(core_sram_bytes_per_s=1e12, output_stationary=output)
    streamed = 3 * 1000 * 600 + passes * 600 * 300 + 1000 * 300
    assert float(systolic_seconds(gemm(2, 1000, 300, 600), chip, 2)) == pytest.approx(4 * streamed / 1e12, rel=1e-12)
    assert float(systolic_seconds(gemm(2, 1000, 300, 600), chip, 1)) == pytest.approx(2 * streamed / 1e12, rel=1e-12)


def test_a_shared_memory_carries_blocks_of_one_cores_memory_or_what_streams():
    shape = gemm(1, 4000, 4000, 4000)
    # 2 MB hold three blocks of 577² elements: each operand passes 7 times, the result once
    blocks = float(systolic_seconds(shape, unlimited(shared_sram_bytes_per_s=1e12)))
    assert blocks == pytest.approx(2 * (7 + 7 + 1) * 4000**2 / 1e12, rel=1e-12)
    streams = unlimited(shared_sram_bytes_per_s=1e12, core_sram_bytes=0)
    assert float(systolic_seconds(shape, streams)) == pytest.approx(2 * (32 + 1 + 1) * 4000**2 / 1e12, rel=1e-12)
    # blocks of 6 × 6 elements would pass more often than streams do
    tiny = unlimited(shared_sram_bytes_per_s=1e12, core_sram_bytes=6 * 36)
    assert float(systolic_seconds(shape, tiny)) == float(systolic_seconds(shape, streams))


@given(m=SIZE, n=SIZE, k=SIZE, batch=st.integers(1, 64), output=st.integers(0, 1))
def test_the_slowest_level_decides_and_a_launch_is_added(m, n, k, batch, output):
    limits = ("memory_bytes_per_s", "shared_sram_bytes_per_s", "core_sram_bytes_per_s", "clock_hz")
    chip = units(output_stationary=output)
    shape = gemm(batch, m, n, k)
    alone = [
        float(systolic_seconds(shape, unlimited(output_stationary=output, **{limit: getattr(chip, limit)})))
        for limit in limits
    ]
    assert float(systolic_seconds(shape, chip)) == max(alone)
    assert float(systolic_seconds(shape, units(output_stationary=output, launch_s=1e-3))) == max(alone) + 1e-3


BETTER = (
    "units", "clock_hz", "memory_bytes_per_s", "buffer_bytes", "shared_sram_bytes_per_s", "core_sram_bytes",
    "core_sram_bytes_per_s",
)  # fmt: skip


@given(
    m=SIZE, n=SIZE, k=SIZE, batch=st.integers(1, 64), output=st.integers(0, 1), better=st.sampled_from(BETTER),
    times=st.floats(1, 8), narrow=st.sampled_from(["arrays", "memory", "shared", "core"]),
)  # fmt: skip
def test_a_better_chip_is_never_slower(m, n, k, batch, output, better, times, narrow):
    # each level is the narrow one in turn, so that more of it shows
    limits = {
        "arrays": {}, "memory": {"memory_bytes_per_s": 1e11}, "shared": {"shared_sram_bytes_per_s": 1e11},
        "core": {"core_sram_bytes_per_s": 1e11},
    }[narrow]  # fmt: skip
    shape = gemm(batch, m, n, k)
    chip = units(output_stationary=output, **limits)
    had = float(getattr(chip, better))
    more = math.ceil(had * times) if better == "units" else had * times
    best = units(output_stationary=output, **(limits | {better: more}))
    assert float(systolic_seconds(shape, best)) <= float(systolic_seconds(shape, chip))


def test_more_of_what_binds_is_faster():
    shape = gemm(1, 4096, 4096, 4096)
    narrow = {
        "units": {}, "clock_hz": {}, "memory_bytes_per_s": {"memory_bytes_per_s": 1e10},
        "buffer_bytes": {"memory_bytes_per_s": 1e10, "buffer_bytes": 1e6},
        "shared_sram_bytes_per_s": {"shared_sram_bytes_per_s": 1e10},
        "core_sram_bytes": {"shared_sram_bytes_per_s": 1e10, "core_sram_bytes": 1e6},
        "core_sram_bytes_per_s": {"core_sram_bytes_per_s": 1e10},
    }  # fmt: skip
    for better in BETTER:
        for output in (0, 1):
            fields = {"output_stationary": output} | narrow[better]
            chip = units(**fields)
            more = units(**(fields | {better: 4 * float(getattr(chip, better))}))
            assert float(systolic_seconds(shape, more)) < 0.7 * float(systolic_seconds(shape, chip))


@given(
    m=SIZE, n=SIZE, k=SIZE, batch=st.integers(1, 64), output=st.integers(0, 1), rows=st.integers(1, 300),
    cols=st.integers(1, 300), cores=st.integers(1, 64), sram=st.floats(0, 1e9),
)  # fmt: skip
def test_no_product_beats_the_peak_or_any_memory(m, n, k, batch, output, rows, cols, cores, sram):
    peak = 2.0 * cores * rows * cols * 1e9
    chip = units(
        peak_flops=peak, rows=rows, cols=cols, units=cores, output_stationary=output, core_sram_bytes=sram,
        shared_sram_bytes_per_s=3e11, core_sram_bytes_per_s=2e11,
    )  # fmt: skip
    seconds = float(systolic_seconds(gemm(batch, m, n, k), chip)) * (1 + 1e-12)
    assert seconds >= 2 * batch * m * n * k / peak
    # operands and result enter and leave every level at least once
    assert seconds >= 2 * batch * (m * k + k * n + m * n) / 2e11


def test_arrays_of_chips_give_what_single_calls_give():
    rng = np.random.default_rng(2)
    m, n, k, batch = (rng.integers(1, high, 40).astype(float) for high in (8192, 8192, 8192, 9))
    chips = {
        "units": rng.integers(1, 64, 12), "rows": rng.integers(8, 300, 12), "cols": rng.integers(8, 300, 12),
        "clock_hz": rng.uniform(5e8, 2e9, 12), "memory_bytes_per_s": rng.uniform(1e11, 4e12, 12),
        "buffer_bytes": rng.uniform(1e6, 1e8, 12), "sustained": rng.uniform(0.5, 1, 12),
        "output_stationary": rng.integers(0, 2, 12),
        "core_sram_bytes": rng.uniform(0, 1e7, 12) * rng.integers(0, 2, 12),
        "shared_sram_bytes_per_s": np.where(rng.integers(0, 2, 12), rng.uniform(2e11, 4e12, 12), np.inf),
        "core_sram_bytes_per_s": np.where(rng.integers(0, 2, 12), rng.uniform(2e11, 2e13, 12), np.inf),
    }  # fmt: skip
    assert {0, 1} == set(chips["output_stationary"])
    column = units(**{name: values[:, None] for name, values in chips.items()})
    assert column.dims == 2
    many = systolic_seconds(Gemm(batch, m, n, k), column)
    assert many.shape == (12, 40)
    for i in range(12):
        one = units(**{name: values[i] for name, values in chips.items()})
        assert one.dims == 0
        for j in range(40):
            assert many[i, j] == float(systolic_seconds(gemm(batch[j], m[j], n[j], k[j]), one))


@pytest.mark.parametrize("name", FIELDS)
def test_a_chip_that_varies_in_one_field_has_that_fields_axes(name):
    assert units(**{name: np.ones((3, 1, 1))}).dims == 3


def test_a_chip_without_figures_of_its_memories_has_no_limit_there():
    bare = {name: getattr(units(), name) for name in FIELDS[:9]}
    shape = gemm(1, 700, 800, 900)
    chip = MatrixUnits(**bare)
    arrays = cycles((1, 700, 800, 900), 128, 128, 8, 0) / 1e9
    assert float(systolic_seconds(shape, chip)) == max(arrays, float(off_chip_bytes(shape, chip.buffer_bytes)) / 1e12)
