"""Efficiencies of one chip from timings of single products and collectives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dovetail.accuracy.collective_timings import (
    FEWEST,
    HUGE,
    LARGE,
    CollectiveFit,
    CollectiveTiming,
    catalogue_chip,
    fit_collectives,
    predicted_seconds,
)
from dovetail.accuracy.gemm_timings import KERNELS, GemmErrors, GemmFit, fit_gemm, gemm_report, read_timings
from dovetail.accuracy.nccl_tests import read_nccl_tests
from dovetail.cost.calibration import PRECISION_ROWS, generation_of, power_share
from dovetail.errors import InputError
from dovetail.frozen import frozen
from dovetail.hardware import Chip

#: With fewer products, matrix units and memory cannot be told apart.
FEWEST_PRODUCTS = 8
BLOCK_SCALED = "fp8_block"


@frozen
class TimedNumbers:
    """Efficiencies from timings, and the model's errors on them as fractions of the measured time."""

    what: str
    """products or collectives"""
    values: Mapping[str, float]
    rows: int
    before: float
    after: float
    chips: int = 1
    """of the largest group that was timed"""

    @property
    def basis(self) -> str:
        """The basis of these numbers, in words."""
        return f"{self.rows:,} {self.what}"


def product_numbers(path: Path | str, chip: Chip) -> TimedNumbers:
    """Efficiencies of matrix units and memory from a file of timed products."""
    timings, _ = read_timings(path)
    of_chip = [group for group in timings if group.chip == chip.name]
    if not of_chip:
        chips = ", ".join(sorted({group.chip for group in timings})[:3]) or "none"
        fix = f"the chips it has are {chips}" if timings else "its rows should name this chip"
        raise InputError(str(path), f"has no products of {chip.name}", fix)
    fits = fit_gemm(of_chip, by_chip=True)
    rows = sum(fit.rows for fit in fits.values())
    if rows < FEWEST_PRODUCTS:
        what = f"has {rows} products of {chip.name} that can be fitted"
        fix = f"time at least {FEWEST_PRODUCTS} with M of 512 or more on a GPU"
        raise InputError(str(path), what, fix)
    kinds = {kernel: PRECISION_ROWS[KERNELS[kernel][1].precision] for _, kernel in fits}
    values: dict[str, float] = {}
    for row in sorted(set(kinds.values())):
        alike = {kernel: fit for (_, kernel), fit in fits.items() if kinds[kernel] == row}
        # block scales cost extra time: use their products only if there are no others
        alike = [fit for kernel, fit in alike.items() if kernel != BLOCK_SCALED] or list(alike.values())
        # the fit is relative to the peak; the calibration excludes the effect of a power cap
        values[f"matrix.{row}"] = min(_mean(alike, "sustained") / power_share(chip), 1.0)
    # half-precision products need no casts, so they measure memory best
    plain = [fit for (_, kernel), fit in fits.items() if kinds[kernel] == "half"]
    values["memory"] = _mean(plain or list(fits.values()), "memory")
    before, after = _error(gemm_report(of_chip)), _error(gemm_report(of_chip, fits))
    return TimedNumbers("products", rounded(values), rows, before, after)


def collective_numbers(
    paths: Sequence[Path | str], chip: Chip, network_bytes_per_s: float | None = None
) -> TimedNumbers:
    """Efficiencies of links and network from nccl-tests output; `network_bytes_per_s` fills in a missing rate."""
    timings = [timing for path in paths for timing in _read(path, chip)]
    if network_bytes_per_s is not None:
        timings = [
            replace(t, network_bytes_per_s=network_bytes_per_s) if t.nodes > 1 and t.network_bytes_per_s is None else t
            for t in timings
        ]
    fit = fit_collectives(timings)
    links = fit.generations.get(generation_of(chip.name) or chip.name)
    values: dict[str, float] = {}
    if links is not None:
        values |= {"link": links.link, "collective_launch_s": links.launch_s}
    if fit.network is not None:
        values["network"] = _network(timings, fit, fit.network)
        fit = replace(fit, network=values["network"])
    if not values:
        fix = f"give {FEWEST} or more inside a node, or some between nodes of {HUGE // 2**20} MiB or more"
        raise InputError(str(paths[0]), f"has too few timings to fit ({len(timings)} in all)", fix)
    before, after = (_collective_error(timings, fitted) for fitted in (None, fit))
    most = max(timing.chips for timing in timings)
    return TimedNumbers("collectives", rounded(values), len(timings), before, after, most)


def _network(timings: Sequence[CollectiveTiming], fit: CollectiveFit, start: float) -> float:
    """The best of many starts: a search stays at its start if the links inside a node hide the network."""
    between = [timing for timing in timings if timing.nodes > 1 and timing.size_bytes >= HUGE]
    measured = np.array([timing.seconds for timing in between])
    tried = [start, *(float(value) for value in np.geomspace(0.02, 1.0, 400))]
    off = [np.mean(np.abs(np.log(predicted_seconds(between, replace(fit, network=v)) / measured))) for v in tried]
    return tried[int(np.argmin(off))]


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Rounds to four digits, which keeps files readable."""
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def _read(path: Path | str, chip: Chip) -> tuple[CollectiveTiming, ...]:
    try:
        timings = read_nccl_tests(path)
    except InputError:
        if catalogue_chip(chip.name) is None:
            raise
        # an unknown device is taken to be the chip being calibrated; other errors are raised again
        timings = read_nccl_tests(path, chip=chip.name)
    others = sorted({timing.chip for timing in timings} - {chip.name})
    if others:
        raise InputError(str(path), f"ran on {others[0]}", f"it should be a run on {chip.name}, which is calibrated")
    return timings


def _mean(fits: Sequence[GemmFit], field: str) -> float:
    """The geometric mean, each kernel by its rows."""
    weights = [fit.rows for fit in fits]
    logs = [math.log(getattr(fit, field)) for fit in fits]
    return math.exp(float(np.average(logs, weights=weights)))


def _error(report: Sequence[GemmErrors]) -> float:
    return float(np.average([line.time_weighted for line in report], weights=[line.rows for line in report]))


def _collective_error(timings: Sequence[CollectiveTiming], fit: CollectiveFit | None) -> float:
    off = np.abs(predicted_seconds(timings, fit) / np.array([t.seconds for t in timings]) - 1)
    large = np.array([t.size_bytes >= LARGE for t in timings])
    return float(np.mean(off[large] if large.any() else off))
