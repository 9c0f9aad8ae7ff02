"""What timings of single products and collectives say of one chip."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from dovetail.hardware import Chip

#: Fewer products cannot tell what the matrix units sustain from what the memory does.
FEWEST_PRODUCTS = 8
BLOCK_SCALED = "fp8_block"


@dataclass(frozen=True, slots=True)
class TimedNumbers:
    """Efficiencies that timings give, and how far the model is off on them; errors are parts of the measured time."""

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
        """What numbers from here rest on."""
        return f"{self.rows:,} {self.what}"


def product_numbers(path: Path | str, chip: Chip) -> TimedNumbers:
    """What matrix units and memory sustain by a file of timed products."""
    timings, _ = read_timings(path)
    own = [group for group in timings if group.chip == chip.name]
    if not own:
        found = ", ".join(sorted({group.chip for group in timings})[:3]) or "none"
        fix = f"the chips it has are {found}" if timings else "its rows should name this chip"
        raise InputError(str(path), f"has no products of {chip.name}", fix)
    fits = fit_gemm(own, by_chip=True)
    rows = sum(fit.rows for fit in fits.values())
    if rows < FEWEST_PRODUCTS:
        what = f"has {rows} products of {chip.name} that can be fitted"
        fix = f"time at least {FEWEST_PRODUCTS} with M of 512 or more on a GPU"
        raise InputError(str(path), what, fix)
    kinds = {kernel: PRECISION_ROWS[KERNELS[kernel][1].precision] for _, kernel in fits}
    values: dict[str, float] = {}
    for row in sorted(set(kinds.values())):
        alike = {kernel: fit for (_, kernel), fit in fits.items() if kinds[kernel] == row}
        # scales of blocks cost time of their own: their products stand in where there are no others
        alike = [fit for kernel, fit in alike.items() if kernel != BLOCK_SCALED] or list(alike.values())
        # the fit has what is sustained of the peak, the calibration leaves a power cap's part out
        values[f"matrix.{row}"] = min(_mean(alike, "sustained") / power_share(chip), 1.0)
    # products of half precision cast nothing, so they tell what memory sustains best
    plain = [fit for (_, kernel), fit in fits.items() if kinds[kernel] == "half"]
    values["memory"] = _mean(plain or list(fits.values()), "memory")
    before, after = _error(gemm_report(own)), _error(gemm_report(own, fits))
    return TimedNumbers("products", rounded(values), rows, before, after)


def collective_numbers(
    paths: Sequence[Path | str], chip: Chip, network_bytes_per_s: float | None = None
) -> TimedNumbers:
    """What links and network sustain by outputs of nccl-tests; the network's rate where it is not the chip's own."""
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
    before, after = (_collective_error(timings, found) for found in (None, fit))
    most = max(timing.chips for timing in timings)
    return TimedNumbers("collectives", rounded(values), len(timings), before, after, most)


def _network(timings: Sequence[CollectiveTiming], fit: CollectiveFit, found: float) -> float:
    """The best of many: a search from one value stays there where the links inside hide a network that fast."""
    between = [timing for timing in timings if timing.nodes > 1 and timing.size_bytes >= HUGE]
    measured = np.array([timing.seconds for timing in between])
    tried = [found, *(float(value) for value in np.geomspace(0.02, 1.0, 400))]
    off = [np.mean(np.abs(np.log(predicted_seconds(between, replace(fit, network=v)) / measured))) for v in tried]
    return tried[int(np.argmin(off))]


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Four digits: more would say nothing, and files stay readable."""
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def _read(path: Path | str, chip: Chip) -> tuple[CollectiveTiming, ...]:
    try:
        found = read_nccl_tests(path)
    except InputError:
        if catalogue_chip(chip.name) is None:
            raise
        # a device the catalogue does not know is the chip that is calibrated; other mistakes are found again
        found = read_nccl_tests(path, chip=chip.name)
    others = sorted({timing.chip for timing in found} - {chip.name})
    if others:
        raise InputError(str(path), f"ran on {others[0]}", f"it should be a run on {chip.name}, which is calibrated")
    return found


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
