"""Measured matrix products: files read or refused by one sentence, known efficiencies found again, errors guarded."""

import csv
import gzip
import io
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest

from dovetail import hardware
from dovetail.accuracy import gemm_timings
from dovetail.accuracy.gemm_timings import (
    LAUNCH_S,
    ShortRuns,
    Timings,
    fit_gemm,
    fit_kernels,
    gemm_report,
    measured_seconds,
    read_timings,
)
from dovetail.cost.contraction import GPU_KERNELS, GpuKernels
from dovetail.cost.shapes import Gemm
from dovetail.cost.units import chip_units
from dovetail.errors import InputError

PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "gemm_measured.csv.gz"
HEADER = "chip,dtype,M,N,K,time_us\n"


def made(chip, kernel, sustained, memory, kernels=GPU_KERNELS, rows=300, seed=3):
    """Products that take what the model says at these efficiencies."""
    rng = np.random.default_rng(seed)
    m, n, k = (2.0 ** rng.integers(18, 31, rows) // 2 ** rng.integers(0, 8, rows) // 64 for _ in range(3))
    wide, deep = (np.minimum(np.maximum(size, 64.0), 2.0**15) for size in (n, k))
    gemm = Gemm(np.ones(rows), np.maximum(m, 512), wide, deep)
    units = chip_units(hardware.chip(chip), gemm_timings.KERNELS[kernel][1].precision)
    bandwidth = np.asarray(hardware.chip(chip).hbm_bytes_per_s * memory)
    matrix = replace(units.matrix, sustained=np.asarray(sustained), memory_bytes_per_s=bandwidth)
    matrix = replace(matrix, launch_s=np.asarray(LAUNCH_S))
    group = Timings(chip, chip, kernel, gemm, np.ones(rows))
    return replace(group, seconds=measured_seconds(group, replace(units, matrix=matrix), kernels))


def file_of(groups):
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["chip", "dtype", "M", "N", "K", "time_us"])
    for group in groups:
        shape = group.gemm
        for m, n, k, seconds in zip(shape.m, shape.n, shape.k, group.seconds, strict=True):
            writer.writerow([group.chip, group.kernel, int(m), int(n), int(k), repr(float(seconds) * 1e6)])
    return text.getvalue()


def test_known_efficiencies_are_found_again_from_a_file(tmp_path):
    truth = {("h100-sxm", "bf16"): (0.71, 0.83), ("b200", "fp8"): (0.55, 0.7), ("a100-80gb", "bf16"): (0.93, 0.9)}
    path = tmp_path / "own.csv"
    path.write_text(file_of([made(*key, *values) for key, values in truth.items()]))
    timings, left_out = read_timings(path)
    assert not left_out
    fits = fit_gemm(timings, by_chip=True)
    assert {key: (fit.sustained, fit.memory) for key, fit in fits.items()} == {
        key: pytest.approx(values, rel=0.01) for key, values in truth.items()
    }
    assert fits == fit_gemm(timings, by_chip=True)
    for line in gemm_report(timings, fits):
        assert line.time_weighted < 0.01
        assert (line.mape or 1) < 0.01
        assert abs(line.bias) < 0.01


def test_chips_of_a_generation_are_fitted_together():
    timings = [made("h100-sxm", "bf16", 0.7, 0.8), made("h200-sxm", "bf16", 0.7, 0.8)]
    fits = fit_gemm(timings)
    assert list(fits) == [("hopper", "bf16")]
    assert astuple(fits["hopper", "bf16"]) == pytest.approx((0.7, 0.8, 600), rel=0.01)


def test_constants_that_all_chips_share_are_found_again():
    kernels = GpuKernels(prologue_bytes=700.0, feed=20.0, last_wave=0.8)
    chips = {"a100-80gb": 0.85, "h100-sxm": 0.7, "b200": 0.58}
    timings = [made(chip, "bf16", sustained, 0.8, kernels) for chip, sustained in chips.items()]
    found, launch_s, short_runs = fit_kernels(timings)
    assert astuple(found) == pytest.approx(astuple(kernels), rel=0.15)
    assert launch_s == pytest.approx(LAUNCH_S, rel=0.1)
    assert short_runs.boost == pytest.approx(gemm_timings.SHORT_RUNS.boost, rel=0.4)


def test_a_wrong_constant_makes_the_fit_worse():
    timings = [made("h100-sxm", "bf16", 0.7, 0.8)]
    wrong = replace(GPU_KERNELS, prologue_bytes=4 * GPU_KERNELS.prologue_bytes)
    (right,), (off,) = (gemm_report(timings, fit_gemm(timings, kernels=k), k) for k in (GPU_KERNELS, wrong))
    assert (off.mape or 0) > (right.mape or 0) + 0.05


def test_short_runs_are_faster_than_steady_ones():
    group = made("h100-sxm", "bf16", 0.7, 0.8)
    units = chip_units(hardware.chip("h100-sxm"), "bf16")
    steady = measured_seconds(group, units, short_runs=ShortRuns(boost=0.0))
    short = measured_seconds(group, units)
    assert (short <= steady).all()
    assert (short < 0.95 * steady).any()


def test_gzip_and_plain_files_read_alike(tmp_path):
    text = HEADER + "B200-180GB,fp8,512,512,512,20\nb200,bf16 TN acc=False out=bf16,512,512,512,9\nMI210,fp16,1,1,1,1\n"
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.csv", "a.csv.gz"):
        timings, left_out = read_timings(tmp_path / name)
        assert [(t.source, t.chip, t.kernel) for t in timings] == [
            ("b200-180gb", "b200", "fp8"),
            ("b200", "b200", "bf16"),
        ]
        assert timings[0].seconds.tolist() == [pytest.approx(2e-5)]
        assert left_out == {"mi210": 1}


def test_times_may_be_seconds_or_rates_and_products_may_have_a_batch(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "kind,chip,dtype,M,N,K,batch,time_s,tflops\n"
        "gemm,b200,bf16,100,200,300,4,0.5,\ngemm-peak,b200,bf16,100,200,300,,,2\nall_reduce,x,y,,,,,,\n"
    )
    ((group,), _) = read_timings(path)
    assert group.gemm.batch.tolist() == [4, 1]
    assert group.seconds.tolist() == [0.5, pytest.approx(2 * 100 * 200 * 300 / 2e12)]


def test_small_files_without_large_products_are_reported_and_not_fitted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "b200,bf16,8,8,8,2\n")
    timings, _ = read_timings(path)
    assert fit_gemm(timings) == {}
    assert gemm_report(timings)[0].mape is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no column chip; its header should name chip, dtype, M, N, K."),
        ("chip,dtype,M,N,K\n", "has no times of products; add one of the columns time_us, time_s, tflops."),
        ("chip,chip,dtype,M,N,K,time_us\n", "has the column 'chip' twice; keep one of them."),
        (HEADER + "b200,bf16,1,1\n", "line 2: has 4 cells; it should have 6, as the header has."),
        (HEADER + "b200,bf16,1.5,1,1,1\n", "line 2: M: is '1.5'; it should be a whole number of 1 or more."),
        (HEADER + "b200,bf16,,1,1,1\n", "line 2: M: is empty; the source has to state it."),
        (HEADER + "b200,bf16,1,1,1,0\n", "line 2: time_us: is '0'; it should be a number above 0."),
        (HEADER + "b200,bf16,1,1,1,\n", "line 2: time_us: is empty; give one of time_us, time_s, tflops."),
        (HEADER + "b20,bf16,1,1,1,1\n", "line 2: chip: 'b20' is not known; did you mean 'b200'."),
        (HEADER + "b200,bf17,1,1,1,1\n", "line 2: dtype: is 'bf17'; did you mean 'bf16'."),
        (HEADER + 'b200,"bf16"x,1,1,1,1\n', "line 2: is not CSV"),
        (HEADER + "b200,\xff,1,1,1,1\n", "is not UTF-8 text; it should be a CSV file."),
    ],
)
def test_a_wrong_file_is_answered_by_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError) as error:
        read_timings(path)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_absent_damaged_or_endless_are_refused(tmp_path, monkeypatch):
    damaged = tmp_path / "damaged.csv.gz"
    damaged.write_bytes(gzip.compress(HEADER.encode() * 100)[:-12])
    wrong = tmp_path / "wrong.csv.gz"
    wrong.write_text(HEADER)
    for path in (tmp_path / "absent.csv", damaged, wrong):
        with pytest.raises(InputError, match="cannot be read"):
            read_timings(path)
    monkeypatch.setattr(gemm_timings, "MAX_BYTES", 1000)
    bomb = tmp_path / "bomb.csv.gz"
    bomb.write_bytes(gzip.compress(b" " * 10**6))
    with pytest.raises(InputError, match="has more than 1000 bytes"):
        read_timings(bomb)
    monkeypatch.setattr(gemm_timings, "MAX_TIMINGS", 1)
    many = tmp_path / "many.csv"
    many.write_text(HEADER + "b200,bf16,1,1,1,1\n" * 2)
    with pytest.raises(InputError, match="has more than 1 rows"):
        read_timings(many)


@pytest.fixture(scope="module")
def published():
    if not PUBLISHED.exists():
        pytest.skip("../shared/data/gemm_measured.csv.gz, the measured products, is not here")
    return read_timings(PUBLISHED)[0]


#: Time-weighted error and mean error for m of 1,024 or more that the shipped constants reach, a little above.
REACHED = {
    ("a100-80gb-sxm", "bf16"): (0.035, 0.080),
    ("h100-80gb-sxm", "bf16"): (0.048, 0.070),
    ("h100-80gb-sxm", "fp8"): (0.050, 0.082),
    ("h100-80gb-sxm", "fp8_block"): (0.140, 0.135),
    ("h200-141gb", "bf16"): (0.045, 0.070),
    ("h200-141gb", "fp8"): (0.048, 0.082),
    ("h200-141gb", "fp8_block"): (0.080, 0.105),
    ("b200-180gb", "bf16"): (0.073, 0.084),
    ("b200-180gb", "fp8"): (0.078, 0.070),
    ("b200-180gb", "fp8_block"): (0.084, 0.087),
    ("gb200", "bf16"): (0.072, 0.085),
    ("gb200", "fp8"): (0.076, 0.073),
    ("gb200", "fp8_block"): (0.075, 0.076),
}


def test_errors_on_published_products_stay_where_they_are(published):
    report = {(line.source, line.kernel): line for line in gemm_report(published, fit_gemm(published))}
    assert set(REACHED) < set(report)
    above = {
        key: (report[key].time_weighted, report[key].mape)
        for key, (time_weighted, mape) in REACHED.items()
        if report[key].time_weighted > time_weighted or (report[key].mape or 0) > mape or abs(report[key].bias) > 0.035
    }
    assert above == {}


def test_published_constants_come_out_of_the_fit(published):
    found, launch_s, _ = fit_kernels(published)
    assert astuple(found) == pytest.approx(astuple(GPU_KERNELS), rel=0.1)
    assert launch_s == pytest.approx(LAUNCH_S, rel=0.05)


def test_published_errors_hold_on_a_chip_the_constants_were_not_fitted_on(published):
    own = [group for group in published if group.source == "h200-141gb" and group.kernel == "bf16"]
    others = [group for group in published if group.chip != "h200-sxm"]
    kernels, launch_s, short_runs = fit_kernels(others)
    fits = fit_gemm(own, kernels=kernels, launch_s=launch_s, short_runs=short_runs)
    (line,) = gemm_report(own, fits, kernels, short_runs)
    assert line.time_weighted < 0.05
    assert (line.mape or 1) < 0.075
