"""What several jobs' step times are together: their weighted sum, or their weighted geometric mean."""

from __future__ import annotations

from typing import Literal

import numpy as np

from dovetail.arrays import Floats
from dovetail.frozen import frozen

#: What rounding may take from a limit found through logarithms.
_SLACK = 1e-12


@frozen
class JobMean:
    """A mean over jobs; it never falls when one of them takes longer."""

    kind: Literal["arithmetic", "geometric"]
    #: their sum is 1
    weights: tuple[float, ...]
    #: what each job's figures are divided by
    units: tuple[float, ...]

    @property
    def shares(self) -> Floats:
        """Of a weighted sum: what a unit of each job counts."""
        return np.array(self.weights) / np.array(self.units)

    def of(self, values: Floats) -> Floats:
        """The mean over the last axis, a value for each job; infinite if one is."""
        if self.kind == "arithmetic":
            return values @ self.shares
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(values / np.array(self.units)) @ np.array(self.weights)
        return np.where(np.isinf(values).any(axis=-1) & (values > 0).any(axis=-1), np.inf, np.exp(logs))

    def left(self, latest_s: Floats, least_s: Floats, number: int) -> Floats:
        """The step time one job may take if the others take their lower bounds and the mean stays in time.

        `least_s` is candidates × jobs.
        """
        rest = np.arange(len(self.weights)) != number
        weights, units = np.array(self.weights), np.array(self.units)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.kind == "arithmetic":
                others = least_s[:, rest] @ self.shares[rest]
                left = (latest_s - others) / self.shares[number]
            else:
                others = np.log(least_s[:, rest] / units[rest]) @ weights[rest]
                left = np.exp((np.log(latest_s) - others) / weights[number]) * units[number] * (1 + _SLACK)
        # if another job does not fit, nothing can be won; one that takes no time sets no limit
        fits = np.isfinite(least_s[:, rest]).all(axis=1)
        return np.where(fits, np.where(np.isnan(left), np.inf, left), -np.inf)
