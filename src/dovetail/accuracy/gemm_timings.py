"""Measured matrix products against the model: reading them, the error per chip and precision, and the fit."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail import hardware
from dovetail.accuracy.table import TableRow
from dovetail.arrays import Floats
from dovetail.cost.calibration import generation_of
from dovetail.cost.contraction import GPU_KERNELS, Cast, GpuKernels, cast_seconds, gpu_seconds, systolic_seconds
from dovetail.cost.operators import ChipUnits
from dovetail.cost.shapes import Gemm
from dovetail.cost.units import chip_units
from dovetail.errors import InputError, one_of, quoted
from dovetail.frozen import frozen

MAX_BYTES = 256 * 2**20
MAX_TIMINGS = 1_000_000

NEEDED = ("chip", "dtype", "M", "N", "K")
#: One of these says how long a product took.
TIMES = ("time_us", "time_s", "tflops")
KNOWN = frozenset((*NEEDED, *TIMES, "batch", "kind"))

#: Names sources give chips → ids of the catalogue; catalogue ids map to themselves, None is not in the catalogue.
CHIPS: Mapping[str, str | None] = {
    "a100-80gb-sxm": "a100-80gb", "h100-80gb-sxm": "h100-sxm", "h200-141gb": "h200-sxm", "b200-180gb": "b200",
    "b200-180gb (simumax)": "b200", "a100-80gb-pcie (simumax)": None,
    "nvidia a100 sxm": "a100-80gb", "nvidia a100 pcie": None, "nvidia h100 sxm": "h100-sxm",
    "nvidia gh200 sxm": None, "nvidia h200 sxm": "h200-sxm", "nvidia b200 sxm": "b200", "nvidia gb200 sxm": "gb200",
    "nvidia b300 sxm": "b300", "intel gaudi 2": "gaudi2", "intel gaudi 3": "gaudi3", "amd mi300x": "mi300x",
    "amd mi325x": None, "amd mi355x": None, "mi210": None, "tpu-v6e": "tpu-v6e", "tpu-v7x device (half chip)": None,
}  # fmt: skip

#: Sources used only to check the fit: its B200 is uniformly a sixth slower.
CHECKS = frozenset({"b200-180gb (simumax)"})


@frozen
class Kernel:
    """A kind of matrix-product kernel that sources measured."""

    #: precision of a job that uses it
    precision: str
    operand_bytes: float
    #: part of the measured time: the sources' activations are bf16
    cast: Cast | None = None


#: First word of the source's dtype → kernel. The casts' seconds, and the 7 bytes with which memory's efficiency comes
#: out as in bf16, were chosen by hand on the four chips with fp8; block-scaled, 2 bytes are read and 1 is written.
KERNELS: Mapping[str, tuple[str, Kernel]] = {
    word: (name, kernel)
    for name, kernel, words in (
        ("bf16", Kernel("bf16", 2), ("bf16", "bfloat16")),
        ("fp16", Kernel("fp16", 2), ("fp16", "float16")),
        ("fp8", Kernel("fp8", 1, Cast(7.0, 1.1e-5)), ("fp8",)),
        ("fp8_block", Kernel("fp8", 1, Cast(3.0, 3.5e-6)), ("fp8_block",)),
    )
    for word in words
}


@frozen
class ShortRuns:
    """Short measurements end before power limits the clock; the model ignores this, since training steps are long.

    The sustained rate is `boost` higher in a product of no length, half that in one of `half_s`; both are fitted.
    """

    boost: float = 0.22
    half_s: float = 2.5e-3


SHORT_RUNS = ShortRuns()

#: Launch of one kernel on the GPUs measured: the time of products of no size. Fitted with the kernels.
LAUNCH_S = 2.2e-6
#: Smallest gain of a fit's loss worth a step.
SMALLEST_GAIN = 1e-7


@frozen
class Timings:
    """Products one source measured on one chip with one kernel."""

    source: str
    chip: str
    kernel: str
    gemm: Gemm
    seconds: Floats

    def part(self, rows: NDArray[np.intp]) -> Timings:
        """A selection of the rows."""
        shape = self.gemm
        part = Gemm(shape.batch[rows], shape.m[rows], shape.n[rows], shape.k[rows])
        return replace(self, gemm=part, seconds=self.seconds[rows])


@frozen
class GemmErrors:
    """Errors of predicted times of products, as fractions of the measured time."""

    source: str
    chip: str
    kernel: str
    rows: int
    #: sum of absolute errors over the sum of times
    time_weighted: float
    #: mean error of the products with m of 1,024 or more; None without any
    mape: float | None
    #: sum of predicted over sum of measured times, less 1
    bias: float


@frozen
class GemmFit:
    """Efficiencies of a generation (or chip) with a kernel."""

    sustained: float
    memory: float
    rows: int


def read_timings(path: Path | str) -> tuple[list[Timings], Counter[str]]:
    """The products of a CSV file (gzipped if its name ends in .gz), and rows per chip the catalogue does not have."""
    where = str(path)
    cells: dict[tuple[str, str, str], list[tuple[float, float, float, float, float]]] = {}
    left_out: Counter[str] = Counter()
    for row in _rows(Path(path), where):
        if not row.text("kind").startswith("gemm") and row.text("kind"):
            continue
        try:
            source, chip = row.text("chip").casefold(), _chip(row)
            word = (row.text("dtype").casefold().split() or [""])[0]
            if word not in KERNELS:
                raise InputError("dtype", f"is {quoted(row.text('dtype'))}", one_of(KERNELS, word))
            batch, m, n, k = row.count("batch") or 1, row.needed("M"), row.needed("N"), row.needed("K")
            timing = (float(batch), float(m), float(n), float(k), _seconds(row, 2.0 * batch * m * n * k))
        except InputError as error:
            raise InputError(f"{where}, line {row.line}: {error.where}", error.what, error.fix) from None
        if chip is None:
            left_out[source] += 1
        else:
            cells.setdefault((source, chip, KERNELS[word][0]), []).append(timing)
    groups: list[Timings] = []
    for (source, chip, kernel), rows in cells.items():
        batch, m, n, k, seconds = np.array(rows, dtype=np.float64).T
        groups.append(Timings(source, chip, kernel, Gemm(batch, m, n, k), seconds))
    return groups, left_out


def gemm_report(
    timings: Iterable[Timings],
    fitted: Mapping[tuple[str, str], GemmFit] | None = None,
    kernels: GpuKernels = GPU_KERNELS,
    short_runs: ShortRuns = SHORT_RUNS,
) -> list[GemmErrors]:
    """Errors per source, chip and kernel, at shipped efficiencies or at fitted ones (keys as `fit_gemm` gives)."""
    report: list[GemmErrors] = []
    for group in timings:
        units = _units(group.chip, KERNELS[group.kernel][1].precision)
        fit = (fitted or {}).get((_generation(group.chip), group.kernel))
        fit = (fitted or {}).get((group.chip, group.kernel), fit)
        if fit is not None:
            units = at_efficiencies(units, group.chip, fit.sustained, fit.memory, LAUNCH_S)
        error = measured_seconds(group, units, kernels, short_runs) / group.seconds - 1
        total, large = group.seconds.sum(), group.gemm.m >= 1024
        time_weighted = float((np.abs(error) * group.seconds).sum() / total)
        mape = float(np.abs(error[large]).mean()) if large.any() else None
        bias = float((error * group.seconds).sum() / total)
        key = (group.source, group.chip, group.kernel)
        report.append(GemmErrors(*key, len(error), time_weighted, mape, bias))
    return report


def fit_gemm(
    timings: Sequence[Timings],
    *,
    by_chip: bool = False,
    kernels: GpuKernels = GPU_KERNELS,
    short_runs: ShortRuns = SHORT_RUNS,
    launch_s: float = LAUNCH_S,
) -> dict[tuple[str, str], GemmFit]:
    """(Generation or chip, kernel) → the efficiencies with the least error on products with m of 512 or more.

    Memory's efficiency stays at its start if the measured products do not depend on it.
    """
    together: dict[tuple[str, str], list[_FitTask]] = {}
    for task in _tasks(timings, _MOST_ROWS):
        name = task.group.chip if by_chip else _generation(task.group.chip)
        together.setdefault((name, task.group.kernel), []).append(task)
    fits: dict[tuple[str, str], GemmFit] = {}
    for key, tasks in together.items():

        def loss(efficiencies: Sequence[float], tasks: Sequence[_FitTask] = tuple(tasks)) -> float:
            return sum(task.loss(efficiencies, launch_s, kernels, short_runs) for task in tasks) / len(tasks)

        sustained, memory = descend(loss, _START, [1.0, 1.0], _SWEEPS)
        fits[key] = GemmFit(sustained, memory, sum(len(task.group.seconds) for task in tasks))
    return fits


def fit_kernels(timings: Sequence[Timings]) -> tuple[GpuKernels, float, ShortRuns]:
    """The constants all GPUs share, the launch and the short runs' boost, each chip at its own best efficiencies."""
    tasks = [t for t in _tasks(timings, _MOST_KERNEL_ROWS) if KERNELS[t.group.kernel][1].cast is None]
    # start far from the optimum, so that finding it again means something
    shared = [250.0, 10.0, 0.7, 4e-6, 0.1, 1e-3]
    by_task = [list(_START) for _ in tasks]

    def loss_of(task: _FitTask, shared: Sequence[float], by_task: Sequence[float]) -> float:
        return task.loss(by_task, shared[3], GpuKernels(*shared[:3]), ShortRuns(*shared[4:]))

    def loss(tried: Sequence[float]) -> float:
        return sum(loss_of(task, tried, values) for task, values in zip(tasks, by_task, strict=True))

    for _ in range(_ROUNDS):
        for index, task in enumerate(tasks):
            by_task[index] = descend(partial(loss_of, task, shared), by_task[index], [1.0, 1.0], sweeps=4)
        shared = descend(loss, shared, [1e4, 1e3, 1.0, 1.0, 1.0, 1.0], sweeps=4)
    return GpuKernels(*shared[:3]), shared[3], ShortRuns(*shared[4:])


def measured_seconds(
    group: Timings, chip: ChipUnits, kernels: GpuKernels = GPU_KERNELS, short_runs: ShortRuns = SHORT_RUNS
) -> Floats:
    """The model's time of a measurement: the product, its cast, and the clock of a short run."""
    kernel = KERNELS[group.kernel][1]
    units = chip.matrix
    if chip.systolic:
        return systolic_seconds(group.gemm, units, kernel.operand_bytes)
    steady = gpu_seconds(group.gemm, units, kernel.operand_bytes, kernels)
    boosted = units.sustained * (1 + short_runs.boost / (1 + steady / short_runs.half_s))
    seconds = gpu_seconds(group.gemm, replace(units, sustained=np.minimum(boosted, 1.0)), kernel.operand_bytes, kernels)
    return seconds if kernel.cast is None else seconds + cast_seconds(group.gemm, units, kernel.cast)


#: Rows of a source the fits look at.
_MOST_ROWS = 4000
_MOST_KERNEL_ROWS = 1500
_ROUNDS = 25
_SWEEPS = 40
#: Start of the efficiencies of matrix units and memory: independent of what is shipped, so that fits repeat.
_START = (0.75, 0.8)
#: Errors (log) are clipped here: a larger one hints at a wrong row or an unlucky kernel choice.
_CLIP = 0.5


@frozen
class _FitTask:
    """Timings to fit, their chip and what each row weighs."""

    group: Timings
    units: ChipUnits
    weights: Floats

    def loss(self, efficiencies: Sequence[float], launch_s: float, kernels: GpuKernels, short_runs: ShortRuns) -> float:
        at = at_efficiencies(self.units, self.group.chip, efficiencies[0], efficiencies[1], launch_s)
        seconds = measured_seconds(self.group, at, kernels, short_runs)
        off = np.minimum(np.abs(np.log(seconds / self.group.seconds)), _CLIP)
        return float((self.weights * off).sum())


def _tasks(timings: Sequence[Timings], most: int) -> Iterator[_FitTask]:
    for whole in timings:
        rows = np.flatnonzero(whole.gemm.m >= 512)
        units = _units(whole.chip, KERNELS[whole.kernel][1].precision)
        if not len(rows) or whole.source in CHECKS or units.systolic:
            continue
        # drawn at random: a fixed stride would meet only some sizes
        group = whole.part(np.random.default_rng(0).permutation(rows)[:most])
        # half by time and half equally: products limited by memory or waves take little of the total time
        weights = 0.5 * group.seconds / group.seconds.sum() + 0.5 / len(group.seconds)
        yield _FitTask(group, units, weights)


def descend(
    loss: Callable[[Sequence[float]], float], start: Sequence[float], bounds: Sequence[float], sweeps: int
) -> list[float]:
    """Minimises a loss along one value after another; steps grow if they help and are halved otherwise."""
    values, steps = list(start), [0.1] * len(start)
    best = loss(values)
    for _ in range(sweeps):
        for index, step in enumerate(steps):
            steps[index] = 0.5 * step
            for factor in (1 + step, 1 - step):
                tried = list(values)
                tried[index] = min(values[index] * factor, bounds[index])
                value = loss(tried)
                if value < best - SMALLEST_GAIN:
                    best, values, steps[index] = value, tried, min(1.3 * step, 0.3)
                    break
        if max(steps) < 1e-3:
            break
    return values


@lru_cache(maxsize=256)
def _units(chip: str, precision: str) -> ChipUnits:
    return chip_units(hardware.chip(chip), precision)


def _bandwidth(chip: str) -> float:
    unit = hardware.chip(chip)
    return unit.hbm_bytes_per_s or unit.shared_sram_bytes_per_s or 1.0


def at_efficiencies(units: ChipUnits, chip: str, sustained: float, memory: float, launch_s: float) -> ChipUnits:
    """A chip at these efficiencies of its matrix units and memory."""
    streaming, rate, launch = (np.asarray(value) for value in (_bandwidth(chip) * memory, sustained, launch_s))
    return replace(units, matrix=replace(units.matrix, sustained=rate, memory_bytes_per_s=streaming, launch_s=launch))


def _generation(chip: str) -> str:
    return generation_of(chip) or chip


def _chip(row: TableRow) -> str | None:
    name = row.text("chip").casefold()
    if name in CHIPS:
        return CHIPS[name]
    if name not in hardware.chip_names():
        raise InputError("chip", f"{quoted(row.text('chip'))} is not known", one_of(hardware.chip_names(), name))
    return name


def _seconds(row: TableRow, flops: float) -> float:
    for column, seconds in (("time_us", 1e-6), ("time_s", 1.0)):
        value = row.number(column)
        if value is not None:
            return value * seconds
    rate = row.number("tflops")
    if rate is None:
        raise InputError("time_us", "is empty", f"give one of {', '.join(TIMES)}")
    return flops / (rate * 1e12)


def _rows(path: Path, where: str) -> Iterator[TableRow]:
    """The rows of the file one by one: it may be large, and a small gzip file may expand a lot."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or "no such path, or not gzip"
        raise InputError(where, f"cannot be read ({reason})", "name a CSV file that exists") from None
    if len(text) > MAX_BYTES:
        raise InputError(where, f"has more than {MAX_BYTES} bytes", "keep it shorter")
    lines = csv.reader(io.TextIOWrapper(io.BytesIO(text), encoding="utf-8-sig", newline=""), strict=True)
    try:
        header = [name.strip() for name in next(lines, [""])]
        _check_header(header, where)
        for count, cells in enumerate(lines):
            at = f"{where}, line {lines.line_num}"
            if len(cells) != len(header):
                raise InputError(at, f"has {len(cells)} cells", f"it should have {len(header)}, as the header has")
            if count == MAX_TIMINGS:
                raise InputError(where, f"has more than {MAX_TIMINGS} rows", "keep it shorter")
            named = zip(header, cells, strict=True)
            yield TableRow(lines.line_num, {name: cell.strip() for name, cell in named if name in KNOWN})
    except csv.Error as error:
        at = f"{where}, line {lines.line_num}"
        raise InputError(at, f"is not CSV ({error})", "correct the quotation marks or commas there") from None
    except UnicodeDecodeError:
        raise InputError(where, "is not UTF-8 text", "it should be a CSV file") from None


def _check_header(header: Sequence[str], where: str) -> None:
    missing = [name for name in NEEDED if name not in header]
    if missing:
        raise InputError(where, f"has no column {missing[0]}", f"its header should name {', '.join(NEEDED)}")
    if not any(name in header for name in TIMES):
        raise InputError(where, "has no times of products", f"add one of the columns {', '.join(TIMES)}")
    twice = [name for name, count in Counter(header).items() if name and count > 1]
    if twice:
        raise InputError(where, f"has the column {quoted(twice[0])} twice", "keep one of them")
