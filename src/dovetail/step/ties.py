"""How close two predicted step times must be for the model to call them a tie."""

from __future__ import annotations

from dovetail.frozen import frozen

#: What a predicted ratio of two plans' step times errs by, with the family of the runs left out of the fit: the median
#: over the pairs of distinct plans of a group, then the median over the 48 groups (315 pairs) of the published runs.
#: `dovetail validate` measures it again.
RATIO_ERROR = 0.0512

#: The same for nine in ten pairs, each group counting once: 19.7 % as fitted, 20.0 % with the family left out. Pairs of
#: runs on other chips, each of a fitted generation, err alike (17.9 %, 207 pairs).
RATIO_P90 = 0.2

#: A larger margin would give away time that a user can measure.
LARGEST_MARGIN = 0.03

TIE_MARGIN = min(RATIO_ERROR, LARGEST_MARGIN)
"""plans whose step times differ by no more than this part are ties"""


@frozen
class RatioInterval:
    """Where nine in ten measured ratios of two step times would be; what both are predicted wrong by cancels."""

    low: float
    high: float

    @property
    def distinguishable(self) -> bool:
        """Whether one of the two is the faster throughout the interval."""
        return not self.low <= 1 <= self.high


def ratio_interval(ratio: float) -> RatioInterval:
    """That of two plans on the same chips, or of two designs of one base, which sustain the same of their peaks."""
    return RatioInterval(ratio / (1 + RATIO_P90), ratio / (1 - RATIO_P90))
