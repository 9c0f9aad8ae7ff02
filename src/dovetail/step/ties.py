"""How close two predicted step times must be for the model to call them a tie."""

from __future__ import annotations

#: What a predicted ratio of two plans' step times errs by, with the family of the runs left out of the fit: the median
#: over the pairs of distinct plans of a group, then the median over the 43 groups (179 pairs) of the published runs.
#: `dovetail validate` measures it again.
RATIO_ERROR = 0.0553

#: A larger margin would give away time that a user can measure.
LARGEST_MARGIN = 0.03

TIE_MARGIN = min(RATIO_ERROR, LARGEST_MARGIN)
"""plans whose step times differ by no more than this part are ties"""
