"""How far predictions are off: figures over ratios of predicted to measured values."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from dovetail.frozen import frozen


@frozen
class Errors:
    """Figures over absolute errors relative to the measured value; as fractions, so 0.1 is 10 %."""

    rows: int
    mape: float
    """mean absolute error"""
    median_ape: float
    p90_ape: float
    """90th percentile of the absolute error, interpolated"""
    bias: float
    """mean signed error; above 0 if predictions are too large"""


def errors_of(ratios: Iterable[float]) -> Errors:
    """The figures over at least one ratio of predicted to measured."""
    signed = np.fromiter(ratios, dtype=float) - 1.0
    assert signed.size
    size = np.abs(signed)
    return Errors(
        rows=signed.size,
        mape=float(size.mean()),
        median_ape=float(np.median(size)),
        p90_ape=float(np.quantile(size, 0.9)),
        bias=float(signed.mean()),
    )


def macro_average(families: Collection[Errors]) -> Errors:
    """Each figure's mean over families, so that one with many rows counts no more than one with few."""
    assert families
    return Errors(
        rows=sum(f.rows for f in families),
        mape=float(np.mean([f.mape for f in families])),
        median_ape=float(np.mean([f.median_ape for f in families])),
        p90_ape=float(np.mean([f.p90_ape for f in families])),
        bias=float(np.mean([f.bias for f in families])),
    )
