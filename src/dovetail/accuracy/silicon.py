"""The silicon model against chips whose area and power are published: fitted on all of them, and on all but one.

`python -m dovetail.accuracy.silicon` prints the table of docs/explanation/silicon.md and the technology files' figures.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dovetail import hardware
from dovetail.arrays import Floats
from dovetail.frozen import frozen
from dovetail.hardware import Coefficient, Technology
from dovetail.hardware.design import design_of
from dovetail.hardware.silicon import Silicon
from dovetail.hardware.technology import End


@frozen
class Anchor:
    """A chip, the area of its dies and the power it is designed for."""

    chip: str
    area_mm2: float
    power_w: float


#: TPU v4 is published as below 600 mm2, and drew 192 W at most; its area is taken as the middle of 510 to 600.
ANCHORS = (
    Anchor("a100-80gb", 826, 400),
    Anchor("h100-sxm", 814, 700),
    Anchor("tpu-v4", 555, 192),
    Anchor("mi210", 724, 300),
    Anchor("dojo-d1", 645, 400),
)


@frozen
class CoefficientPrior:
    """The prior of a fitted coefficient at 7 nm, and the spread of its logarithm."""

    value: float
    spread: float
    #: whether it scales with the node like logic
    shrinks: bool


#: Round numbers with a spread of a factor of two; shares may be off by half.
AREA_PRIORS = {
    "vector_lane_area_mm2": CoefficientPrior(0.03, 0.7, True),
    "gpu_core_area_mm2": CoefficientPrior(2.0, 0.7, True),
    "other_area_share": CoefficientPrior(0.1, 0.5, False),
}
POWER_PRIORS = {"clock_energy_share": CoefficientPrior(0.2, 0.7, False)}

#: Errors of the anchors that weigh as much as a coefficient one spread off its prior.
NOISE = 0.1
#: Steps of Gauss and Newton, and how far a logarithm is moved for a derivative.
ITERATIONS, DELTA = 12, 1e-4

Fitted = dict[str, float]


def fitted(anchors: Sequence[Anchor]) -> Fitted:
    """The fitted coefficients at 7 nm: those of area first, then, with these, that of power."""
    area = _fit(anchors, AREA_PRIORS, {})
    return {**area, **_fit(anchors, POWER_PRIORS, area)}


def with_fitted(technology: Technology, values: Mapping[str, float]) -> Technology:
    """A technology with fitted coefficients, scaled to its node."""
    shrink = logic_shrink(technology)
    changed: dict[str, Coefficient] = {}
    for name, value in values.items():
        coefficient: Coefficient = getattr(technology, name)
        changed[name] = replace(
            coefficient, value=value * (shrink if (AREA_PRIORS | POWER_PRIORS)[name].shrinks else 1.0)
        )
    return replace(technology, **changed)


def logic_shrink(technology: Technology) -> float:
    """Area of logic relative to 7 nm, by transistor density."""
    density = hardware.technology("7nm").numbers().logic_transistors_per_mm2
    return density / technology.numbers().logic_transistors_per_mm2


def estimate(chip: str, values: Mapping[str, float], end: End = "value") -> Silicon:
    """The silicon estimate of a chip with fitted coefficients."""
    unit = hardware.chip(chip)
    assert unit.technology is not None, "anchors name their technology"
    return Silicon(design_of(unit), with_fitted(hardware.technology(unit.technology), values), end)


def _fit(anchors: Sequence[Anchor], priors: Mapping[str, CoefficientPrior], fixed: Mapping[str, float]) -> Fitted:
    """Least squares of log errors, with each coefficient pulled towards its prior."""
    names = list(priors)
    start = np.log(np.array([priors[name].value for name in names]))
    pull = NOISE / np.array([priors[name].spread for name in names])
    logs: Floats = start.copy()
    for _ in range(ITERATIONS):
        errors = _errors(anchors, names, logs, fixed)
        moved = np.eye(len(names)) * DELTA
        slopes = np.stack([(_errors(anchors, names, logs + step, fixed) - errors) / DELTA for step in moved], axis=1)
        matrix = np.concatenate([slopes, np.diag(pull)])
        rest = np.concatenate([errors, pull * (logs - start)])
        logs = logs - np.asarray(np.linalg.lstsq(matrix, rest, rcond=None)[0], np.float64)
    return dict(zip(names, np.exp(logs).tolist(), strict=True))


def _errors(anchors: Sequence[Anchor], names: Sequence[str], logs: Floats, fixed: Mapping[str, float]) -> Floats:
    """Log errors of area, or of power once the area coefficients are fixed."""
    values = {**fixed, **dict(zip(names, np.exp(logs).tolist(), strict=True))}
    estimates = [estimate(anchor.chip, values) for anchor in anchors]
    if fixed:
        return np.log([float(e.peak_power_w) / a.power_w for e, a in zip(estimates, anchors, strict=True)])
    return np.log([float(e.area_mm2) / a.area_mm2 for e, a in zip(estimates, anchors, strict=True)])


def left_out(anchor: Anchor) -> Fitted:
    """The coefficients fitted on all other anchors."""
    return fitted([other for other in ANCHORS if other != anchor])


def _cell(value: float, published: float) -> str:
    return f"{value:,.0f} ({value / published - 1:+.1%})"


def main() -> None:
    """Print the table of the docs and the fitted coefficients of each technology."""
    everything = fitted(ANCHORS)
    for name in ("7nm", "5nm", "3nm", "2nm"):
        technology = with_fitted(hardware.technology(name), everything)
        values = {field: f"{getattr(technology, field).value:.4g}" for field in everything}
        sys.stdout.write(f"{name}: {values}\n")
    head = "chip | area, mm2 | all anchors | left out | range | power, W | all anchors | left out | range"
    sys.stdout.write(f"| {head} |\n|{'---|' * 9}\n")
    for anchor in ANCHORS:
        shipped, other = estimate(anchor.chip, everything), estimate(anchor.chip, left_out(anchor))
        ends = [estimate(anchor.chip, {}, end) for end in ("low", "high")]
        cells = [anchor.chip, f"{anchor.area_mm2:,.0f}"]
        cells += [_cell(float(estimate_of.area_mm2), anchor.area_mm2) for estimate_of in (shipped, other)]
        cells += [" to ".join(f"{float(end.area_mm2):,.0f}" for end in ends), f"{anchor.power_w:,.0f}"]
        cells += [_cell(float(estimate_of.peak_power_w), anchor.power_w) for estimate_of in (shipped, other)]
        cells += [" to ".join(f"{float(end.peak_power_w):,.0f}" for end in ends)]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
