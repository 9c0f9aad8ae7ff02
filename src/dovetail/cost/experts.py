"""How unevenly tokens reach the chips that have experts."""

from __future__ import annotations

import numpy as np

from dovetail.arrays import Floats

#: Standard deviation of an expert's load over its mean. GLM-5 without an auxiliary loss: 18.6 % of the time of a layer
#: of 128 experts on 8 chips is lost (FEPLB, arXiv:2604.19654), a load of 1.23 and so a spread of 0.45; with one, the
#: fullest of 64 experts has 1.52 to 1.72 of the mean (recalled from arXiv:2408.15664), 0.18 to 0.25.
#: The lowest of these, with which ranks have up to 1.1 to 1.3 of the mean, as most reports say.
LOAD_SPREAD = 0.18


def fullest_load(experts: Floats, own: Floats, stated: float | None) -> Floats:
    """Tokens of the fullest chip over the mean, where each has `own` of the experts; `stated` holds on any number.

    A chip's load is a sum over its experts, so loads spread less the more it has: the largest of n sums of normal
    loads lies at most √(2 ln n) of their standard deviations above the mean.
    """
    if stated is not None:
        return np.asarray(stated, np.float64)
    chips = np.maximum(experts / own, 1.0)
    return np.minimum(1 + LOAD_SPREAD * np.sqrt(2 * np.log(chips) / np.maximum(own, 1.0)), chips)
